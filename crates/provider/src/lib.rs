//! The only crate that calls the provider: who we are there ([`auth`]), and every request ([`api`]).
//!
//! ```text
//! auth: login, grants, tokens ──▶ api: circuit, token, budget, request, verdict, typed answer
//! ```
//!
//! [`Provider`], [`Transport`] and [`OAuth`] are what a connector configures; a [`HostPolicy`] says which hosts it may name.

pub mod api;
pub mod auth;
mod hosts;
mod settings;

pub use hosts::{HostPolicy, HostRefused, is_host_pattern, is_private};
pub use settings::{ANY_AUDIENCE, OAuth, Provider, Transport, is_local};
