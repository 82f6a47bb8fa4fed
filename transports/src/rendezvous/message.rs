//! What is said between a rank and the rendezvous, and how it is framed.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::rendezvous::auth::{Nonce, Proof};
use crate::rendezvous::state::WORLD_LIMIT;
use crate::seal::{Seal, TAG_BYTES, Tag};
use crate::{Cause, Error, NodeId};

/// The version of the protocol. Ranks of different versions do not meet.
pub const PROTOCOL_VERSION: u16 = 7;

/// The longest message after the secret is proven, without its frame's header.
pub const MESSAGE_LIMIT_BYTES: usize = 1 << 20;

/// The longest report.
pub(crate) const REPORT_LIMIT_BYTES: usize = 64 << 10;

/// The most bytes that one rank can give in one exchange.
pub const PIECE_LIMIT_BYTES: usize = MESSAGE_LIMIT_BYTES - 64;

/// The longest message before the secret is proven.
pub(crate) const HANDSHAKE_LIMIT_BYTES: usize = 256;

const MAGIC: [u8; 2] = *b"OX";
const HEADER_BYTES: usize = 8;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Message {
    // The handshake, in this order.
    Hello {
        nonce: Nonce,
    },
    Challenge {
        nonce: Nonce,
    },
    Proof {
        proof: Proof,
    },
    /// The server's own proof. From here on both sides seal what they send.
    Proven {
        proof: Proof,
    },
    // Joining.
    Join {
        rank: usize,
        world: usize,
        process: [u8; 16],
        node: NodeId,
        /// Where it will serve, should it be its turn.
        listens: Option<SocketAddr>,
    },
    /// All are there; `nodes` has the number of each rank's node.
    Started {
        serving_rank: Option<usize>,
        nodes: Vec<u32>,
        /// Where the first ranks will serve.
        successors: Vec<Option<SocketAddr>>,
    },
    Refused(Refusal),
    GaveUp,
    /// What the ranks of a realm tell each other.
    Among {
        realm: RealmId,
        said: Said,
    },
    /// This rank comes to the realm of these ranks, in this order, and hears what it has missed.
    Open {
        realm: RealmId,
        ranks: Vec<usize>,
    },
    Closing,
    /// Says nothing: if the other side's machine has vanished, it stays unacknowledged.
    Ping,
    // Launchers, which hold no rank.
    /// What has happened to a rank.
    Failed(Cause),
    /// Instead of `Join`: a launcher that has started these ranks.
    Watch {
        ranks: Range<usize>,
    },
    /// How one of its ranks failed.
    Ended {
        rank: usize,
        status: u8,
        how: String,
    },
    /// Its ranks have ended, and it has told how; that the connection ends is then no news.
    Done,
    /// For how long a rank's machine may be silent.
    Silence {
        ms: u64,
    },
    /// Instead of `Join`, at a server that has taken the duty over.
    Rejoin {
        rank: usize,
        world: usize,
        node: NodeId,
    },
    /// This rank does not want to start any more.
    Withdraw {
        reason: String,
    },
}

/// Whose ranks speak: those of the world, or of a part of it.
pub(crate) type RealmId = u64;

/// The realm of all ranks.
pub(crate) const WORLD: RealmId = 0;

/// What is said in a realm. Its ranks are meant, by their numbers there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Said {
    // Exchanges.
    Gather {
        round: u64,
        piece: Piece,
    },
    /// Pieces of several ranks; others may follow.
    Gathered {
        round: u64,
        pieces: Vec<(usize, Piece)>,
    },
    // What ranks of different nodes have come to: one asks, all answer, and whoever asked is told.
    Ask,
    Asked,
    Report(Vec<u8>),
    Reported {
        rank: usize,
        report: Vec<u8>,
    },
    // News.
    Abort(Cause),
    Goodbye {
        calls: u64,
    },
    Left {
        rank: usize,
        calls: u64,
    },
    /// This rank's part in the realm has ended without a goodbye, though its process goes on.
    Gone,
}

impl Said {
    pub(crate) fn among(self, realm: RealmId) -> Message {
        Message::Among { realm, said: self }
    }
}

