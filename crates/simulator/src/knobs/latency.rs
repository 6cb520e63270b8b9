//! How long something takes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::random::Random;

/// How long something takes, in milliseconds. As JSON one object for all kinds, so that a merge patch leads from any to any other;
/// it leaves the members of the former kind behind, which are therefore ignored: `{"kind": "none"}`,
/// `{"kind": "fixed", "milliseconds": 5}`, `{"kind": "uniform", "from": 1, "to": 9}`,
/// `{"kind": "logNormal", "median": 5, "p99": 100}`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Latency {
    /// No longer than it must.
    #[default]
    None,
    /// Always this.
    Fixed {
        /// How long.
        milliseconds: f64,
    },
    /// Evenly between the two.
    Uniform {
        /// The shortest.
        from: f64,
        /// The longest.
        to: f64,
    },
    /// Log-normal by median and 99th percentile: mostly quick, sometimes very slow.
    LogNormal {
        /// Half of all take less.
        median: f64,
        /// One in a hundred takes more.
        p99: f64,
    },
}

impl Latency {
    /// How long this one takes: never negative, at most an hour, whatever the knob says.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
    pub fn sample(&self, random: &mut Random) -> Duration {
        /// An hour in milliseconds.
        const MAX_MILLISECONDS: f64 = 3_600_000.0;
        /// Where 99 % of a standard normal distribution lie below.
        const NORMAL_P99: f64 = 2.326_347_874_040_841;
        let milliseconds = match *self {
            Self::None => return Duration::ZERO,
            Self::Fixed { milliseconds } => milliseconds,
            Self::Uniform { from, to } => from + (to - from) * random.unit(),
            Self::LogNormal { median, p99 } => {
                let spread = (p99 / median).ln().max(0.0) / NORMAL_P99;
                // Box and Muller's transform; 1 - unit is never 0, so the logarithm is finite.
                let radius = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
                let normal = radius * (std::f64::consts::TAU * random.unit()).cos();
                median * (spread * normal).exp()
            }
        };
        // What is no number becomes 0 by the cast.
        Duration::from_micros((milliseconds.clamp(0.0, MAX_MILLISECONDS) * 1_000.0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_normal_latency_has_its_median_and_its_99th_percentile() {
        let latency = Latency::LogNormal { median: 20.0, p99: 400.0 };
        let mut random = Random::new(7, 1);

        let mut samples: Vec<Duration> = (0..20_000).map(|_| latency.sample(&mut random)).collect();
        samples.sort_unstable();

        let (median, p99) = (samples[10_000].as_secs_f64() * 1e3, samples[19_800].as_secs_f64() * 1e3);
        assert!((18.0..22.0).contains(&median), "{median}");
        assert!((330.0..480.0).contains(&p99), "{p99}");
    }

    #[test]
    fn a_uniform_latency_stays_between_its_ends_whichever_comes_first() {
        let mut random = Random::new(7, 2);

        for latency in [Latency::Uniform { from: 5.0, to: 9.0 }, Latency::Uniform { from: 9.0, to: 5.0 }] {
            for _ in 0..1_000 {
                let sample = latency.sample(&mut random);
                assert!(
                    (Duration::from_millis(5)..=Duration::from_millis(9)).contains(&sample),
                    "{sample:?}"
                );
            }
        }
    }

    #[test]
    fn a_latency_that_makes_no_sense_is_none_or_an_hour() {
        let mut random = Random::new(7, 3);

        for (latency, expected) in [
            (Latency::None, 0),
            (Latency::Fixed { milliseconds: 1.5 }, 1_500),
            (Latency::Fixed { milliseconds: -3.0 }, 0),
            (Latency::Fixed { milliseconds: f64::NAN }, 0),
            (Latency::Fixed { milliseconds: f64::INFINITY }, 3_600_000_000),
            (Latency::LogNormal { median: 0.0, p99: 0.0 }, 0),
            (Latency::LogNormal { median: -1.0, p99: 5.0 }, 0),
            (Latency::LogNormal { median: 3.0, p99: 1.0 }, 3_000),
        ] {
            assert_eq!(latency.sample(&mut random), Duration::from_micros(expected), "{latency:?}");
        }
    }
}
