//! Enums whose variants have names.

/// Declares an enum with a name per variant, `ALL` variants in order, and `name()`.
macro_rules! named {
    ($(#[$meta:meta])* pub enum $type:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        pub enum $type {
            $($(#[$doc])* $variant,)+
        }

        impl $type {
            /// Every variant, in order.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The name in records, settings, metrics and messages.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

/// Implements `Display` with `name()`.
macro_rules! shown_as_name {
    ($($type:ty),+) => {$(
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    )+};
}

pub(super) use {named, shown_as_name};