/// One rank's part of an exchange.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Piece {
    Bytes(Vec<u8>),
    /// It is too long to be sent; so every rank gets the error, in the same round.
    TooLong {
        len_bytes: u64,
    },
}

impl Piece {
    pub(crate) fn new(bytes: &[u8]) -> Piece {
        match bytes.len() {
            0..=PIECE_LIMIT_BYTES => Piece::Bytes(bytes.to_vec()),
            len => Piece::TooLong { len_bytes: len as u64 },
        }
    }

    pub(crate) fn len_bytes(&self) -> usize {
        match self {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::TooLong { .. } => 0,
        }
    }

    pub(crate) fn into_bytes(self, rank: usize) -> Result<Vec<u8>, Error> {
        match self {
            Piece::Bytes(bytes) => Ok(bytes),
            Piece::TooLong { len_bytes } => {
                let limit_bytes = PIECE_LIMIT_BYTES as u64;
                Err(Error::MessageTooLong { rank, len_bytes, limit_bytes })
            }
        }
    }
}

/// Why the server does not let a rank join, or lets nobody start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    WrongSecret,
    Version {
        server: u16,
    },
    MessageTooLong {
        len_bytes: u64,
        limit_bytes: u64,
    },
    Protocol(String),
    RankTwice {
        rank: usize,
    },
    RankOutOfRange {
        rank: usize,
        world: usize,
    },
    WorldMismatch {
        rank: usize,
        theirs: usize,
        ours: usize,
    },
    WorldTooLarge {
        world: usize,
    },
    Timeout {
        missing: Vec<usize>,
    },
    Stopped(Cause),
    /// The server stops before all ranks came.
    Closed,
    /// The job that this rank has left is not over yet: try again.
    Busy,
}

impl Refusal {
    /// The error as the refused rank sees it.
    pub(crate) fn into_error(self, address: &str, me: usize) -> Error {
        let address = address.to_owned();
        match self {
            Refusal::WrongSecret => Error::WrongSecret { address },
            Refusal::Version { server } => {
                Error::Version { theirs: server, ours: PROTOCOL_VERSION }
            }
            Refusal::MessageTooLong { len_bytes, limit_bytes } => {
                Error::MessageTooLong { rank: me, len_bytes, limit_bytes }
            }
            Refusal::Protocol(detail) => Error::Protocol { address, detail },
            Refusal::RankTwice { rank } => Error::RankTwice { rank },
            Refusal::RankOutOfRange { rank, world } => Error::RankOutOfRange { rank, world },
            Refusal::WorldMismatch { rank, theirs, ours } => {
                Error::WorldMismatch { rank, theirs, ours }
            }
            Refusal::WorldTooLarge { world } => Error::WorldTooLarge { world, limit: WORLD_LIMIT },
            Refusal::Timeout { missing } => Error::Timeout { doing: "joining", missing },
            Refusal::Stopped(cause) => Error::Stopped(cause),
            Refusal::Closed | Refusal::Busy => Error::ServerClosed,
        }
    }
}

impl Message {
    /// The message with its frame's header.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let header = vec![0; HEADER_BYTES];
        // Encoding into a growing vector cannot fail for these types.
        let Ok(mut frame) = postcard::to_extend(self, header) else { unreachable!() };
        let len = (frame.len() - HEADER_BYTES) as u32;
        frame[0..2].copy_from_slice(&MAGIC);
        frame[2..4].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        frame[4..8].copy_from_slice(&len.to_le_bytes());
        frame
    }
}

/// What is wrong with a frame.
#[derive(Debug, PartialEq)]
pub(crate) enum FrameError {
    /// It is no frame at all.
    Foreign,
    Version {
        theirs: u16,
    },
    TooLong {
        len_bytes: u64,
        limit_bytes: u64,
    },
    Malformed,
    /// Its seal is broken.
    Changed,
}

