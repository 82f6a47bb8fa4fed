//! How ranks find each other, and hear of each other while they run.
//!
//! One process, as a rule that of rank 0, runs a [`Server`]; every rank, rank 0 too, connects to
//! it over TCP. The connection then stays open as the control channel: its end without a goodbye
//! is a death, which the server tells to all others, as it passes on aborts, goodbyes and the
//! pieces of [`Bootstrap::all_gather`](crate::Bootstrap::all_gather).
//!
//! # The protocol
//!
//! Every message is a frame: the bytes `OX`, the protocol version (16 bits), the length of what
//! follows (32 bits), both little-endian, then the message in postcard's encoding. A length over
//! the limit ([`MESSAGE_LIMIT_BYTES`], and 256 bytes until the secret is proven) is refused before
//! anything is allocated for it.
//!
//! 1. client: `Hello` with a nonce
//! 2. server: `Challenge` with its nonce
//! 3. client: `Proof`, the HMAC-SHA256 of both nonces under the secret
//! 4. server: `Proven`, the same with another label, once the client's is found right
//! 5. client: `Join` with rank and world; the server answers `Refused` or, once all ranks are
//!    there, `Started`
//!
//! From `Proven` on every frame has its seal behind it: 32 bytes, a keyed BLAKE3 hash of the
//! frame's number in its direction and of the frame. The keys follow from the secret and both
//! nonces. From `Started` on:
//!
//! - What ranks tell each other is said in a *realm*: that of the world, or that of a part of it,
//!   to which its ranks have come by `Open`. Each communicator has one. What follows is said among
//!   the ranks of a realm, by their numbers there; who comes late hears what it has missed.
//! - An exchange: each rank sends a `Gather`; the server puts the pieces together, and tells each
//!   rank all of them in `Gathered` messages of up to the limit. What has come is told after a
//!   moment even if some are missing, so that a rank that waits in vain knows for whom.
//! - `Ask`: the server passes it on to all ranks as `Asked`, not too often; each answers with a
//!   `Report`, which whoever asked and is on another node gets as `Reported`.
//! - The server sends a `Ping` where it has said nothing for a moment, and a rank that hears none
//!   sends one. A machine that has vanished acknowledges none, which TCP tells after a time that
//!   ranks set by `Silence`; a process that is only stopped is alive to its machine.
//!
//! A launcher holds no rank. It sends `Watch` instead of `Join`, and `Ended` for a rank of its that
//! has failed: ranks that wait for that one get the cause at once, also if it had not joined. All
//! launchers get, as `Failed`, what happened first and how ranks of others ended then, also what
//! was before they came. `Done` is a launcher's goodbye; if it ends without, its ranks have ended
//! with it.
//!
//! # Succession
//!
//! Ranks say in `Join` where they listen, and are told in `Started` where others do. When the
//! server has ended, they come to the first of them that is there with `Rejoin`, once the secret is
//! proven, and say again what others may not have heard: `Open`, pieces, goodbyes, and what they
//! have heard of others (`Left`, `Abort`). See `succession` and `journal`.
//!
//! # Strangers
//!
//! Whoever cannot prove the secret is told so and dropped, and the ranks that can do not notice.
//! The seals let nobody on the way change, repeat or leave out a message; nothing is encrypted, so
//! a network on which others listen needs a tunnel.
//!
//! A secret that somebody has thought of can be guessed by who has anything that follows from it.
//! The client proves itself first, so whoever only connects gets a random nonce, and can try one
//! guess a connection. One of the two has to go first: who listens at the server's address in its
//! place, or reads what passes, has a proof, and can try guesses without asking anybody. Each then
//! costs what deriving a secret from bytes that somebody gave does, 16 MiB and some 50 ms; against
//! a random secret of 128 bits that is hopeless. The secrets of unique ids are 256 random bits, and
//! are taken as they are.
//!
//! Connections that have not proven the secret have two seconds, and room for so many only, by the
//! rules of `door`: thousands of them keep no job from starting.
//!
//! `state` is the server's side of it without sockets or clocks; `server`, `joining`, `client` and
//! `launcher_channel` do the reading and writing.

mod auth;
mod client;
mod connection;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzz;
mod gathering;
mod heard;
mod joining;
mod journal;
mod launcher_channel;
mod launchers;
mod line;
mod message;
mod outlet;
mod reader;
mod realm;
mod server;
mod state;
mod succession;

pub use auth::Secret;
pub use auth::random_bytes;
pub use client::{ControlChannel, Split};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use fuzz::{from_ranks, from_server};
pub use launcher_channel::LauncherChannel;
pub(crate) use message::Piece;
pub use message::{MESSAGE_LIMIT_BYTES, PIECE_LIMIT_BYTES, PROTOCOL_VERSION};
pub(crate) use server::BACKLOG;
pub use server::Server;
pub use state::WORLD_LIMIT;
