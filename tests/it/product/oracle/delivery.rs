//! Deliveries as the provider makes them: envelope, ids, signature. Shares no code with the product.
//!
//! The id of a delivery contains company and number, so that a record in a topic shows where it came from. A body is a template with
//! a few variable fields, so that making one costs little more than its signature and a generator can make tens of thousands a second.

use std::sync::Arc;

use aws_lc_rs::hmac;

/// The header that carries the signature.
pub(crate) const SIGNATURE_HEADER: &str = "svc-webhook-signature";

/// Placeholders of the variable fields in the template, which are digits of fixed width.
const COMPANY: &str = "CCCCCCCC-cccc-4ccc-8ccc-cccccccccccc";
const OUTGOING: &str = "OOOOOOOO-oooo-4ooo-8ooo-oooooooooooo";
const RECORD: &str = "RRRRRRRR-rrrr-4rrr-8rrr-rrrrrrrrrrrr";
const SEQUENCE: &str = "SSSSSSSSSSSSSSSSSS";
/// Width of the sequence in decimal digits.
const SEQUENCE_WIDTH: usize = SEQUENCE.len();

const CAPITALS: &[u8; 16] = b"0123456789ABCDEF";

/// The value of the signature header: `sha256=` and 64 digits.
pub(crate) type Signature = [u8; 71];

/// A 128-bit id that is written as a GUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id(pub(crate) u128);

impl Id {
    /// From a GUID with dashes; `None` for any other text.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let dashes = [8, 13, 18, 23];
        if text.len() != 36 || dashes.iter().any(|&at| text[at] != b'-') {
            return None;
        }
        let mut digits = [0; 32];
        let kept = text.iter().enumerate().filter(|(at, _)| !dashes.contains(at)).map(|(_, digit)| *digit);
        for (digit, kept) in digits.iter_mut().zip(kept) {
            *digit = kept;
        }
        let text = std::str::from_utf8(&digits)
            .ok()
            .filter(|text| text.bytes().all(|one| one.is_ascii_hexdigit()))?;
        u128::from_str_radix(text, 16).ok().map(Self)
    }

    /// Its text, in lower case.
    pub(crate) fn text(self) -> [u8; 36] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [b'-'; 36];
        let mut shift = 128;
        for (at, byte) in text.iter_mut().enumerate() {
            if !matches!(at, 8 | 13 | 18 | 23) {
                shift -= 4;
                *byte = DIGITS[(self.0 >> shift) as usize & 15];
            }
        }
        text
    }
}

/// Makes the deliveries of one run.
#[derive(Clone)]
pub(crate) struct Maker {
    template: Arc<Template>,
    key: hmac::Key,
    /// Distinguishes ids from those of other runs.
    run: u32,
}

struct Template {
    body: Vec<u8>,
    company: usize,
    outgoing: usize,
    record: usize,
    sequence: usize,
    /// Where `JsonData` begins and ends, as it is written inside the body.
    data: (usize, usize),
}

/// One delivery, ready to be sent.
#[derive(Debug, Clone)]
pub(crate) struct Delivery {
    /// Its `OutgoingId`.
    pub(crate) id: Id,
    /// Its `PartitionClientId`.
    pub(crate) company: Id,
    /// The exact bytes that are signed.
    pub(crate) body: Vec<u8>,
    /// The value of the signature header.
    pub(crate) signature: Signature,
}

