//! What stands for conditions in a build without the feature `emulation`.

use crate::Region;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// How links behave, beyond what the network does: nothing, since the feature `emulation` is not
/// built in.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Conditions(());

impl Conditions {
    /// The most bytes of one write: no limit.
    pub fn write_limit_bytes(&self) -> Option<usize> {
        None
    }
}

/// Conditions that this build cannot make.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} needs the feature `emulation`, which this program is built without: use the oxccl command, or turn the feature on in \
     the program's dependency on oxccl"
)]
pub struct BadConditions(String);

impl FromStr for Conditions {
    type Err = BadConditions;

    fn from_str(text: &str) -> Result<Conditions, BadConditions> {
        if text.trim().is_empty() {
            Ok(Conditions(()))
        } else {
            Err(BadConditions(text.to_owned()))
        }
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

/// What ranks of a node would share to keep to a bandwidth.
#[derive(Clone, Debug)]
pub struct Egress;

impl Egress {
    /// Nothing of the region is used.
    pub fn new(_region: Arc<Region>, _offset: usize) -> Egress {
        Egress
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_name_the_feature_that_they_need() {
        assert_eq!("".parse(), Ok(Conditions(())));
        let refused = "10Gbit,50us".parse::<Conditions>().unwrap_err().to_string();
        assert!(refused.contains("\"10Gbit,50us\" needs the feature `emulation`"), "{refused}");
    }
}
