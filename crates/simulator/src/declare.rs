//! Macros by which choices, settings and knobs are declared in one place each.

/// Declares enums of plain names, with the list of all of them. The first argument is how JSON spells the names.
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
            /// All of them, in the order of the enum.
            pub const ALL: [Self; [$(stringify!($choice)),+].len()] = [$(Self::$choice),+];
        }
    )+};
}

/// Declares a struct, each of its fields with its type and its default.
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

/// The same for knobs, which are also JSON.
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
