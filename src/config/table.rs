//! How a setting is described: once, in `settings.rs`, by the macro that is defined here.

use super::Config;
use crate::error::Error;
use std::ffi::OsString;

/// One setting: a field of [`Config`] or of [`Advanced`](super::Advanced), and all that is known of
/// it.
pub(super) struct Setting {
    pub(super) field: &'static str,
    /// Its documentation, line by line.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "of which a test makes docs/configuration.md")
    )]
    pub(super) text: &'static [&'static str],
    /// What holds where the default is that nothing is said.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "of which a test makes docs/configuration.md")
    )]
    pub(super) unset: &'static str,
    /// Its value, as ranks compare it and logs have it.
    pub(super) shown: fn(&Config) -> String,
    pub(super) variables: &'static [Variable],
    pub(super) ranks: Ranks,
    /// What no type can say of it, if anything.
    pub(super) checks: &'static [Check],
}

/// Finds what is wrong with a value.
pub(super) type Check = fn(&Config) -> Result<(), String>;

/// A variable of the environment.
pub(super) struct Variable {
    pub(super) name: &'static str,
    /// What it takes, to be read behind "is not".
    pub(super) accepts: &'static str,
    pub(super) read: fn(&mut Config, &str) -> Result<(), Refused>,
}

/// Why a text is no value.
pub(super) enum Refused {
    /// It is not what the variable accepts.
    NotAccepted,
    /// For this reason.
    Because(String),
}

/// What ranks do about a setting when they start.
#[derive(Clone, Copy)]
pub(super) enum Ranks {
    MayDiffer,
    /// All have the same value.
    Alike,
    /// All have the same in this respect.
    AlikeIn(fn(&Config) -> String),
}

impl Setting {
    /// Takes the values of its variables.
    pub(super) fn read(
        &self,
        config: &mut Config,
        lookup: &impl Fn(&str) -> Option<OsString>,
    ) -> Result<(), Error> {
        for variable in self.variables {
            variable.read(config, lookup)?;
        }
        Ok(())
    }

    pub(super) fn check(&self, config: &Config) -> Result<(), Error> {
        let wrong = |detail| Error::Config { variable: self.field, detail };
        self.checks.iter().try_for_each(|check| check(config).map_err(wrong))
    }

    /// What all ranks must have alike, if anything.
    pub(super) fn compared(&self, config: &Config) -> Option<String> {
        match self.ranks {
            Ranks::MayDiffer => None,
            Ranks::Alike => Some((self.shown)(config)),
            Ranks::AlikeIn(respect) => Some(respect(config)),
        }
    }
}

impl Variable {
    fn read(
        &self,
        config: &mut Config,
        lookup: &impl Fn(&str) -> Option<OsString>,
    ) -> Result<(), Error> {
        let wrong = |detail| Error::Config { variable: self.name, detail };
        let Some(value) = lookup(self.name) else { return Ok(()) };
        let text = value.into_string().map_err(|value| wrong(format!("{value:?} is not UTF-8")))?;
        (self.read)(config, &text).map_err(|refused| match refused {
            Refused::NotAccepted => wrong(format!("{text:?} is not {}", self.accepts)),
            Refused::Because(detail) => wrong(detail),
        })
    }
}

/// Defines a struct of settings, its defaults, and the list that describes them. For each setting:
///
/// ```text
/// /// Documentation.
/// field: Type = default {
///     "VARIABLE" => field, "what it accepts", parser;   any number of them
///     unset "what holds by default";                     where the value does not say it
///     ranks Alike;                                       how ranks compare it
///     check |config| ...;                                what no type can say
/// }
/// ```
macro_rules! settings {
    (
        $(#[$about:meta])*
        $name:ident, of which $at:expr, in $config:ident, listed in $list:ident;
        $(
            $(#[doc = $text:literal])+
            $(#[doc($hidden:ident)])?
            $field:ident: $type:ty = $default:expr, {
                $($variable:literal => $($place:ident).+, $accepts:literal, $parse:expr;)*
                $(unset $unset:literal;)?
                ranks $ranks:expr;
                $(check $check:expr;)?
            }
        )+
        $(besides {
            $(#[$inner_about:meta])*
            $inner:ident: $inner_type:ty
        })?
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $(
                $(#[doc = $text])+
                $(#[doc = concat!("\n\n`", $variable, "`: ", $accepts, ".")])*
                $(#[doc = concat!("\n\nDefault: ", $unset, ".")])?
                $(#[doc($hidden)])?
                pub $field: $type,
            )+
            $(
                $(#[$inner_about])*
                pub $inner: $inner_type,
            )?
        }

        impl Default for $name {
            fn default() -> $name {
                $name {
                    $($field: $default,)+
                    $($inner: <$inner_type>::default(),)?
                }
            }
        }

        pub(super) const $list: &[Setting] = &[$(Setting {
            field: stringify!($field),
            text: &[$($text),+],
            unset: concat!($($unset)?),
            shown: |$config| $at.$field.shown(),
            variables: &[$(Variable {
                name: $variable,
                accepts: $accepts,
                read: |$config, text| {
                    $at.$($place).+ = $parse(text)?.into();
                    Ok(())
                },
            }),*],
            ranks: $ranks,
            checks: &[$($check)?],
        }),+];
    };
}

pub(super) use settings;
