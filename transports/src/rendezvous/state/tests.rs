use super::*;
use crate::rendezvous::message::{Piece, REPORT_LIMIT_BYTES};

const NONCE: Nonce = [3; 32];
const SERVER: [u8; 16] = [1; 16];
const OTHER: [u8; 16] = [2; 16];

fn secret() -> Secret {
    Secret::from_bytes([5; 32])
}

/// A rendezvous that these connections have proven themselves to.
fn rendezvous(conns: &[Conn]) -> Rendezvous {
    let mut state = Rendezvous::new(secret(), SERVER);
    conns.iter().for_each(|&conn| prove(&mut state, conn));
    state
}

fn prove(state: &mut Rendezvous, conn: Conn) {
    state.opened(conn, NONCE);
    state.received(conn, Message::Hello { nonce: [4; 32] });
    // Nothing in it says anything of the secret.
    let challenge = Action::Send(vec![conn], Message::Challenge { nonce: NONCE });
    assert_eq!(state.take_actions(), [challenge]);
    assert!(!state.is_silent(conn) && !state.has_proven(conn));
    let proof = secret().prove("client", &[&[4; 32], &NONCE]);
    state.received(conn, Message::Proof { proof });
    let proof = secret().prove("server", &[&[4; 32], &NONCE]);
    let proven = Action::Send(vec![conn], Message::Proven { proof });
    assert_eq!(state.take_actions(), [proven, Action::Seal(conn, [[4; 32], NONCE])]);
    assert!(state.has_proven(conn));
}

fn join(state: &mut Rendezvous, conn: Conn, rank: usize, world: usize) -> Vec<Action> {
    let process = if rank == 1 { SERVER } else { OTHER };
    let node = NodeId::of_bytes([rank as u8 / 2; 16]);
    state.received(conn, Message::Join { rank, world, process, node, listens: None });
    state.take_actions()
}

/// A world of three that runs; rank r has connection 10 + r.
fn running() -> Rendezvous {
    let mut state = rendezvous(&[10, 11, 12]);
    assert_eq!(join(&mut state, 12, 2, 3), []);
    assert_eq!(join(&mut state, 10, 0, 3), []);
    let started =
        Message::Started { serving_rank: Some(1), nodes: vec![0, 0, 1], successors: vec![None; 3] };
    assert_eq!(join(&mut state, 11, 1, 3), [Action::Send(vec![10, 11, 12], started)]);
    state
}

fn refused(conn: Conn, refusal: Refusal) -> [Action; 2] {
    [Action::Send(vec![conn], Message::Refused(refusal)), Action::Close(conn)]
}

#[test]
fn nothing_is_heard_before_the_proof() {
    let mut state = Rendezvous::new(secret(), SERVER);
    state.opened(1, NONCE);
    assert_eq!(state.limit_bytes(1), HANDSHAKE_LIMIT_BYTES);
    let out_of_turn = || Refusal::Protocol("a message out of turn".to_owned());
    assert_eq!(join(&mut state, 1, 0, 1), refused(1, out_of_turn()));
    assert_eq!(join(&mut state, 1, 0, 1), [], "it is not listened to any more");
    state.opened(2, NONCE);
    state.received(2, Message::Proof { proof: secret().prove("client", &[&[0; 32], &NONCE]) });
    assert_eq!(state.take_actions(), refused(2, out_of_turn()));
    prove(&mut state, 3);
    assert_eq!(state.limit_bytes(3), MESSAGE_LIMIT_BYTES);
    assert!(!state.is_member(3));
}

#[test]
fn a_proof_of_the_wrong_secret_or_the_servers_own_is_refused() {
    for proof in [
        Secret::from_bytes([6; 32]).prove("client", &[&[4; 32], &NONCE]),
        secret().prove("server", &[&[4; 32], &NONCE]),
        secret().prove("client", &[&[4; 32], &[0; 32]]),
    ] {
        let mut state = Rendezvous::new(secret(), SERVER);
        state.opened(1, NONCE);
        state.received(1, Message::Hello { nonce: [4; 32] });
        state.take_actions();
        state.received(1, Message::Proof { proof });
        assert_eq!(state.take_actions(), refused(1, Refusal::WrongSecret));
    }
}

