//! The provider client: logins and tokens ([`auth`]), and all requests ([`api`]).
//!
//! ```text
//! auth: login, grants, tokens ──▶ api: circuit, token, budget, request, verdict, typed answer
//! ```
//!
//! [`Provider`], [`Transport`] and [`OAuth`] are a connector's settings; [`HostPolicy`] restricts the hosts in them.

pub mod api;
pub mod auth;
mod hosts;
mod settings;

pub(crate) use hosts::is_private;
pub use hosts::{HostPolicy, HostRefused, is_host_pattern};
pub use settings::{ANY_AUDIENCE, AreaLogin, AreaLogins, OAuth, Provider, Transport, is_local};
