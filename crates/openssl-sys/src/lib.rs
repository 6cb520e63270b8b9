//! OpenSSL, which librdkafka is linked with. The build script says which one.
//!
//! It replaces the crate `openssl-sys`, where a feature decides whether OpenSSL is built or found. Here the build decides.

#![allow(unsafe_code, reason = "it calls a function of C")]

use std::{
    ffi::{c_int, c_void},
    ptr,
    sync::Once,
};

/// Error messages that say more than a number.
const LOAD_SSL_STRINGS: u64 = 0x0020_0000;
/// OpenSSL stays usable until the process is gone.
const NO_ATEXIT: u64 = 0x0008_0000;

unsafe extern "C" {
    fn OPENSSL_init_ssl(options: u64, settings: *const c_void) -> c_int;
}

/// Initializes OpenSSL, and keeps it from taking itself down when `main` returns. May be called often.
pub fn init() {
    static DONE: Once = Once::new();

    DONE.call_once(|| {
        // SAFETY: any thread may call it at any time, and a null pointer selects the default settings.
        let done = unsafe { OPENSSL_init_ssl(LOAD_SSL_STRINGS | NO_ATEXIT, ptr::null()) };
        assert_eq!(done, 1, "OpenSSL cannot be initialized");
    });
}