/// A rank takes over for a world of four in which rank 0 has served; rank r has connection 10 + r.
fn succeeding(silent: bool) -> Rendezvous {
    let lost = if silent { BTreeSet::new() } else { BTreeSet::from([0]) };
    let succession = Succession { rank: 1, world: 4, before: Some(0), lost, silent };
    let mut state = Rendezvous::succeeding(secret(), SERVER, succession);
    (11..14).for_each(|conn| prove(&mut state, conn));
    state
}

fn rejoin(state: &mut Rendezvous, rank: usize) -> Vec<Action> {
    let node = NodeId::of_bytes([rank as u8 / 2; 16]);
    state.received(10 + rank as Conn, Message::Rejoin { rank, world: 4, node });
    state.take_actions()
}

#[test]
fn ranks_come_over_and_hear_what_was_said_once() {
    let mut state = succeeding(false);
    let to = |conns: &[Conn], said: Said| Action::Send(conns.to_vec(), said.among(WORLD));
    let died = |rank| Said::Abort(Cause::Died { rank });
    assert_eq!(rejoin(&mut state, 1), [to(&[11], died(0))]);
    assert_eq!(rejoin(&mut state, 2), [to(&[12], died(0))]);
    // Both tell what they have heard of rank 3.
    for conn in [11, 12] {
        state.received(conn, Said::Left { rank: 3, calls: 7 }.among(WORLD));
    }
    assert_eq!(state.take_actions(), [to(&[11, 12], Said::Left { rank: 3, calls: 7 })]);
    // It comes all the same, for what else it is in.
    let open = Message::Open { realm: 9, ranks: vec![3, 1] };
    state.received(11, open.clone());
    let piece = || Piece::new(b"x");
    state.received(11, Said::Gather { round: 4, piece: piece() }.among(9));
    assert!(state.awaits_ranks());
    assert_eq!(rejoin(&mut state, 3), []);
    assert!(!state.awaits_ranks());
    state.received(13, open);
    state.received(13, Said::Gather { round: 3, piece: piece() }.among(9));
    state.received(13, Said::Gather { round: 4, piece: piece() }.among(9));
    let gathered = Said::Gathered { round: 4, pieces: vec![(1, piece()), (0, piece())] };
    assert_eq!(state.take_actions(), [Action::Send(vec![13, 11], gathered.among(9))]);
    state.closed(12, false);
    assert_eq!(state.take_actions(), [to(&[11], died(2))]);
}

#[test]
fn ranks_that_do_not_come_over_are_lost() {
    let mut state = succeeding(false);
    rejoin(&mut state, 1);
    rejoin(&mut state, 2);
    state.await_no_more();
    let died = Said::Abort(Cause::Died { rank: 3 }).among(WORLD);
    assert_eq!(state.take_actions(), [Action::Send(vec![11, 12], died)]);
    let late = Refusal::Stopped(Cause::CutOff { rank: 3 });
    assert_eq!(rejoin(&mut state, 3), refused(13, late));
}

/// Where the server before may live, only the larger part goes on.
#[test]
fn the_smaller_part_does_not_go_on() {
    for ranks in [2, 3] {
        let mut state = succeeding(true);
        (1..ranks).for_each(|rank| assert_eq!(rejoin(&mut state, rank), []));
        let goodbye = Said::Goodbye { calls: 1 }.among(WORLD);
        state.received(11, goodbye);
        assert_eq!(state.take_actions(), [], "it is kept until it is known who goes on");
        if ranks == 3 {
            let left = Said::Left { rank: 1, calls: 1 }.among(WORLD);
            assert_eq!(rejoin(&mut state, 3), [Action::Send(vec![12, 13], left)]);
            continue;
        }
        state.await_no_more();
        let refusal = Refusal::Stopped(Cause::CutOff { rank: 0 });
        assert_eq!(state.take_actions(), refused(11, refusal));
    }
    // And the server itself, which reaches one of three.
    let mut state = running();
    for (conn, rank) in [(10, 0), (12, 2)] {
        state.closed(conn, true);
        let cause = Cause::CutOff { rank };
        let said = Action::Send(vec![10, 11, 12], Said::Abort(cause.clone()).among(WORLD));
        let mut actions = state.take_actions();
        let Action::Send(_, first) = actions.remove(0) else { panic!("{actions:?}") };
        let Action::Send(_, expected) = said else { unreachable!() };
        assert_eq!(first, expected);
        if rank == 2 {
            assert_eq!(actions, refused(11, Refusal::Stopped(cause)));
        }
    }
}

