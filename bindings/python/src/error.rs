//! Errors, as exceptions.

use pyo3::create_exception;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

create_exception!(
    oxccl,
    Error,
    PyRuntimeError,
    "Why a call did not do what was asked.\n\n\
     `ranks` are those it names, first the one that is most likely at fault; `fatal` says whether \
     the communicator has ended."
);
create_exception!(
    oxccl,
    UsageError,
    Error,
    "The caller is mistaken, as this rank alone can see. Nothing has been called."
);

/// The exception for an error of the runtime.
pub(crate) fn raise(error: &oxccl::Error) -> PyErr {
    let (ranks, is_fatal, text) = (error.ranks(), error.is_fatal(), error.to_string());
    let exception =
        if error.is_misuse() { UsageError::new_err(text) } else { Error::new_err(text) };
    Python::attach(|py| {
        let value = exception.value(py);
        value.setattr("ranks", ranks)?;
        value.setattr("fatal", is_fatal)
    })
    .err()
    .unwrap_or(exception)
}

/// The exception for a mistake of the caller's that is seen before the runtime is asked.
pub(crate) fn misuse(text: impl Into<String>) -> PyErr {
    let exception = UsageError::new_err(text.into());
    Python::attach(|py| {
        let value = exception.value(py);
        value.setattr("ranks", Vec::<usize>::new())?;
        value.setattr("fatal", false)
    })
    .err()
    .unwrap_or(exception)
}
