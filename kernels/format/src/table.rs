//! The table that the format is told in: Rust's items, of which each also has a description for
//! other languages.
//!
//! ```text
//! table! {
//!     /// What it is.
//!     pub const NAME: u32 = 1;
//!
//!     /// What it is.
//!     #[repr(u8)]
//!     #[derive(Clone, Copy)]
//!     pub enum Name {
//!         /// What it is.
//!         Variant = 0,
//!     }
//!
//!     /// What it is.
//!     #[repr(C)]
//!     #[derive(Clone, Copy)]
//!     pub struct Name {
//!         /// What it is.
//!         pub field: u64,
//!     }
//! }
//! ```
//!
//! leaves these items as they are, gives each enum the constant `ALL`, and makes the function
//! `items`, which describes them all.

/// What a table has a row for.
pub(crate) enum Item {
    Constant {
        name: &'static str,
        rust_type: &'static str,
        value: u64,
        docs: &'static [&'static str],
    },
    Enum {
        name: &'static str,
        len_bytes: usize,
        variants: Vec<Variant>,
        docs: &'static [&'static str],
    },
    Struct {
        name: &'static str,
        len_bytes: usize,
        align: usize,
        fields: Vec<Field>,
        docs: &'static [&'static str],
    },
}

pub(crate) struct Variant {
    pub(crate) name: &'static str,
    pub(crate) value: u32,
    pub(crate) docs: &'static [&'static str],
}

pub(crate) struct Field {
    pub(crate) name: &'static str,
    /// In C++, with its type.
    pub(crate) declaration: String,
    pub(crate) offset: usize,
    pub(crate) docs: &'static [&'static str],
}

macro_rules! table {
    ($($rows:tt)*) => {
        table_rows! { [] $($rows)* }
    };
}

/// The rows of a [`table!`] one by one. In brackets: what describes those before.
macro_rules! table_rows {
    ([$($items:tt)*]) => {
        pub(crate) fn items() -> Vec<$crate::table::Item> {
            vec![$($items)*]
        }
    };
    (
        [$($items:tt)*]
        $(#[doc = $docs:literal])*
        pub const $name:ident: $type:ident = $value:expr;
        $($rest:tt)*
    ) => {
        $(#[doc = $docs])*
        pub const $name: $type = $value;

        table_rows! {
            [$($items)* $crate::table::Item::Constant {
                name: stringify!($name),
                rust_type: stringify!($type),
                value: $name as u64,
                docs: &[$($docs),*],
            },]
            $($rest)*
        }
    };
    (
        [$($items:tt)*]
        $(#[doc = $docs:literal])*
        #[repr($repr:ident)]
        #[derive($($derived:ident),*)]
        pub enum $name:ident {
            $($(#[doc = $variant_docs:literal])* $variant:ident = $value:literal,)*
        }
        $($rest:tt)*
    ) => {
        $(#[doc = $docs])*
        #[repr($repr)]
        #[derive($($derived),*)]
        pub enum $name {
            $($(#[doc = $variant_docs])* $variant = $value,)*
        }

        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: [$name; [$($value),*].len()] = [$($name::$variant),*];
        }

        table_rows! {
            [$($items)* $crate::table::Item::Enum {
                name: stringify!($name),
                len_bytes: size_of::<$name>(),
                variants: vec![$($crate::table::Variant {
                    name: stringify!($variant),
                    value: $name::$variant as u32,
                    docs: &[$($variant_docs),*],
                }),*],
                docs: &[$($docs),*],
            },]
            $($rest)*
        }
    };
    (
        [$($items:tt)*]
        $(#[doc = $docs:literal])*
        #[repr(C $(, align($align:literal))?)]
        #[derive($($derived:ident),*)]
        pub struct $name:ident {
            $($(#[doc = $field_docs:literal])* pub $field:ident: $type:ty,)*
        }
        $($rest:tt)*
    ) => {
        $(#[doc = $docs])*
        #[repr(C $(, align($align))?)]
        #[derive($($derived),*)]
        pub struct $name {
            $($(#[doc = $field_docs])* pub $field: $type,)*
        }

        impl $crate::cpp::InCpp for $name {
            fn declared(name: &str) -> String {
                format!("{} {name}", stringify!($name))
            }
        }

        table_rows! {
            [$($items)* $crate::table::Item::Struct {
                name: stringify!($name),
                len_bytes: size_of::<$name>(),
                align: align_of::<$name>(),
                fields: vec![$($crate::table::Field {
                    name: stringify!($field),
                    declaration: <$type as $crate::cpp::InCpp>::declared(stringify!($field)),
                    offset: core::mem::offset_of!($name, $field),
                    docs: &[$($field_docs),*],
                }),*],
                docs: &[$($docs),*],
            },]
            $($rest)*
        }
    };
}

pub(crate) use {table, table_rows};