#[test]
fn news_go_to_all_others() {
    let mut state = running();
    state.received(11, Said::Goodbye { calls: 9 }.among(WORLD));
    let left = Said::Left { rank: 1, calls: 9 }.among(WORLD);
    assert_eq!(state.take_actions(), [Action::Send(vec![10, 12], left)]);
    state.closed(11, false);
    assert_eq!(state.take_actions(), [], "it had left");
    let cause = Cause::Mismatch { rank: 2, detail: String::new(), ranks: vec![] };
    state.received(12, Said::Abort(cause.clone()).among(WORLD));
    assert_eq!(state.take_actions(), [Action::Send(vec![10], Said::Abort(cause).among(WORLD))]);
}

#[test]
fn pieces_are_told_together_or_after_a_moment() {
    let mut state = running();
    let piece = || Piece::new(b"x");
    let gathered = |ranks: &[usize]| {
        let pieces = ranks.iter().map(|&rank| (rank, piece())).collect();
        [Action::Send(vec![10, 11, 12], Said::Gathered { round: 0, pieces }.among(WORLD))]
    };
    state.received(11, Said::Gather { round: 0, piece: piece() }.among(WORLD));
    assert_eq!(state.take_actions(), []);
    assert!(state.has_untold_pieces());
    state.tell_pieces();
    assert_eq!(state.take_actions(), gathered(&[1]));
    assert!(!state.has_untold_pieces());
    state.received(12, Said::Gather { round: 0, piece: piece() }.among(WORLD));
    state.received(10, Said::Gather { round: 0, piece: piece() }.among(WORLD));
    assert_eq!(state.take_actions(), gathered(&[2, 0]));
    state.received(10, Said::Gather { round: 1, piece: piece() }.among(WORLD));
    state.received(10, Said::Goodbye { calls: 0 }.among(WORLD));
    let actions = state.take_actions();
    let last = Said::Gathered { round: 1, pieces: vec![(0, piece())] }.among(WORLD);
    assert_eq!(actions[0], Action::Send(vec![10, 11, 12], last), "before the goodbye");
    assert_eq!(
        actions[1],
        Action::Send(vec![11, 12], Said::Left { rank: 0, calls: 0 }.among(WORLD))
    );
    state.received(11, Said::Gather { round: 7, piece: piece() }.among(WORLD));
    let refusal = Refusal::Protocol("a message out of turn".to_owned());
    assert_eq!(state.take_actions()[1..], refused(11, refusal));
}

#[test]
fn reports_go_to_those_of_other_nodes_that_asked() {
    let mut state = running();
    state.received(10, Said::Ask.among(WORLD));
    state.received(10, Said::Ask.among(WORLD));
    assert!(state.is_asked());
    assert_eq!(state.take_actions(), [], "not before it is time");
    state.ask_all();
    assert!(!state.is_asked());
    assert_eq!(state.take_actions(), [Action::Send(vec![10, 11, 12], Said::Asked.among(WORLD))]);
    state.received(12, Said::Report(vec![5]).among(WORLD));
    let report = Said::Reported { rank: 2, report: vec![5] }.among(WORLD);
    assert_eq!(state.take_actions(), [Action::Send(vec![10], report)]);
    state.received(11, Said::Report(vec![6]).among(WORLD));
    assert_eq!(state.take_actions(), [], "rank 0 is on the same node, and rank 2 has not asked");
    state.received(12, Said::Report(vec![0; REPORT_LIMIT_BYTES + 1]).among(WORLD));
    assert_eq!(state.take_actions(), []);
    // Rank 2 asks while its own answer to rank 0 is under way.
    state.received(12, Said::Ask.among(WORLD));
    state.ask_all();
    state.take_actions();
    state.received(12, Said::Report(vec![7]).among(WORLD));
    let report = Said::Reported { rank: 2, report: vec![7] }.among(WORLD);
    assert_eq!(state.take_actions(), [Action::Send(vec![10], report)]);
}

