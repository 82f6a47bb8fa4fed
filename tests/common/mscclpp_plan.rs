//! Execution plans of MSCCL++'s as data, written here for tests: what its language makes of the
//! usual algorithms.

use serde_json::{Value, json};

/// Chunks of input, output and scratch.
pub(crate) type Chunks = (usize, usize, usize);

/// A plan of these ranks.
pub(crate) fn plan(collective: &str, protocol: &str, in_place: bool, gpus: Vec<Value>) -> Value {
    json!({
        "name": format!("{collective} of a test"), "collective": collective, "protocol": protocol,
        "inplace": in_place, "reuse_resources": false, "num_threads_per_block": 1024,
        "use_double_scratch_buffer": protocol == "LL", "buffer_alignment": 16,
        "min_message_size": 0, "max_message_size": u64::MAX, "gpus": gpus
    })
}

/// A rank with a memory channel to each other, in each thread block, and their buffers of this
/// type: those of the n-th other are n.
pub(crate) fn gpu(
    (rank, ranks): (usize, usize),
    (input, output, scratch): Chunks,
    remote: &str,
    blocks: Vec<Vec<Value>>,
) -> Value {
    let others = others(rank, ranks);
    let numbers: Vec<usize> = (0..others.len()).collect();
    let block = |(id, ops): (usize, Vec<Value>)| {
        json!({
            "id": id, "ops": ops,
            "channels": [{"channel_type": "memory", "channel_ids": numbers}],
            "remote_buffer_refs":
                [{"access_channel_type": "memory", "remote_buffer_ids": numbers}]
        })
    };
    let blocks: Vec<Value> = blocks.into_iter().enumerate().map(block).collect();
    let remote =
        |rank: &usize| json!({"rank": rank, "type": remote, "access_channel_types": ["memory"]});
    json!({
        "id": rank, "input_chunks": input, "output_chunks": output, "scratch_chunks": scratch,
        "threadblocks": blocks,
        "channels": [{"channel_type": "memory", "connected_to": others}],
        "remote_buffers": others.iter().map(remote).collect::<Vec<_>>(),
        "semaphores": [{"init_value": 0}]
    })
}

fn others(rank: usize, ranks: usize) -> Vec<usize> {
    (0..ranks).filter(|peer| *peer != rank).collect()
}

/// Chunks of the rank's own buffer.
pub(crate) fn own(kind: &str, index: usize) -> Value {
    json!({"type": kind, "index": index, "size": 1})
}

/// Those of the n-th other.
fn theirs(number: usize, index: usize) -> Value {
    json!({"buffer_id": number, "index": index, "size": 1})
}

pub(crate) fn op(name: &str, from: &[Value], to: &[Value]) -> Value {
    json!({"name": name, "src_buff": from, "dst_buff": to, "channel_type": "memory", "reduce_op": "sum"})
}

/// Signals or waits on the channels to all others.
fn all(name: &str, ranks: usize) -> Value {
    let channels: Vec<usize> = (0..ranks - 1).collect();
    json!({"name": name, "channel_ids": channels, "channel_type": "memory"})
}

/// An all-reduce in place in which each rank reduces a chunk of all others' memory, and writes it
/// there.
pub(crate) fn in_memory(ranks: usize) -> Value {
    let of_rank = |rank: usize| {
        let here = |number| theirs(number, rank);
        let mut cells = vec![own("i", rank)];
        cells.extend((0..ranks - 1).map(here));
        let steps = vec![
            all("rlxsignal", ranks),
            all("rlxwait", ranks),
            json!({"name": "nop"}),
            op("rres", &cells, &cells),
            json!({"name": "nop"}),
            all("signal", ranks),
            all("wait", ranks),
        ];
        gpu((rank, ranks), (ranks, ranks, 0), "i", vec![steps])
    };
    plan("allreduce", "Simple", true, (0..ranks).map(of_rank).collect())
}

/// An all-reduce by packets: a thread block sends and reduces, the other one takes the results.
pub(crate) fn by_packets(ranks: usize, in_place: bool) -> Value {
    let result = if in_place { "i" } else { "o" };
    let of_rank = |rank: usize| {
        let others = others(rank, ranks);
        let (mut from, mut to) = (Vec::new(), Vec::new());
        let (mut parts, mut results) = (vec![own("i", rank)], vec![own(result, rank)]);
        for (number, peer) in others.iter().enumerate() {
            from.push(own("i", *peer));
            to.push(theirs(number, rank));
            parts.push(own("s", *peer));
            results.push(theirs(number, ranks + rank));
        }
        let first = vec![op("ppkt", &from, &to), op("respkt", &parts, &results)];
        let take = |peer: &usize| op("upkt", &[own("s", ranks + peer)], &[own(result, *peer)]);
        let second = others.iter().map(take).collect();
        gpu((rank, ranks), (ranks, ranks, 2 * ranks), "s", vec![first, second])
    };
    plan("allreduce", "LL", in_place, (0..ranks).map(of_rank).collect())
}

