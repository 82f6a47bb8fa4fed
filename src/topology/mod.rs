//! Where ranks are.

mod placement;

pub use placement::Placement;