#[test]
fn a_silent_machine_is_cut_off() {
    let mut state = running();
    state.closed(11, true);
    let cut_off = Said::Abort(Cause::CutOff { rank: 1 }).among(WORLD);
    assert_eq!(state.take_actions(), [Action::Send(vec![10, 12], cut_off)]);
}

#[test]
fn a_lost_connection_is_a_death() {
    let mut state = running();
    assert!(state.is_needed());
    state.closed(11, false);
    let died = Said::Abort(Cause::Died { rank: 1 }).among(WORLD);
    assert_eq!(state.take_actions(), [Action::Send(vec![10, 12], died)]);
    assert!(!state.is_needed(), "nobody goes on");
}

#[test]
fn the_server_is_needed_until_all_have_left() {
    let mut state = running();
    for rank in 0..3 {
        assert!(state.is_needed());
        state.received(10 + rank, Said::Goodbye { calls: 0 }.among(WORLD));
    }
    assert!(!state.is_needed());
    state.take_actions();
    state.stop();
    assert_eq!(state.take_actions(), [], "nobody is there to be told");
}

#[test]
fn stopping_tells_who_is_there() {
    let mut state = running();
    state.received(10, Said::Goodbye { calls: 0 }.among(WORLD));
    state.take_actions();
    state.stop();
    assert_eq!(state.take_actions(), [Action::Send(vec![11, 12], Message::Closing)]);
    let mut state = rendezvous(&[1]);
    join(&mut state, 1, 0, 2);
    state.stop();
    assert_eq!(state.take_actions(), refused(1, Refusal::Closed));
}

#[test]
fn ranks_are_taken_once_and_free_for_nobody_after() {
    let mut state = running();
    (1..=3).for_each(|conn| prove(&mut state, conn));
    assert_eq!(join(&mut state, 1, 1, 3), refused(1, Refusal::RankTwice { rank: 1 }));
    state.received(11, Said::Goodbye { calls: 0 }.among(WORLD));
    state.take_actions();
    assert_eq!(join(&mut state, 2, 1, 3), refused(2, Refusal::Busy));
    let mismatch = Refusal::WorldMismatch { rank: 1, theirs: 4, ours: 3 };
    assert_eq!(join(&mut state, 3, 1, 4), refused(3, mismatch), "and the others run on");
}

#[test]
fn giving_up_names_the_missing_to_all() {
    let mut state = rendezvous(&[1, 2, 3]);
    join(&mut state, 1, 0, 4);
    join(&mut state, 2, 2, 4);
    state.received(1, Message::GaveUp);
    let timeout = || Refusal::Timeout { missing: vec![1, 3] };
    assert_eq!(state.take_actions(), [refused(1, timeout()), refused(2, timeout())].concat());
    assert_eq!(join(&mut state, 3, 1, 4), refused(3, timeout()));
    state.closed(1, false);
    assert_eq!(state.take_actions(), []);
}

#[test]
fn giving_up_too_late_is_nothing() {
    let mut state = running();
    state.received(10, Message::GaveUp);
    assert_eq!(state.take_actions(), []);
}

#[test]
fn absurd_worlds_are_refused() {
    let mut state = rendezvous(&[1, 2]);
    assert_eq!(
        join(&mut state, 1, 0, 0),
        refused(1, Refusal::RankOutOfRange { rank: 0, world: 0 })
    );
    let world = WORLD_LIMIT + 1;
    assert_eq!(join(&mut state, 2, 0, world), refused(2, Refusal::WorldTooLarge { world }));
    assert!(state.world() == 0, "they do not fix the size of the world");
}

/// A running world of three, started by a launcher on connection 20.
fn launched() -> Rendezvous {
    let mut state = running();
    prove(&mut state, 20);
    state.received(20, Message::Watch { ranks: 0..3 });
    assert!(state.is_member(20));
    assert_eq!(state.take_actions(), []);
    state
}

fn ended(rank: usize, how: &str) -> Cause {
    Cause::Ended { rank, status: 1, how: how.to_owned() }
}

#[test]
fn a_lost_launcher_is_the_end_of_a_rank_that_has_not_left() {
    let mut state = launched();
    state.received(10, Said::Goodbye { calls: 0 }.among(WORLD));
    state.take_actions();
    prove(&mut state, 21);
    state.received(21, Message::Watch { ranks: 3..3 });
    state.closed(20, false);
    let cause = ended(1, "ended with its launcher");
    let told = Action::Send(vec![21], Message::Failed(cause));
    assert_eq!(state.take_actions(), [told], "ranks hear when the rank's own connection ends");
    state.received(21, Message::Done);
    state.closed(21, false);
    assert_eq!(state.take_actions(), [], "it was done");
}

