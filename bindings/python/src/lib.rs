//! The extension module of Python's package `oxccl`: a thin layer over the crate of that name, in
//! which arrays are of any library and types are known at run time. What Python sees of it,
//! `oxccl/_oxccl.pyi` says.

mod allocator;
mod array;
mod buffer;
mod communicator;
mod config;
mod element;
mod error;
mod registration;
mod request;
mod schedule;
mod starting;
mod stream;
mod unique_id;
mod wait;

use pyo3::prelude::*;

#[pymodule]
fn _oxccl(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Error", py.get_type::<error::Error>())?;
    module.add("UsageError", py.get_type::<error::UsageError>())?;
    module.add_class::<allocator::Allocator>()?;
    module.add_class::<buffer::Buffer>()?;
    module.add_class::<communicator::Communicator>()?;
    module.add_class::<communicator::Group>()?;
    module.add_class::<registration::Registration>()?;
    module.add_class::<schedule::Schedule>()?;
    module.add_class::<starting::Starting>()?;
    module.add_class::<stream::Stream>()?;
    module.add_class::<stream::Work>()?;
    module.add_class::<unique_id::UniqueId>()
}
