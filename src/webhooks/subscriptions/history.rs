//! Lines of a subscription's history that code looks for later.
//!
//! **Stored in the state topic and matched later: never reword.** A worker of another version has written some of them. Lines that no
//! code matches are where they are written.

/// The provider says that it is active.
pub(super) const ACTIVE: &str = "active";
/// The provider has answered the call that enables it.
pub(super) const ENABLED: &str = "enabled";
/// Its address is changed. Only a subscription that has been active is moved.
pub(super) const MOVED: &str = "moved to another address";
/// The provider has answered the call that changes its address.
pub(super) const MOVE_ANSWERED: &str = "the move was answered";
/// The subscribe call had no answer. It may exist at the provider.
pub(super) const GIVEN_UP: &str = "given up: nothing was heard of it";

/// The provider refused to make it.
pub(super) const REFUSED: &str = "the provider refused it";
/// A hook that the provider accepted, and whose echo it did not accept.
pub(super) const NOT_ECHOED: &str = "it is not listed: the receiver's echo was not accepted";
/// A hook that the provider lists, and for whose echo it never asked.
pub(super) const NOT_ASKED: &str = "no echo was asked for at its address in time";
/// A hook whose subscribe call had no answer, and which the provider does not list.
pub(super) const NOT_LISTED: &str = "given up: it is not listed";

/// Lines that only calls leave which change something.
pub(in crate::webhooks) const LEFT_BY_CHANGES: [&str; 3] = [ENABLED, MOVED, MOVE_ANSWERED];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_lines_keep_their_words() {
        let lines = [
            (ACTIVE, "active"),
            (ENABLED, "enabled"),
            (MOVED, "moved to another address"),
            (MOVE_ANSWERED, "the move was answered"),
            (GIVEN_UP, "given up: nothing was heard of it"),
            (REFUSED, "the provider refused it"),
            (NOT_ECHOED, "it is not listed: the receiver's echo was not accepted"),
            (NOT_ASKED, "no echo was asked for at its address in time"),
            (NOT_LISTED, "given up: it is not listed"),
        ];

        for (line, stored) in lines {
            assert_eq!(line, stored, "workers of earlier versions have stored it");
        }
    }
}
