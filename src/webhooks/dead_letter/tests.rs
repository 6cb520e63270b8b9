use model::TopicPrefix;

use super::*;
use crate::{
    publish::{LetterSigner, PublishStage},
    webhooks::delivery::ApiFamily,
};

const BODY: &[u8] = b"the whole of a delivery";

fn cut(letter: &str, of: usize) -> Vec<(LetterPiece, Bytes)> {
    let headers = LetterPiece::headers(letter, BODY, of);
    let size = BODY.len().div_ceil(of);
    let piece = |(place, part): (usize, &'static [u8])| {
        let headers = headers(place + 1).map(|(name, value)| (name.to_owned(), value));
        (LetterPiece::from_headers(&headers).unwrap().unwrap(), Bytes::from_static(part))
    };
    BODY.chunks(size).enumerate().map(piece).collect()
}

fn joined(pieces: &[(LetterPiece, Bytes)]) -> Result<Bytes, UnusableLetter> {
    let mut joining = LetterJoin::new(pieces[0].0.clone());
    for (piece, bytes) in pieces {
        joining.add(piece.number, bytes.clone());
    }
    joining.join()
}

#[test]
fn pieces_in_any_order_and_twice_are_the_whole() {
    let mut pieces = cut("a", 3);
    pieces.reverse();
    pieces.extend(cut("a", 3));

    assert_eq!(joined(&pieces).unwrap(), BODY);
}

#[test]
fn a_missing_piece_is_named_and_a_changed_one_is_noticed() {
    let pieces = cut("a", 3);
    let mut changed = pieces.clone();
    changed[1].1 = Bytes::from_static(b"E of a d");
    let missing = joined(&[pieces[0].clone(), pieces[2].clone()]);

    assert_eq!(missing, Err(UnusableLetter::Incomplete { missing: vec![2], of: 3 }));
    assert_eq!(joined(&changed), Err(UnusableLetter::Damaged));
}

#[test]
fn letters_that_differ_in_anything_have_different_ids() {
    let failure = |message: &str| PublishFailure {
        stage: PublishStage::Produce,
        class: "kafka::Error",
        message: message.to_owned(),
        causes: Vec::new(),
    };
    let one = letter_id(b"{}", None, &failure("a"), BODY);

    assert_eq!(one, letter_id(b"{}", None, &failure("a"), BODY));
    for other in [
        letter_id(b"{1}", None, &failure("a"), BODY),
        letter_id(b"{}", Some("x"), &failure("a"), BODY),
        letter_id(b"{}", None, &failure("b"), BODY),
        letter_id(b"{}", None, &failure("a"), &BODY[1..]),
    ] {
        assert_ne!(one, other);
    }
}

#[test]
fn headers_that_no_piece_of_ours_has_are_refused() {
    let headers = |numbers: &str| {
        let mut headers: Vec<_> =
            LetterPiece::headers("a", BODY, 2)(1).map(|(name, value)| (name.to_owned(), value)).into();
        headers[1].1 = Bytes::from(numbers.to_owned());
        headers
    };

    for wrong in ["", "1", "0/2", "3/2", "1/2000000000", "a/b", "1/2/3"] {
        assert_eq!(LetterPiece::from_headers(&headers(wrong)), Err(UnusableLetter::Piece), "{wrong}");
    }
    assert_eq!(
        LetterPiece::from_headers(&headers("1/2")[..3]),
        Err(UnusableLetter::Piece),
        "without a digest"
    );
    assert_eq!(LetterPiece::from_headers(&[]), Ok(None));
}

#[test]
fn a_letter_position_round_trips_and_nothing_else_parses() {
    let place = LetterPosition { partition: 3, offset: 42 };

    assert_eq!(place.to_string().parse(), Ok(place));
    for wrong in ["", "3", "@", "3@", "@42", "-3@42", "3@-1", "3@4 2", "3@99999999999999999999", "3:42"] {
        assert!(wrong.parse::<LetterPosition>().is_err(), "{wrong}");
    }
}

fn dead_letters() -> DeadLetters {
    DeadLetters {
        topic: "acme.dead-letters".into(),
        partitions: 5,
        connector: "hooks".into(),
        task: 0,
        logged: false,
        prefix: TopicPrefix::new("acme").unwrap(),
        signer: LetterSigner::default(),
    }
}

fn received(body: impl Into<Bytes>, family: ApiFamily) -> Delivery {
    let context = DeliveryContext {
        connector: "hooks".into(),
        prefix: "acme".into(),
        dead_letter_topic: "acme.dead-letters".into(),
        received_at: 1_700_000_000_000_001,
        traceparent: None,
        content_ids: true,
        family,
    };
    Delivery { context: Arc::new(context), body: body.into() }
}

fn accounting(body: impl Into<Bytes>) -> Delivery {
    received(body, ApiFamily::Accounting { resource: None })
}

fn headers(record: &EncodedRecord) -> Vec<(String, Bytes)> {
    record.headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

fn too_large() -> PublishFailure {
    PublishFailure {
        stage: PublishStage::Produce,
        class: "kafka::Error::RecordRefused",
        message: "too large".into(),
        causes: Vec::new(),
    }
}

fn joined_by_letter<'a>(records: impl IntoIterator<Item = &'a EncodedRecord>) -> BTreeMap<String, Bytes> {
    let mut joining: BTreeMap<String, LetterJoin> = BTreeMap::new();
    for record in records {
        let piece = LetterPiece::from_headers(&headers(record)).unwrap().unwrap();
        let (id, number) = (piece.letter.clone(), piece.number);
        let one = joining.entry(id).or_insert_with(|| LetterJoin::new(piece));
        one.add(number, record.value.clone().unwrap());
    }
    joining.into_iter().map(|(id, joining)| (id, joining.join().unwrap())).collect()
}

#[test]
fn interleaved_or_repeated_pieces_never_mix() {
    let dead_letters = dead_letters();
    let body: Vec<u8> = (0..PIECE_BYTES * 2 + 77).map(|place| (place % 251) as u8).collect();
    let (first, mut second) = (accounting(body.clone()), accounting(body.clone()));
    Arc::make_mut(&mut second.context).received_at += 1;
    let cut = |delivery: &Delivery| records(&dead_letters, delivery, None, &too_large(), pieces(&body));
    let (one, other, again) = (cut(&first), cut(&second), cut(&first));

    let interleaved = one[..2].iter().chain(&other).chain(&again).chain(&one[2..]);
    let whole = joined_by_letter(interleaved);

    assert_eq!(one, again, "the same letter has the same pieces");
    assert_eq!(one.len(), 3);
    assert_eq!(whole.len(), 2, "two letters");
    assert!(whole.values().all(|joined| *joined == body));
    let all = || one.iter().chain(&other);
    assert!(all().all(|piece| piece.partition == one[0].partition && piece.key == one[0].key));
    assert!(all().all(|piece| piece.size() < 1 << 20), "no topic takes less than 1 MiB");
    let tell: Vec<_> =
        one.iter().map(|piece| super::delivery(&headers(piece), Bytes::new()).is_ok()).collect();
    assert_eq!(tell, [true, false, false]);
}

#[test]
fn a_body_is_cut_into_no_more_pieces_than_it_has_bytes() {
    let dead_letters = dead_letters();
    for (body, expected) in [(&b""[..], 1), (b"x", 1), (b"xy", 2)] {
        let letters = records(&dead_letters, &accounting(body), None, &too_large(), 3);

        let whole: Vec<u8> = letters.iter().flat_map(|letter| letter.value.clone().unwrap()).collect();
        assert_eq!((letters.len(), whole.as_slice()), (expected, body));
    }
}
