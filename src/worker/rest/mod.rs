//! Kafka Connect's REST API over the [`super::herder`].
