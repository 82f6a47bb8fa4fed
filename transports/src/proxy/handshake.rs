//! How two ranks make sure of each other before a byte of a wire is read.
//!
//! 1. dialler: a greeting: magic, version, a nonce
//! 2. acceptor: the same
//! 3. dialler: who it is, whom it wants, which socket of how many this is, the fabric; and its
//!    proof: an HMAC under the job's secret over both greetings and that
//! 4. acceptor: whether it takes the socket, and its own proof over all of it
//!
//! Everything has a fixed length, so there is no length to trust before the secret is proven. As
//! with the rendezvous, whoever connects proves itself first: a stranger that connects gets nothing
//! out that follows from the secret, and holds no thread.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use super::socket::Socket;
use super::wire::WireError;
use crate::Secret;
use crate::rendezvous::random_bytes;
use crate::seal::{Seal, Seals};

/// Version of what wires say. Ranks of different versions don't meet.
const VERSION: u16 = 2;

const MAGIC: [u8; 4] = *b"OXLK";
const GREETING_BYTES: usize = 4 + 2 + 32;
const PROOF_BYTES: usize = 32;
const CLAIM_BYTES: usize = 4 + 4 + 2 + 2 + 8;
/// All that a dialler says.
const DIALLER_BYTES: usize = GREETING_BYTES + CLAIM_BYTES + PROOF_BYTES;
const ANSWER_BYTES: usize = 1 + PROOF_BYTES;

// The acceptor's answers. Only the first two come with a proof.
const TAKEN: u8 = 1;
const REFUSED: u8 = 2;
const WRONG_SECRET: u8 = 3;

type Greeting = [u8; GREETING_BYTES];

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

/// What both have said before the answer.
struct Said {
    dialler: Greeting,
    acceptor: Greeting,
    claim: [u8; CLAIM_BYTES],
}

impl Said {
    fn parts(&self) -> [&[u8]; 3] {
        [&self.dialler, &self.acceptor, &self.claim]
    }

    fn answer(&self, secret: &Secret, answer: u8) -> [u8; PROOF_BYTES] {
        let [dialler, acceptor, claim] = self.parts();
        secret.prove("link acceptor", &[dialler, acceptor, claim, &[answer]])
    }

