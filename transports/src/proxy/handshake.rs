//! How two ranks make sure of each other before a byte of a wire is read.
//!
//! 1. dialler: a greeting: magic, version, a nonce
//! 2. acceptor: the same, and its proof: an HMAC under the job's secret over both nonces
//! 3. dialler: who it is, whom it wants, which socket of how many this is, the fabric; and its proof over all of that
//! 4. acceptor: one byte, that it has taken the socket
//!
//! Everything has a fixed length, so there is no length to trust before the secret is proven. As with the rendezvous, the
//! secret keeps strangers out; what follows is not encrypted.

use std::io;
use std::net::TcpStream;
use std::time::Instant;

use super::socket::Socket;
use super::wire::WireError;
use crate::Secret;
use crate::rendezvous::random_bytes;

/// Version of what wires say. Ranks of different versions don't meet.
const VERSION: u16 = 1;

const MAGIC: [u8; 4] = *b"OXLK";
const GREETING_BYTES: usize = 4 + 2 + 32;
const PROOF_BYTES: usize = 32;
const CLAIM_BYTES: usize = 4 + 4 + 2 + 2 + 8;
const TAKEN: u8 = 1;

/// What the dialler says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) dialler: u32,
    pub(super) acceptor: u32,
    /// Which socket of the wire.
    pub(super) index: u16,
    /// How many it has.
    pub(super) count: u16,
    /// The fabric's name, padded with zeros.
    pub(super) fabric: [u8; 8],
}

impl Claim {
    pub(super) fn encode(&self) -> [u8; CLAIM_BYTES] {
        let mut bytes = [0; CLAIM_BYTES];
        bytes[..4].copy_from_slice(&self.dialler.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.acceptor.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.index.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.count.to_le_bytes());
        bytes[12..].copy_from_slice(&self.fabric);
        bytes
    }

    pub(super) fn decode(bytes: &[u8; CLAIM_BYTES]) -> Claim {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let (index, count) = (word(8) as u16, (word(8) >> 16) as u16);
        let mut fabric = [0; 8];
        fabric.copy_from_slice(&bytes[12..]);
        Claim { dialler: word(0), acceptor: word(4), index, count, fabric }
    }
}

/// The dialler's side.
pub(super) fn dial(
    stream: TcpStream,
    secret: &Secret,
    claim: &Claim,
    deadline: Instant,
) -> Result<Socket, WireError> {
    let mut socket = Socket::new(stream);
    let mine = greeting()?;
    socket.write(&mine, deadline)?;
    let theirs = greeted(&mut socket, deadline)?;
    let mut proof = [0; PROOF_BYTES];
    socket.read(&mut proof, deadline)?;
    if !secret.verify("link acceptor", &[&mine, &theirs], &proof) {
        let detail = "it does not hold this job's secret: another program listens on its port";
        return Err(WireError::Unfit(detail.into()));
    }
    let claimed = claim.encode();
    let proof = secret.prove("link dialler", &[&mine, &theirs, &claimed]);
    socket.write(&[&claimed[..], &proof].concat(), deadline)?;
    let mut answer = [0];
    match socket.read(&mut answer, deadline) {
        Ok(()) if answer[0] == TAKEN => Ok(socket),
        Err(WireError::Io { doing, source }) => Err(WireError::Io { doing, source }),
        _ => Err(WireError::Unfit(
            "it has not taken the connection: are all ranks configured alike?".into(),
        )),
    }
}

/// The acceptor's side, up to the claim, which is proven. `take` says whether it is wanted.
pub(super) fn accept(
    stream: TcpStream,
    secret: &Secret,
    take: impl FnOnce(&Claim) -> bool,
    deadline: Instant,
) -> Result<(Socket, Claim), WireError> {
    let mut socket = Socket::new(stream);
    let theirs = greeted(&mut socket, deadline)?;
    let mine = greeting()?;
    let proof = secret.prove("link acceptor", &[&theirs, &mine]);
    socket.write(&[&mine[..], &proof].concat(), deadline)?;
    let (mut claimed, mut proof) = ([0; CLAIM_BYTES], [0; PROOF_BYTES]);
    socket.read(&mut claimed, deadline)?;
    socket.read(&mut proof, deadline)?;
    if !secret.verify("link dialler", &[&theirs, &mine, &claimed], &proof) {
        return Err(WireError::Unfit("it does not hold this job's secret".into()));
    }
    let claim = Claim::decode(&claimed);
    if !take(&claim) {
        return Err(WireError::Unfit(format!("it wants what this rank has not: {claim:?}")));
    }
    socket.write(&[TAKEN], deadline)?;
    Ok((socket, claim))
}

pub(super) fn greeting() -> Result<[u8; GREETING_BYTES], WireError> {
    let nonce: [u8; 32] = random_bytes().map_err(|error| {
        WireError::io("reading random numbers")(io::Error::other(error.to_string()))
    })?;
    let mut bytes = [0; GREETING_BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[6..].copy_from_slice(&nonce);
    Ok(bytes)
}

fn greeted(socket: &mut Socket, deadline: Instant) -> Result<[u8; GREETING_BYTES], WireError> {
    let mut bytes = [0; GREETING_BYTES];
    socket.read(&mut bytes, deadline)?;
    if bytes[..4] != MAGIC {
        return Err(WireError::Protocol("no greeting".into()));
    }
    let theirs = u16::from_le_bytes([bytes[4], bytes[5]]);
    if theirs != VERSION {
        return Err(WireError::Unfit(format!(
            "it speaks version {theirs} of the links' protocol, this rank {VERSION}: run the same \
             release of oxccl on every rank"
        )));
    }
    Ok(bytes)
}
