//! Settings as keyword arguments.

use crate::error::{misuse, raise};
use crate::schedule::Schedule;
use oxccl::Config;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;

/// The configuration that the environment says, changed by these: each setting by the name of its
/// variable, in small letters and without `oxccl_`.
pub(crate) fn config(settings: Option<&Bound<'_, PyDict>>) -> PyResult<Config> {
    let (mut given, mut schedule) = (BTreeMap::new(), None);
    for (name, value) in settings.into_iter().flat_map(|settings| settings.iter()) {
        let name: String = name.extract()?;
        if let Ok(made) = value.cast::<Schedule>() {
            if name != "schedule" {
                return Err(misuse(format!("{name} is no schedule")));
            }
            schedule = Some(made.get().proven());
            continue;
        }
        given.insert(format!("OXCCL_{}", name.to_uppercase()), text(&value)?);
    }
    let unknown = RefCell::new(given.clone());
    let lookup = |name: &str| {
        unknown.borrow_mut().remove(name);
        given.get(name).cloned().map(OsString::from).or_else(|| std::env::var_os(name))
    };
    let mut config = Config::from_lookup(lookup).map_err(|error| raise(&error))?;
    if schedule.is_some() {
        config.schedule = schedule;
    }
    match unknown.into_inner().into_keys().next() {
        None => Ok(config),
        Some(name) => {
            let name = name.trim_start_matches("OXCCL_").to_lowercase();
            Err(misuse(format!("there is no setting {name:?}; docs/configuration.md has all")))
        }
    }
}

/// A value as variables have it.
fn text(value: &Bound<'_, PyAny>) -> PyResult<String> {
    if value.is_none() {
        return Ok("none".into());
    }
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(if flag.is_true() { "1" } else { "0" }.into());
    }
    if let Some(seconds) = value.getattr_opt("total_seconds")? {
        return Ok(seconds.call0()?.str()?.to_string());
    }
    Ok(value.str()?.to_string())
}