#[test]
fn launchers_are_told_the_first_ends_and_why() {
    let mut state = launched();
    state.closed(11, false);
    let died = Cause::Died { rank: 1 };
    let abort = Action::Send(vec![10, 12], Said::Abort(died.clone()).among(WORLD));
    assert_eq!(state.take_actions(), [abort, Action::Send(vec![20], Message::Failed(died))]);
    state.closed(12, false);
    assert_eq!(state.take_actions().len(), 1, "the ranks alone hear of further deaths");
    for rank in 100..120 {
        state.received(20, Message::Ended { rank, status: 1, how: String::new() });
    }
    assert_eq!(state.take_actions().len(), 8);
    prove(&mut state, 21);
    state.received(21, Message::Watch { ranks: 100..101 });
    assert_eq!(state.take_actions().len(), 8, "who comes late hears all but of its own ranks");
}

#[test]
fn ranks_hear_how_one_ended_unless_it_had_left() {
    let mut state = launched();
    state.received(10, Said::Goodbye { calls: 0 }.among(WORLD));
    state.take_actions();
    state.received(20, Message::Ended { rank: 0, status: 1, how: "failed".to_owned() });
    let told = Message::Failed(ended(0, "failed"));
    assert_eq!(state.take_actions(), [Action::Send(vec![20], told)], "that nothing was before");
    state.received(20, Message::Ended { rank: 1, status: 1, how: "failed".to_owned() });
    let abort = Said::Abort(ended(1, "failed")).among(WORLD);
    assert_eq!(state.take_actions(), [Action::Send(vec![12], abort)], "what it knows");
    prove(&mut state, 21);
    state.received(21, Message::Watch { ranks: 3..3 });
    assert_eq!(state.take_actions().len(), 2, "other launchers hear of both");
}

#[test]
fn launchers_may_be_silent_for_as_long_as_ranks() {
    let mut state = launched();
    let granted = |to: Conn, s: u64| Action::Grant(vec![to], Duration::from_secs(s));
    state.received(10, Message::Silence { ms: 5_000 });
    assert_eq!(state.take_actions(), [granted(10, 5)], "launchers have more by themselves");
    state.received(11, Message::Silence { ms: 300_000 });
    assert_eq!(state.take_actions(), [granted(11, 300), granted(20, 300)]);
    prove(&mut state, 21);
    state.received(21, Message::Watch { ranks: 3..3 });
    assert_eq!(state.take_actions(), [granted(21, 300)]);
}

/// Ranks 2 and 0, in this order, have a realm of their own.
fn parted() -> Rendezvous {
    let mut state = running();
    for conn in [12, 10] {
        state.received(conn, Message::Open { realm: 7, ranks: vec![2, 0] });
    }
    assert_eq!(state.take_actions(), []);
    state
}

#[test]
fn what_is_said_in_a_part_is_heard_there_alone() {
    let mut state = parted();
    let piece = || Piece::new(b"x");
    for conn in [10, 12] {
        state.received(conn, Said::Gather { round: 0, piece: piece() }.among(7));
    }
    let pieces = vec![(1, piece()), (0, piece())];
    let gathered = Said::Gathered { round: 0, pieces }.among(7);
    assert_eq!(state.take_actions(), [Action::Send(vec![12, 10], gathered)]);
    state.received(10, Said::Ask.among(7));
    state.ask_all();
    assert_eq!(state.take_actions(), [Action::Send(vec![12, 10], Said::Asked.among(7))]);
    state.received(12, Said::Report(vec![5]).among(7));
    let report = Said::Reported { rank: 0, report: vec![5] }.among(7);
    assert_eq!(state.take_actions(), [Action::Send(vec![10], report)]);
    let cause = Cause::Aborted { rank: 1, reason: String::new() };
    state.received(10, Said::Abort(cause.clone()).among(7));
    let abort = Said::Abort(cause).among(7);
    assert_eq!(state.take_actions(), [Action::Send(vec![12], abort)], "the world goes on");
    assert!(state.is_needed());
}

