//! Macros that declare enums, settings and knobs.

/// Declares enums without fields, each with the list `ALL`. The first argument is the case of their names in JSON.
macro_rules! choices {
    ($case:tt; $(
        $(#[$about:meta])*
        pub enum $name:ident { $($(#[$note:meta])* $choice:ident,)+ }
    )+) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = $case)]
        pub enum $name { $($(#[$note])* $choice,)+ }

        impl $name {
            /// All variants, in the order of the enum.
            pub const ALL: [Self; [$(stringify!($choice)),+].len()] = [$(Self::$choice),+];
        }
    )+};
}

/// Declares a struct with the type and default of each field.
macro_rules! defaults {
    (
        $(#[$about:meta])*
        pub struct $name:ident { $($(#[$note:meta])* pub $field:ident: $type:ty = $default:expr,)+ }
    ) => {
        $(#[$about])*
        pub struct $name { $($(#[$note])* pub $field: $type,)+ }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }
    };
}

/// The same for knobs, which are JSON, too.
macro_rules! knobs {
    ($(#[$about:meta])* pub struct $name:ident { $($fields:tt)+ }) => {
        defaults! {
            $(#[$about])*
            #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
            #[serde(default, deny_unknown_fields, rename_all = "camelCase")]
            pub struct $name { $($fields)+ }
        }
    };
}