    /// What seals the socket, at the dialler's end.
    fn seals(&self, secret: &Secret) -> Seals {
        let seal = |label| Seal::new(secret, label, &self.parts());
        Seals { sending: seal("link to acceptor"), receiving: seal("link to dialler") }
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
    let dialler = greeting()?;
    socket.write(&dialler, deadline)?;
    let mut acceptor = [0; GREETING_BYTES];
    socket.read(&mut acceptor, deadline)?;
    check(&acceptor)?;
    let said = Said { dialler, acceptor, claim: claim.encode() };
    let proof = secret.prove("link dialler", &said.parts());
    socket.write(&[&said.claim[..], &proof].concat(), deadline)?;
    let mut answer = [0; ANSWER_BYTES];
    socket.read(&mut answer, deadline)?;
    let mut proof = [0; PROOF_BYTES];
    proof.copy_from_slice(&answer[1..]);
    let [dialler, acceptor, claimed] = said.parts();
    let parts = [dialler, acceptor, claimed, &answer[..1]];
    match answer[0] {
        TAKEN | REFUSED if !secret.verify("link acceptor", &parts, &proof) => Err(stranger()),
        TAKEN => Ok(socket.with_seals(said.seals(secret))),
        REFUSED => Err(WireError::Unfit(
            "it has not taken the connection: are all ranks configured alike?".into(),
        )),
        _ => Err(stranger()),
    }
}

fn stranger() -> WireError {
    let detail = "it does not hold this job's secret: another program listens on its port";
    WireError::Unfit(detail.into())
}

/// The acceptor's side: a connection that has not proven itself. Nothing here waits.
pub(super) struct Accepting {
    stream: TcpStream,
    /// What the dialler has said.
    heard: [u8; DIALLER_BYTES],
    heard_bytes: usize,
    mine: Option<Greeting>,
}

/// One that has, and waits for its answer.
pub(super) struct Proven {
    socket: Socket,
    said: Said,
}

impl Accepting {
    pub(super) fn new(stream: TcpStream) -> io::Result<Accepting> {
        stream.set_nonblocking(true)?;
        Ok(Accepting { stream, heard: [0; DIALLER_BYTES], heard_bytes: 0, mine: None })
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(super) fn has_spoken(&self) -> bool {
        self.heard_bytes > 0
    }

    /// Goes on as far as the dialler has. Returns whether that has proven itself.
    ///
    /// # Errors
    /// It is no rank of this job, or has ended.
    pub(super) fn advance(&mut self, secret: &Secret) -> Result<bool, WireError> {
        loop {
            if self.mine.is_none() && self.heard_bytes >= GREETING_BYTES {
                check(self.theirs())?;
                let mine = greeting()?;
                // A new socket has room for so little.
                let sent = self.stream.write_all(&mine);
                sent.map_err(WireError::io("greeting it"))?;
                self.mine = Some(mine);
            }
            if self.heard_bytes == DIALLER_BYTES {
                return self.is_proven(secret);
            }
            match self.stream.read(&mut self.heard[self.heard_bytes..]) {
                Ok(0) => return Err(WireError::Closed),
                Ok(len) => self.heard_bytes += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => return Err(WireError::Io { doing: "waiting for it", source }),
            }
        }
    }

    fn theirs(&self) -> &Greeting {
        self.heard.first_chunk().expect("a greeting is shorter than all")
    }

    fn said(&self) -> Option<Said> {
        let mut claim = [0; CLAIM_BYTES];
        claim.copy_from_slice(&self.heard[GREETING_BYTES..][..CLAIM_BYTES]);
        Some(Said { dialler: *self.theirs(), acceptor: self.mine?, claim })
    }

    fn is_proven(&mut self, secret: &Secret) -> Result<bool, WireError> {
        let proof = self.heard.last_chunk().expect("a proof is shorter than all");
        let said = self.said();
        if said.is_some_and(|said| secret.verify("link dialler", &said.parts(), proof)) {
            return Ok(true);
        }
        let mut answer = [0; ANSWER_BYTES];
        answer[0] = WRONG_SECRET;
        // It goes in any case.
        let _ = self.stream.write_all(&answer);
        Err(WireError::Unfit("it does not hold this job's secret".into()))
    }

    /// What it claims, once it has proven itself.
    pub(super) fn proven(self) -> Result<(Proven, Claim), WireError> {
        let said = self.said().ok_or(WireError::Closed)?;
        self.stream.set_nonblocking(false).map_err(WireError::io("accepting"))?;
        let claim = Claim::decode(&said.claim);
        Ok((Proven { socket: Socket::new(self.stream), said }, claim))
    }
}

impl Proven {
    /// Says whether it is wanted, and hands out the socket if it is.
    pub(super) fn answer(
        mut self,
        secret: &Secret,
        wanted: bool,
        deadline: Instant,
    ) -> Result<Option<Socket>, WireError> {
        let answer = if wanted { TAKEN } else { REFUSED };
        let proof = self.said.answer(secret, answer);
        self.socket.write(&[&[answer][..], &proof].concat(), deadline)?;
        let Seals { sending, receiving } = self.said.seals(secret);
        let seals = Seals { sending: receiving, receiving: sending };
        Ok(wanted.then(|| self.socket.with_seals(seals)))
    }
}

pub(super) fn greeting() -> Result<Greeting, WireError> {
    let nonce: [u8; 32] = random_bytes().map_err(|error| {
        WireError::io("reading random numbers")(io::Error::other(error.to_string()))
    })?;
    let mut bytes = [0; GREETING_BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[6..].copy_from_slice(&nonce);
    Ok(bytes)
}

fn check(greeting: &Greeting) -> Result<(), WireError> {
    if greeting[..4] != MAGIC {
        return Err(WireError::Protocol("no greeting".into()));
    }
    let theirs = u16::from_le_bytes([greeting[4], greeting[5]]);
    if theirs != VERSION {
        return Err(WireError::Unfit(format!(
            "it speaks version {theirs} of the links' protocol, this rank {VERSION}: run the same \
             release of oxccl on every rank"
        )));
    }
    Ok(())
}
