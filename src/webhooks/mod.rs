//! Webhooks in: who sent it, what it says, and where it goes. Nothing acknowledged is lost, every delivery is answered in time.
//!
//! ```text
//! listener ─▶ route ─▶ body (bounded) ─▶ HMAC over its bytes ─▶ Delivery ─▶ parts by lane ─▶ intake ─▶ Kafka or spool ─▶ 200
//!               └ 404                      └ 401, empty                                        └ neither in time ─▶ 503
//! ```

pub mod dead_letter;
pub mod delivery;
pub mod ingest;
pub mod intake;
pub mod plugin;
pub mod receiver;
pub mod receivers;
pub mod reconciler;
pub mod signature;
pub mod subscriptions;