/// An all-gather in place, by putting or by getting.
pub(crate) fn gather(ranks: usize, gets: bool) -> Value {
    let of_rank = |rank: usize| {
        let others = others(rank, ranks);
        let mine = vec![own("o", rank); others.len()];
        let there: Vec<Value> = (0..others.len()).map(|number| theirs(number, rank)).collect();
        let of_peer = |(number, peer): (usize, &usize)| theirs(number, *peer);
        let from: Vec<Value> = others.iter().enumerate().map(of_peer).collect();
        let to: Vec<Value> = others.iter().map(|peer| own("o", *peer)).collect();
        let moves = if gets { op("get", &from, &to) } else { op("put", &mine, &there) };
        let before = [all("rlxsignal", ranks), all("rlxwait", ranks)];
        let behind = [all("signal", ranks), all("wait", ranks)];
        let steps = before.into_iter().chain([moves]).chain(behind).collect();
        gpu((rank, ranks), (1, ranks, 0), "o", vec![steps])
    };
    plan("allgather", "Simple", true, (0..ranks).map(of_rank).collect())
}

/// A reduce-scatter by three thread blocks: one sends, one hears that all has come and releases a
/// semaphore, and the third one, which also meets the first at a barrier, reduces.
pub(crate) fn scatter(ranks: usize) -> Value {
    let barrier = || json!({"name": "barrier", "barrier_id": 0, "num_threadblocks": 2});
    let of_rank = |rank: usize| {
        let others = others(rank, ranks);
        let from: Vec<Value> = others.iter().map(|peer| own("i", *peer)).collect();
        let to: Vec<Value> = (0..others.len()).map(|number| theirs(number, rank)).collect();
        let mut parts = vec![own("i", rank)];
        parts.extend(others.iter().map(|peer| own("s", *peer)));
        let sends = vec![op("put", &from, &to), all("signal", ranks), barrier()];
        let hears = vec![all("wait", ranks), json!({"name": "sem_release", "semaphore_ids": [0]})];
        let reduces = vec![
            barrier(),
            json!({"name": "sem_acquire", "semaphore_ids": [0]}),
            op("re", &parts, &[own("o", 0)]),
        ];
        gpu((rank, ranks), (ranks, 1, ranks), "s", vec![sends, hears, reduces])
    };
    plan("reducescatter", "Simple", false, (0..ranks).map(of_rank).collect())
}

/// An all-to-all by putting, in a pipeline.
pub(crate) fn all_to_all(ranks: usize) -> Value {
    let of_rank = |rank: usize| {
        let others = others(rank, ranks);
        let from: Vec<Value> = others.iter().map(|peer| own("i", *peer)).collect();
        let to: Vec<Value> = (0..others.len()).map(|number| theirs(number, rank)).collect();
        let ops = [
            op("copy", &[own("i", rank)], &[own("o", rank)]),
            op("put", &from, &to),
            all("signal", ranks),
            all("wait", ranks),
        ];
        let context = json!({"unit_size": 1 << 20, "num_chunks": 1});
        let steps = vec![json!({"name": "pipeline", "iter_context": context, "ops": ops})];
        gpu((rank, ranks), (ranks, ranks, 0), "o", vec![steps])
    };
    plan("alltoall", "Simple", false, (0..ranks).map(of_rank).collect())
}

/// An all-reduce in place by a switch.
pub(crate) fn by_switch(ranks: usize) -> Value {
    let of_rank = |rank: usize| {
        let cell = json!({"switch_channel_id": 0, "index": rank, "size": 1});
        let moves = json!({
            "name": "glres", "src_buff": [cell], "dst_buff": [cell], "channel_type": "switch"
        });
        let before = [all("signal", ranks), all("wait", ranks)];
        let steps: Vec<Value> = before.clone().into_iter().chain([moves]).chain(before).collect();
        let mut gpu = gpu((rank, ranks), (ranks, ranks, 0), "i", vec![steps]);
        let group: Vec<usize> = (0..ranks).collect();
        let push = |at: &mut Value, one: Value| {
            if let Some(all) = at.as_array_mut() {
                all.push(one);
            }
        };
        push(
            &mut gpu["channels"],
            json!({
                "channel_type": "switch", "buffer_type": "i",
                "rank_groups": [{"size": ranks, "ranks": group}]
            }),
        );
        push(
            &mut gpu["threadblocks"][0]["channels"],
            json!({"channel_type": "switch", "channel_ids": [0]}),
        );
        gpu
    };
    plan("allreduce", "Simple", true, (0..ranks).map(of_rank).collect())
}
