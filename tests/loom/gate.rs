//! Model checks of what the communicator's threads share; run by `tools/loom`. The models are
//! beside the code.
#![cfg(loom)]

#[path = "../../src/gate.rs"]
mod gate;