impl Maker {
    /// For deliveries about customers, signed with `secret`.
    pub(crate) fn new(secret: &str, run: u32) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        Self { template: Arc::new(Template::new()), key, run }
    }

    /// The id of a company.
    pub(crate) fn company(&self, company: u32) -> Id {
        Id(u128::from(self.run) << 96 | 0xC0_4000_8000_u128 << 48 | u128::from(company))
    }

    /// The id of a company's delivery of this number.
    pub(crate) fn id(&self, company: u32, number: u64) -> Id {
        Id(u128::from(self.run) << 96 | u128::from(company) << 64 | u128::from(number))
    }

    /// A company's delivery of this number; the same bytes whenever it is made.
    pub(crate) fn delivery(&self, company: u32, number: u64) -> Delivery {
        let mut body = Vec::new();
        let signature = self.write(company, number, &mut body);
        Delivery { id: self.id(company, number), company: self.company(company), body, signature }
    }

    /// Writes a delivery's body over `body`; the value of the signature header.
    pub(crate) fn write(&self, company: u32, number: u64, body: &mut Vec<u8>) -> Signature {
        let template = &*self.template;
        body.clear();
        body.extend_from_slice(&template.body);
        let company_text = self.company(company).text();
        body[template.company..][..36].copy_from_slice(&company_text);
        body[template.outgoing..][..36].copy_from_slice(&self.id(company, number).text());
        // One record per company changes all the time, so that its sequence increases as at the provider.
        body[template.record..][..36].copy_from_slice(&company_text);
        let mut rest = number;
        for digit in body[template.sequence..][..SEQUENCE_WIDTH].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        let mut signature = *b"sha256=0000000000000000000000000000000000000000000000000000000000000000";
        let digits = signature[b"sha256=".len()..].chunks_exact_mut(2);
        for (digits, byte) in digits.zip(hmac::sign(&self.key, body).as_ref()) {
            digits[0] = CAPITALS[usize::from(byte >> 4)];
            digits[1] = CAPITALS[usize::from(byte & 15)];
        }
        signature
    }

    /// The `JsonData` of a delivery as text, which must be in the topic unchanged.
    pub(crate) fn data(&self, company: u32, number: u64) -> Vec<u8> {
        let mut body = Vec::new();
        self.write(company, number, &mut body);
        let (from, to) = self.template.data;
        let mut text = Vec::with_capacity(to - from);
        let mut letters = body[from..to].iter();
        while let Some(&letter) = letters.next() {
            // The template escapes nothing but quotes.
            text.push(if letter == b'\\' { *letters.next().unwrap() } else { letter });
        }
        text
    }

    /// Company and number of a delivery with this id; `None` when it is not of this run.
    pub(crate) fn made(&self, id: Id) -> Option<(u32, u64)> {
        ((id.0 >> 96) as u32 == self.run).then_some(((id.0 >> 64) as u32, id.0 as u64))
    }
}

impl Template {
    fn new() -> Self {
        let data = format!(
            "{{\"CorrelationId\":\"{RECORD}\",\"Version\":\"15/11/2026 10:20:30.1234567\",\
             \"SequenceVersion\":\"{SEQUENCE}\",\"SvcSourceInterface\":\"WebApplication\",\
             \"SvcProcessId\":\"6f1c2a34-5b6d-4e7f-8a9b-0c1d2e3f4a5b\",\"SvcSourceAction\":\"CustomerUpdate\"}}"
        );
        let data = data.replace('"', "\\\"");
        let body = format!(
            "{{\"WebhookId\":\"1d9f6d0e-52a8-4c4b-9d8e-0f4c7f1b2a3c\",\"OutgoingId\":\"{OUTGOING}\",\
             \"ConversationId\":\"7c2d8e9f-1a2b-4c3d-9e5f-6a7b8c9d0e1f\",\"TenantId\":\"tenant-of-the-oracle\",\
             \"ExtraPartitionInformation\":{{\"PartitionClientId\":\"{COMPANY}\",\"UserName\":\"Zoë Ångström\"}},\
             \"EventType\":{{\"AppName\":\"Svc\",\"Domain\":\"ACC\",\"Resource\":\"Customers\",\
             \"EventType\":\"CustomerUpdated\",\"SemanticName\":\"Svc.ACC.Customers.CustomerUpdated\"}},\
             \"Timestamp\":638987654321012345,\"JsonData\":\"{data}\",\
             \"UserIdentifier\":\"2b3c4d5e-6f70-4182-93a4-b5c6d7e8f901\"}}"
        );
        let at = |what: &str| body.find(what).unwrap();
        let from = at(&data);
        Self {
            company: at(COMPANY),
            outgoing: at(OUTGOING),
            record: at(RECORD),
            sequence: at(SEQUENCE),
            data: (from, from + data.len()),
            body: body.into_bytes(),
        }
    }
}
