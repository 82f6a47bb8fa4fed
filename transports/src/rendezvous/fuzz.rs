//! The rendezvous' readers of bytes, for fuzzing: see [`crate::fuzz`].

use std::collections::BTreeSet;

use crate::NodeId;
use crate::rendezvous::auth::Secret;
use crate::rendezvous::message::{FrameReader, MESSAGE_LIMIT_BYTES, Message, PROTOCOL_VERSION};
use crate::rendezvous::reader;
use crate::rendezvous::state::{Action, Rendezvous, Succession};

const WORLD: usize = 3;

/// What ranks and strangers send to the server. The data are pieces, each behind a byte that says
/// from whom: connections 0 to 2 are ranks that have joined, 3 is one that has proven the secret, 4
/// a stranger. With the highest bit set the piece is what its frame carries, otherwise bytes of the
/// stream as they are.
pub(crate) fn from_ranks(data: &[u8]) {
    let secret = Secret::from_bytes([1; 32]);
    let joins = |rank: usize, node| Message::Join {
        rank,
        world: WORLD,
        process: [0; 16],
        node,
        listens: None,
    };
    hear(Rendezvous::new(secret.clone(), [0; 16]), &secret, joins, data);
    // The same at a server that has taken over.
    for silent in [false, true] {
        let lost = BTreeSet::new();
        let succession = Succession { rank: 1, world: WORLD, before: Some(0), lost, silent };
        let state = Rendezvous::succeeding(secret.clone(), [0; 16], succession);
        hear(state, &secret, |rank, node| Message::Rejoin { rank, world: WORLD, node }, data);
    }
}

/// Has a server hear this from ranks that have come by such messages, and from others.
fn hear(
    mut state: Rendezvous,
    secret: &Secret,
    comes: impl Fn(usize, NodeId) -> Message,
    data: &[u8],
) {
    for conn in 0..5 {
        state.opened(conn, [2; 32]);
        if conn < 4 {
            state.received(conn, Message::Hello { nonce: [3; 32] });
            let proof = secret.prove("client", &[&[3; 32], &[2; 32]]);
            state.received(conn, Message::Proof { proof });
        }
        if (conn as usize) < WORLD {
            let (rank, node) = (conn as usize, NodeId::this_machine().part(conn as usize / 2));
            state.received(conn, comes(rank, node));
        }
    }
    let mut readers: Vec<FrameReader> = (0..5).map(|_| FrameReader::default()).collect();
    for (from, piece) in pieces(data) {
        let conn = u64::from(from & 0x7f) % 5;
        let reader = &mut readers[conn as usize];
        reader.extend(&if from & 0x80 == 0 { piece.to_vec() } else { framed(piece) });
        loop {
            match reader.next(state.limit_bytes(conn)) {
                Ok(Some(message)) => state.received(conn, message),
                Ok(None) => break,
                Err(error) => {
                    state.broken(conn, &error);
                    *reader = FrameReader::default();
                    break;
                }
            }
        }
        if state.is_asked() {
            state.ask_all();
        }
        check(&state.take_actions());
    }
    state.tell_pieces();
    state.await_no_more();
    (0..5).for_each(|conn| state.closed(conn, conn % 2 == 0));
    state.stop();
    check(&state.take_actions());
}

/// What a server sends to a rank.
pub(crate) fn from_server(data: &[u8]) {
    let mut reader = FrameReader::default();
    let mut messages = Vec::new();
    for (how, piece) in pieces(data) {
        reader.extend(&if how & 0x80 == 0 { piece.to_vec() } else { framed(piece) });
        loop {
            match reader.next(MESSAGE_LIMIT_BYTES) {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(_) => reader = FrameReader::default(),
            }
        }
    }
    reader::hear(0, WORLD, messages);
}

/// Whatever is sent has a length that the other side accepts.
fn check(actions: &[Action]) {
    for action in actions {
        if let Action::Send(_, message) = action {
            let mut reader = FrameReader::default();
            reader.extend(&message.encode());
            assert_eq!(reader.next(MESSAGE_LIMIT_BYTES), Ok(Some(message.clone())));
        }
    }
}

/// Each piece has a byte and its length before it.
fn pieces(data: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = data;
    std::iter::from_fn(move || {
        let (&[from, len], after) = rest.split_first_chunk()?;
        let (piece, left) = after.split_at(after.len().min(usize::from(len)));
        rest = left;
        Some((from, piece))
    })
}

fn framed(payload: &[u8]) -> Vec<u8> {
    let version = PROTOCOL_VERSION.to_le_bytes();
    let len = (payload.len() as u32).to_le_bytes();
    [b"OX", &version[..], &len, payload].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Cause;
    use crate::rendezvous::message::{Piece, Said};

    fn any_said() -> impl Strategy<Value = Said> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..40);
        prop_oneof![
            (0u64..4, bytes()).prop_map(|(round, b)| Said::Gather { round, piece: Piece::new(&b) }),
            bytes().prop_map(Said::Report),
            Just(Said::Ask),
            Just(Said::Gone),
            any::<u64>().prop_map(|calls| Said::Goodbye { calls }),
            ".{0,20}".prop_map(|reason| Said::Abort(Cause::Aborted { rank: 1, reason })),
            (0usize..9, any::<u64>()).prop_map(|(rank, calls)| Said::Left { rank, calls }),
            (0u64..4, 0usize..9, bytes()).prop_map(|(round, rank, b)| {
                Said::Gathered { round, pieces: vec![(rank, Piece::new(&b))] }
            }),
            (0usize..9, bytes()).prop_map(|(rank, report)| Said::Reported { rank, report }),
        ]
    }

    fn any_message() -> impl Strategy<Value = Message> {
        let text = ".{0,20}";
        prop_oneof![
            8 => (0u64..3, any_said()).prop_map(|(realm, said)| said.among(realm)),
            3 => (0u64..3, prop::collection::vec(0usize..4, 0..4))
                .prop_map(|(realm, ranks)| Message::Open { realm, ranks }),
            1 => Just(Message::Ping),
            1 => Just(Message::GaveUp),
            1 => Just(Message::Done),
            1 => (0usize..9, 0usize..9)
                .prop_map(|(first, end)| Message::Watch { ranks: first..end }),
            1 => (0usize..9, any::<u8>(), text).prop_map(|(rank, status, how)| Message::Ended {
                rank,
                status,
                how
            }),
            1 => (0usize..9).prop_map(|rank| Message::Failed(Cause::Died { rank })),
        ]
    }

    proptest! {
        /// Right messages in any order, from anybody, some with a byte changed.
        #[test]
        fn messages_out_of_turn_are_survived(
            messages in prop::collection::vec((any_message(), 0u8..5, any::<Option<(u8, u8)>>()), 0..40),
        ) {
            let mut data = Vec::new();
            for (message, from, change) in messages {
                let mut payload = message.encode().split_off(8);
                if let Some((at, byte)) = change.filter(|_| !payload.is_empty()) {
                    let at = usize::from(at) % payload.len();
                    payload[at] = byte;
                }
                payload.truncate(255);
                data.extend([0x80 | from, payload.len() as u8]);
                data.extend(payload);
            }
            from_ranks(&data);
            from_server(&data);
        }
    }
}
