//! Writes the schedules that there are hot kernels of as C++ constants, once they are proven.

use oxccl_format::Lane;
use oxccl_plans::collective::Kind;
use oxccl_plans::hot::{self, Chunk, Counter, Hot, Move, Place, Role, Step, Times, Turn};
use oxccl_plans::schedule::Buffer;
use std::fmt::Write;

/// Numbers of ranks for which the build proves them. Whatever number the runtime launches one for,
/// it has proven by itself.
const PROVEN: [usize; 4] = [2, 3, 8, hot::MOST_RANKS];

/// The header, and the list of what it has kernels of: the name, and of a sum the type.
pub(crate) fn written() -> Result<(String, String), String> {
    hot::check(&PROVEN)?;
    let mut text = String::from(
        "// Written by the build from plans/src/hot, whose schedules the verifier has accepted.\n\
         #pragma once\n#include \"schedule.h\"\n\nnamespace oxccl {\ninline namespace OXCCL_ISA {\n",
    );
    for (name, most) in
        [("RANKS", hot::MOST_RANKS), ("BUCKETS", hot::MOST_BUCKETS), ("PLACES", hot::MOST_PLACES)]
    {
        let _ = write!(text, "\nconstexpr uint32_t SERVED_{name} = {most};");
    }
    text.push('\n');
    let (mut copies, mut sums, mut names) = (String::new(), String::new(), String::from("&[\n"));
    for one in hot::hot() {
        text += &schedule(one)?;
        let schedule = camel(&one.name);
        let in_buckets = one.in_buckets.as_ref();
        let in_buckets = in_buckets.map(|name| (name, format!("InBuckets<oxccl::{schedule}>")));
        for (name, schedule) in [(&one.name, schedule)].into_iter().chain(in_buckets) {
            if one.reduces() {
                for data_type in hot::SUMS {
                    let (upper, symbol) = (data_type.symbol().to_uppercase(), data_type.symbol());
                    let _ = write!(sums, " \\\n  KERNEL({schedule}, {name}, {upper}, {symbol})");
                    let _ = writeln!(names, "    (\"{name}\", Some(DataType::{data_type:?})),");
                }
            } else {
                let _ = write!(copies, " \\\n  KERNEL({schedule}, {name})");
                let _ = writeln!(names, "    (\"{name}\", None),");
            }
        }
    }
    let _ = write!(
        text,
        "\n}}  // namespace OXCCL_ISA\n}}  // namespace oxccl\n\n#define OXCCL_HOT_COPIES(KERNEL){copies}\n\n\
         #define OXCCL_HOT_SUMS(KERNEL){sums}\n"
    );
    Ok((text, names + "]"))
}

fn schedule(one: &Hot) -> Result<String, String> {
    let lanes = one.shape.steps.iter().filter_map(|step| match step {
        Step::Move(Move { peers, to_peers, .. }) => {
            [peers, to_peers].into_iter().flatten().find_map(|place| match place {
                Place::Message(lane, _) => Some(*lane),
                _ => None,
            })
        }
        _ => None,
    });
    let mut lanes: Vec<Lane> = lanes.collect();
    lanes.dedup();
    let [lane] = lanes[..] else { return Err(format!("{}: messages of several lanes", one.name)) };
    let steps: Vec<String> = one.shape.steps.iter().map(step).collect();
    Ok(format!(
        "\nstruct {} {{\n  static constexpr uint8_t LANE = {};\n  static constexpr bool OF_RANKS = {}, OF_LEAF = {}, IN_BUCKETS = false;\n  \
         static constexpr HotStep STEPS[] = {{\n{}  }};\n}};\n",
        camel(&one.name),
        lane_name(lane),
        !matches!(one.kind, Kind::AllReduce | Kind::Broadcast),
        one.shape.role == Role::Leaf,
        steps.concat()
    ))
}

fn step(one: &Step) -> String {
    let counter = |act: &str, Counter { is_head, lane, value, turn }: &Counter| {
        let (ranked, none) = (*turn == Turn::Ranked, place(None));
        format!(
            "      {{Act::{act}, true, {ranked}, false, {is_head}, {}, {value}, {none}, {none}, {none}, {none}}},\n",
            lane_name(*lane)
        )
    };
    match one {
        Step::Wait(of) => counter("WAIT", of),
        Step::Signal(of) => counter("SIGNAL", of),
        Step::Move(Move { times, own, peers, to_own, to_peers, finish, .. }) => {
            let each = matches!(times, Times::Each(_));
            let ranked = *times == Times::Each(Turn::Ranked);
            let places = [own, peers, to_own, to_peers].map(|one| place(one.as_ref()));
            let places = places.join(", ");
            format!("      {{Act::MOVE, {each}, {ranked}, {finish}, false, 0, 0, {places}}},\n")
        }
    }
}

fn place(one: Option<&Place>) -> String {
    let written = |place: &str, chunk: Option<&Chunk>, message: u32| {
        let chunk = match chunk {
            Some(Chunk::Own) => "OWN",
            Some(Chunk::Peers) => "PEERS",
            Some(Chunk::Only) | None => "ONLY",
        };
        format!("{{Where::{place}, Chunk::{chunk}, {message}}}")
    };
    match one {
        None => "{}".to_owned(),
        Some(Place::Input(chunk)) => written("INPUT", Some(chunk), 0),
        Some(Place::Output(chunk)) => written("OUTPUT", Some(chunk), 0),
        Some(Place::Message(_, message)) => written("MESSAGE", None, *message),
        Some(Place::Window(Buffer::Input, chunk)) => written("WINDOW_INPUT", Some(chunk), 0),
        Some(Place::Window(Buffer::Output, chunk)) => written("WINDOW_OUTPUT", Some(chunk), 0),
        Some(Place::All(Buffer::Input, chunk)) => written("ALL_INPUTS", Some(chunk), 0),
        Some(Place::All(Buffer::Output, chunk)) => written("ALL_OUTPUTS", Some(chunk), 0),
        Some(Place::Tokens) => written("TOKENS", None, 0),
    }
}

fn lane_name(lane: Lane) -> String {
    format!("LANE_{}", lane.name().to_uppercase())
}

/// `all_reduce_one_shot_ll` as `AllReduceOneShotLl`.
fn camel(name: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        letters.next().map(|first| first.to_uppercase().chain(letters).collect::<String>())
    };
    name.split('_').filter_map(word).collect()
}