impl FrameError {
    /// What the server answers to it.
    pub(crate) fn refusal(&self) -> Refusal {
        match *self {
            FrameError::Foreign => Refusal::Protocol("it sends no frames".to_owned()),
            FrameError::Version { .. } => Refusal::Version { server: PROTOCOL_VERSION },
            FrameError::TooLong { len_bytes, limit_bytes } => {
                Refusal::MessageTooLong { len_bytes, limit_bytes }
            }
            FrameError::Malformed => Refusal::Protocol("a message is malformed".to_owned()),
            FrameError::Changed => Refusal::Protocol(CHANGED.to_owned()),
        }
    }
}

/// What is said of a message whose seal is broken.
pub(crate) const CHANGED: &str =
    "what came over the control connection was changed on its way (integrity)";

/// A message as it is sent, and its hash, which each connection seals.
#[derive(Clone)]
pub(crate) struct Frame {
    pub(crate) bytes: Arc<[u8]>,
    hash: [u8; 32],
}

impl Frame {
    pub(crate) fn new(message: &Message) -> Frame {
        let bytes: Arc<[u8]> = message.encode().into();
        Frame { hash: blake3::hash(&bytes).into(), bytes }
    }

    /// Its bytes, with what goes behind them on a connection that is sealed.
    pub(crate) fn sealed(&self, seal: Option<&mut Seal>) -> Vec<u8> {
        let mut bytes = self.bytes.to_vec();
        bytes.extend(seal.into_iter().flat_map(|seal| self.tag(seal)));
        bytes
    }

    /// What goes behind it on a connection that is sealed.
    pub(crate) fn tag(&self, seal: &mut Seal) -> Tag {
        seal.tag(&self.hash)
    }
}

/// Takes bytes as they come, gives messages.
#[derive(Default)]
pub(crate) struct FrameReader {
    buffer: Vec<u8>,
    start: usize,
    seal: Option<Seal>,
}

