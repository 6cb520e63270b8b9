//! Lost time: a busy machine loses some, and yet every limit ends.

use std::collections::VecDeque;
use std::future::pending;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::lost;

crate::tests! {
    plain time_is_lost_while_every_core_is_busy;
    plain a_limit_ends_even_if_all_time_is_lost;
    plain pressure_is_parsed_and_interpolated;
}

/// How long the cores are kept busy.
const BUSY: Duration = Duration::from_secs(1);
/// Less than a machine loses in that time if every core has two threads to run.
const LEAST_LOST: Duration = Duration::from_millis(300);

async fn time_is_lost_while_every_core_is_busy() {
    if lost::pressure().is_none() {
        println!("lost time: skipped, this kernel has no /proc/pressure/cpu");
        return;
    }
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let began = Instant::now();
    let spin = move || {
        while began.elapsed() < BUSY {
            std::hint::spin_loop();
        }
    };
    let threads: Vec<_> = (0..2 * cores).map(|_| thread::spawn(spin)).collect();
    let joining = move || threads.into_iter().for_each(|one| one.join().unwrap());
    tokio::task::spawn_blocking(joining).await.unwrap();

    let lost = lost::between(began, Instant::now());

    println!("lost time: {lost:?} of {:?} on {cores} busy cores", began.elapsed());
    assert!(lost > LEAST_LOST, "{lost:?} of {:?}", began.elapsed());
}

async fn a_limit_ends_even_if_all_time_is_lost() {
    let second = Duration::from_secs(1);

    assert_eq!(lost::counted(10 * second, Duration::ZERO), 10 * second);
    assert_eq!(lost::counted(10 * second, 4 * second), 6 * second);
    assert_eq!(lost::counted(10 * second, 10 * second), second);
    assert_eq!(lost::counted(lost::longest(second), lost::longest(second)), second);
    assert_eq!(lost::timeout(Duration::from_millis(20), pending::<()>()).await, None);
    assert_eq!(lost::timeout(second, async { 7 }).await, Some(7));
}

async fn pressure_is_parsed_and_interpolated() {
    let text = "some avg10=5.07 avg60=3.55 avg300=5.16 total=5516054050\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n";
    assert_eq!(lost::parse_pressure(text), Some(Duration::from_micros(5_516_054_050)));
    assert_eq!(lost::parse_pressure("full avg10=0.00 total=3\n"), None);

    let (start, milli) = (Instant::now(), Duration::from_millis(1));
    let mut samples = VecDeque::new();
    assert_eq!(lost::pressure_at(&samples, start), Duration::ZERO);
    samples.extend([(start + 100 * milli, 40 * milli), (start + 200 * milli, 80 * milli)]);
    for (moment, expected) in [(0_u32, 40_u32), (100, 40), (150, 60), (200, 80), (900, 80)] {
        let found = lost::pressure_at(&samples, start + moment * milli);
        assert!(found.abs_diff(expected * milli) < milli, "{found:?} at {moment} ms");
    }
}