#[test]
fn a_part_outlives_the_world() {
    let mut state = parted();
    for conn in 10..13 {
        state.received(conn, Said::Goodbye { calls: 0 }.among(WORLD));
    }
    state.take_actions();
    assert!(state.is_needed(), "it has not ended");
    state.closed(11, false);
    assert_eq!(state.take_actions(), [], "that rank has left, and is not one of the part");
    state.closed(12, true);
    let cut_off = Said::Abort(Cause::CutOff { rank: 0 }).among(7);
    assert_eq!(state.take_actions(), [Action::Send(vec![10], cut_off)]);
    assert!(!state.is_needed());
    state.stop();
    assert_eq!(state.take_actions(), [Action::Send(vec![10], Message::Closing)]);
}

#[test]
fn a_part_that_nobody_is_in_is_forgotten() {
    let mut state = parted();
    state.received(12, Said::Gone.among(7));
    let died = Said::Abort(Cause::Died { rank: 0 }).among(7);
    assert_eq!(state.take_actions(), [Action::Send(vec![10], died)], "a rank of the part alone");
    state.received(10, Said::Goodbye { calls: 3 }.among(7));
    assert!(state.parts.is_empty());
    state.received(12, Said::Ask.among(7));
    assert_eq!(state.take_actions(), [], "it was under way");
}

#[test]
fn who_comes_late_to_a_part_hears_what_it_has_missed() {
    let mut state = running();
    let open = |state: &mut Rendezvous, conn| {
        state.received(conn, Message::Open { realm: 7, ranks: vec![0, 1, 2] });
        state.take_actions()
    };
    open(&mut state, 10);
    let piece = || Piece::new(b"x");
    state.received(10, Said::Gather { round: 0, piece: piece() }.among(7));
    state.tell_pieces();
    let told = |conn| {
        let pieces = vec![(0, piece())];
        Action::Send(vec![conn], Said::Gathered { round: 0, pieces }.among(7))
    };
    assert_eq!(state.take_actions(), [told(10)]);
    assert_eq!(open(&mut state, 11), [told(11)]);
    state.received(11, Said::Goodbye { calls: 4 }.among(7));
    let left = |conn| Action::Send(vec![conn], Said::Left { rank: 1, calls: 4 }.among(7));
    assert_eq!(state.take_actions(), [left(10)]);
    assert_eq!(open(&mut state, 12), [told(12), left(12)]);
    state.received(10, Said::Goodbye { calls: 0 }.among(7));
    state.take_actions();
    let refusal = Refusal::Protocol("a realm that cannot be".to_owned());
    assert!(open(&mut state, 11).ends_with(&refused(11, refusal)), "it comes once");
}

#[test]
fn who_dies_before_it_comes_to_a_part_is_named_there() {
    let mut state = running();
    state.received(10, Message::Open { realm: 7, ranks: vec![0, 2] });
    state.closed(12, false);
    let died = |conn| Action::Send(vec![conn], Said::Abort(Cause::Died { rank: 1 }).among(7));
    assert!(state.take_actions().contains(&died(10)));
    // A rank that is dead already.
    state.received(11, Message::Open { realm: 8, ranks: vec![1, 2] });
    let died = Said::Abort(Cause::Died { rank: 1 }).among(8);
    assert_eq!(state.take_actions(), [Action::Send(vec![11], died)]);
}

#[test]
fn realms_that_cannot_be_are_refused() {
    for (conn, realm, ranks) in [
        (10, WORLD, vec![0, 1]),
        (10, 8, vec![0, 3]),
        (10, 8, vec![0, 0]),
        (10, 8, vec![1, 2]),
        (10, 7, vec![0, 2]),
    ] {
        let mut state = parted();
        state.received(conn, Message::Open { realm, ranks });
        let refusal = Refusal::Protocol("a realm that cannot be".to_owned());
        let actions = state.take_actions();
        assert!(actions.ends_with(&refused(conn, refusal)), "{actions:?}");
    }
    let mut state = parted();
    state.received(11, Said::Ask.among(7));
    let refusal = Refusal::Protocol("a message out of turn".to_owned());
    assert!(state.take_actions().ends_with(&refused(11, refusal)), "it is not one of its ranks");
}