impl FrameReader {
    /// From the next message on each has its tag behind it.
    pub(crate) fn expect_seals(&mut self, seal: Seal) {
        self.seal = Some(seal);
    }

    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next message, or `None` until more bytes come. A length over the limit is refused when
    /// its header is there, so no more than that is ever kept.
    pub(crate) fn next(&mut self, limit_bytes: usize) -> Result<Option<Message>, FrameError> {
        let bytes = &self.buffer[self.start..];
        if !MAGIC.starts_with(&bytes[..bytes.len().min(2)]) {
            return Err(FrameError::Foreign);
        }
        let Some((header, rest)) = bytes.split_at_checked(HEADER_BYTES) else { return Ok(None) };
        let theirs = u16::from_le_bytes([header[2], header[3]]);
        if theirs != PROTOCOL_VERSION {
            return Err(FrameError::Version { theirs });
        }
        let len = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
        if len > limit_bytes {
            let (len_bytes, limit_bytes) = (len as u64, limit_bytes as u64);
            return Err(FrameError::TooLong { len_bytes, limit_bytes });
        }
        let Some((payload, behind)) = rest.split_at_checked(len) else { return Ok(None) };
        let mut whole = HEADER_BYTES + len;
        if let Some(seal) = &mut self.seal {
            let Some(tag) = behind.first_chunk::<TAG_BYTES>() else { return Ok(None) };
            if !seal.check(blake3::hash(&bytes[..whole]).as_bytes(), tag) {
                return Err(FrameError::Changed);
            }
            whole += TAG_BYTES;
        }
        match postcard::take_from_bytes(payload) {
            Ok((message, [])) => {
                self.start += whole;
                Ok(Some(message))
            }
            _ => Err(FrameError::Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_full_piece_fits_a_message() {
        let piece = Piece::new(&vec![1; PIECE_LIMIT_BYTES]);
        assert!(matches!(piece, Piece::Bytes(_)));
        let said = Said::Gathered { round: u64::MAX, pieces: vec![(usize::MAX, piece)] };
        let message = said.among(u64::MAX);
        assert!(message.encode().len() - HEADER_BYTES <= MESSAGE_LIMIT_BYTES);
        let over = Piece::new(&vec![1; PIECE_LIMIT_BYTES + 1]);
        assert_eq!(over, Piece::TooLong { len_bytes: PIECE_LIMIT_BYTES as u64 + 1 });
    }

    #[test]
    fn handshakes_fit_their_limit() {
        let longest = Message::Proven { proof: [255; 32] };
        assert!(longest.encode().len() - HEADER_BYTES <= HANDSHAKE_LIMIT_BYTES);
    }

    #[test]
    fn bad_frames_are_told_apart() {
        let next = |bytes: &[u8]| {
            let mut reader = FrameReader::default();
            reader.extend(bytes);
            reader.next(100)
        };
        assert_eq!(next(b"G"), Err(FrameError::Foreign));
        assert_eq!(next(b"OK, hello"), Err(FrameError::Foreign));
        assert_eq!(next(b"O"), Ok(None));
        let mut frame = Message::Closing.encode();
        frame[2] = 9;
        assert_eq!(next(&frame), Err(FrameError::Version { theirs: 9 }));
        let mut frame = Message::Closing.encode();
        frame[4] = 101;
        let too_long = FrameError::TooLong { len_bytes: 101, limit_bytes: 100 };
        assert_eq!(next(&frame), Err(too_long));
        let mut frame = Message::Closing.encode();
        frame[8] = 200;
        assert_eq!(next(&frame), Err(FrameError::Malformed));
        let mut frame = Message::Closing.encode();
        frame[4] += 1;
        frame.push(0);
        assert_eq!(next(&frame), Err(FrameError::Malformed), "bytes left over");
    }

    proptest! {
        #[test]
        fn messages_survive_any_cut(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            round in any::<u64>(),
            cut in 1usize..64,
        ) {
            let piece = Piece::new(&bytes);
            let messages = [
                Said::Gather { round, piece: piece.clone() }.among(9),
                Said::Abort(Cause::Died { rank: 3 }).among(WORLD),
                Said::Gathered { round, pieces: vec![(7, piece)] }.among(9),
            ];
            let stream: Vec<u8> = messages.iter().flat_map(Message::encode).collect();
            let mut reader = FrameReader::default();
            let mut read = Vec::new();
            for part in stream.chunks(cut) {
                reader.extend(part);
                while let Some(message) = reader.next(MESSAGE_LIMIT_BYTES).unwrap() {
                    read.push(message);
                }
            }
            prop_assert_eq!(read, messages);
        }

        /// Whatever is changed, nothing that was not sent is taken.
        #[test]
        fn sealed_messages_are_taken_as_they_were_sent(
            rounds in prop::collection::vec(any::<u64>(), 1..5),
            at in any::<prop::sample::Index>(),
            change in 1u8..,
            cut in 1usize..64,
        ) {
            let seal = || Seal::new(&crate::Secret::from_bytes([1; 32]), "there", &[]);
            let mut sending = seal();
            let piece = Piece::new(b"some bytes");
            let message = |&round| Said::Gather { round, piece: piece.clone() }.among(9);
            let messages: Vec<Message> = rounds.iter().map(message).collect();
            let sent = messages.iter().flat_map(|m| Frame::new(m).sealed(Some(&mut sending)));
            let mut stream: Vec<u8> = sent.collect();
            let read = |stream: &[u8]| {
                let mut reader = FrameReader::default();
                reader.expect_seals(seal());
                let mut read = Vec::new();
                for part in stream.chunks(cut) {
                    reader.extend(part);
                    loop {
                        match reader.next(MESSAGE_LIMIT_BYTES) {
                            Ok(Some(message)) => read.push(message),
                            Ok(None) => break,
                            Err(_) => return read,
                        }
                    }
                }
                read
            };
            prop_assert_eq!(&read(&stream), &messages);
            let at = at.index(stream.len());
            stream[at] ^= change;
            let taken = read(&stream);
            prop_assert!(taken.len() < messages.len());
            prop_assert_eq!(&taken[..], &messages[..taken.len()]);
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut reader = FrameReader::default();
            reader.extend(&bytes);
            while let Ok(Some(_)) = reader.next(MESSAGE_LIMIT_BYTES) {}
            let mut framed = Message::Closing.encode();
            framed[4..8].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
            framed.truncate(HEADER_BYTES);
            framed.extend(&bytes);
            let mut reader = FrameReader::default();
            reader.extend(&framed);
            while let Ok(Some(_)) = reader.next(MESSAGE_LIMIT_BYTES) {}
        }
    }
}
