//! Execution plans of MSCCL++'s: what is right is proven, and what is wrong or cannot be
//! represented is refused with its operation.
#![allow(clippy::unwrap_used)]

#[path = "../../tests/common/mscclpp_plan.rs"]
mod mscclpp_plan;

use mscclpp_plan::{all_to_all, by_packets, by_switch, gather, in_memory, scatter};
use oxccl_plans::msccl::plan::{PlanFault, from_plan, is_plan};
use oxccl_plans::schedule::{Chunking, ScheduleFile};
use oxccl_plans::verify::{Violation, infer_raw, verify};
use serde_json::{Value, json};

fn read(plan: &Value) -> Result<ScheduleFile, PlanFault> {
    assert!(is_plan(&plan.to_string()));
    let mut read = from_plan(&plan.to_string())?;
    infer_raw(&mut read.schedule);
    Ok(read)
}

fn prove(plan: &Value) -> Result<(), Violation> {
    let ScheduleFile { schedule, order, in_place, .. } = read(plan).unwrap();
    verify(schedule, order, in_place).map(drop)
}

fn refused(plan: &Value) -> String {
    read(plan).unwrap_err().to_string()
}

#[test]
fn what_is_right_is_proven() {
    for ranks in [2, 3, 4, 8] {
        for plan in [
            in_memory(ranks),
            by_packets(ranks, false),
            by_packets(ranks, true),
            gather(ranks, false),
            gather(ranks, true),
            scatter(ranks),
            all_to_all(ranks),
            by_switch(ranks),
        ] {
            prove(&plan).unwrap_or_else(|why| panic!("{plan}: {why}"));
        }
    }
}

#[test]
fn what_is_meant_is_what_is_read() {
    let file = read(&by_packets(3, false)).unwrap();
    assert_eq!(file.schedule.input, Chunking::Parts(3));
    // What peers send is kept, and so is what is to be reduced.
    assert_eq!(file.schedule.scratch, 4);
    assert!(!file.in_place);
    assert_eq!(file.notes.name.as_deref(), Some("allreduce of a test"));
    assert!(file.notes.steps.values().any(|note| note == "gpu 1, threadblock 0, op 1 (respkt)"));
    // Several chunks at once are as many moves.
    let mut plan = gather(2, false);
    for gpu in 0..2 {
        plan["gpus"][gpu]["input_chunks"] = json!(3);
        plan["gpus"][gpu]["output_chunks"] = json!(6);
        let put = &mut plan["gpus"][gpu]["threadblocks"][0]["ops"][2];
        for side in ["src_buff", "dst_buff"] {
            put[side][0]["index"] = json!(3 * gpu);
            put[side][0]["size"] = json!(3);
        }
    }
    prove(&plan).unwrap();
}

/// Thread blocks that share an operation have half of its chunks each.
#[test]
fn groups_of_thread_blocks_divide_chunks() {
    let mut plan = in_memory(3);
    let group = |id: usize| json!({"tb_id": id, "tbg_size": 2});
    for gpu in 0..3 {
        // Each has channels of its own.
        let gpu = &mut plan["gpus"][gpu];
        let others = gpu["channels"][0]["connected_to"].clone();
        let twice: Vec<Value> =
            [others.as_array().unwrap().clone(), others.as_array().unwrap().clone()].concat();
        gpu["channels"][0]["connected_to"] = json!(twice);
        let mut second = gpu["threadblocks"][0].clone();
        second["id"] = json!(1);
        second["channels"][0]["channel_ids"] = json!([2, 3]);
        second["ops"][3]["tbg_info"] = group(1);
        gpu["threadblocks"][0]["ops"][3]["tbg_info"] = group(0);
        gpu["threadblocks"].as_array_mut().unwrap().push(second);
    }
    prove(&plan).unwrap();
    assert_eq!(read(&plan).unwrap().schedule.input, Chunking::Parts(6));
    plan["gpus"][1]["threadblocks"][1]["ops"][3]["tbg_info"] = group(0);
    assert!(read(&plan).unwrap_err().is_wrong(), "both have the first half");
}

/// An operation of the first thread block of a rank.
fn op(plan: &mut Value, gpu: usize, number: usize) -> &mut Value {
    &mut plan["gpus"][gpu]["threadblocks"][0]["ops"][number]
}

#[test]
fn what_nothing_orders_is_refused() {
    // Rank 0 is not awaited by anybody: its chunk may be read before it has been written.
    let mut plan = in_memory(2);
    *op(&mut plan, 1, 6) = json!({"name": "nop"});
    *op(&mut plan, 1, 1) = json!({"name": "nop"});
    prove(&plan).unwrap();
    let mut plan = scatter(3);
    plan["gpus"][1]["threadblocks"][2]["ops"][1] = json!({"name": "nop"});
    let why = refused(&plan);
    let race = "nothing orders gpu 0, threadblock 0, op 0 (put) and gpu 1, threadblock 2, op 2 (re), which both touch s[0] of gpu 1";
    assert!(why.contains(race), "{why}");
    assert!(read(&plan).unwrap_err().is_wrong());
}

#[test]
fn what_waits_for_ever_is_refused() {
    let mut plan = gather(3, false);
    *op(&mut plan, 2, 3) = json!({"name": "nop"});
    let fault = read(&plan).unwrap_err();
    assert!(fault.is_wrong());
    assert_eq!(
        fault.to_string(),
        "deadlock: gpu 0, threadblock 0, op 4 (wait) waits for a signal of gpu 2, which sends no \
         more, and 1 more wait"
    );
    assert_eq!(fault.story().lines().count(), 2, "{}", fault.story());
    let story = |plan: &Value| read(plan).unwrap_err().story();
    let mut plan = by_packets(2, true);
    *op(&mut plan, 0, 0) = json!({"name": "nop"});
    let waits =
        "gpu 1, threadblock 0, op 1 (respkt) waits for packets of s[0], which nobody writes.";
    assert!(story(&plan).contains(waits), "{}", story(&plan));
    let mut plan = scatter(2);
    plan["gpus"][0]["threadblocks"][1]["ops"][1] = json!({"name": "nop"});
    let waits = "op 1 (sem_acquire) waits for semaphore 0, which nobody releases.";
    assert!(story(&plan).contains(waits), "{}", story(&plan));
    let mut plan = scatter(2);
    *op(&mut plan, 1, 2) = json!({"name": "nop"});
    let waits = "op 0 (barrier) waits for 2 thread blocks to come to barrier 0, where 1 are.";
    assert!(story(&plan).contains(waits), "{}", story(&plan));
}

#[test]
fn a_wrong_result_is_found() {
    let mut plan = in_memory(3);
    op(&mut plan, 1, 3)["src_buff"].as_array_mut().unwrap().pop();
    assert!(matches!(prove(&plan), Err(Violation::WrongValue { .. })), "{:?}", prove(&plan));
}

#[test]
fn what_cannot_be_represented_is_refused() {
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut plan = in_memory(2);
        change(&mut plan);
        refused(&plan)
    };
    let set = |path: &'static str, value: Value| {
        changed(&|plan| *plan.pointer_mut(path).unwrap() = value.clone())
    };
    let place = "gpu 0, threadblock 0, op 3 (rres): ";
    for (path, value, why) in [
        ("/collective", json!("broadcast"), "there are allreduce, allgather"),
        ("/protocol", json!("LL128"), "there are Simple and LL"),
        ("/gpus/1/id", json!(7), "gpu 7 stands at place 1"),
        ("/gpus/0/input_chunks", json!(3), "gpu 0 has 3 and 2 chunks"),
        ("/gpus/0/channels/0/connected_to/0", json!(0), "gpu 0 has a channel to 0"),
        ("/gpus/0/threadblocks/0/ops/0/channel_ids/0", json!(3), "channel 3: the thread block has"),
        ("/gpus/0/threadblocks/0/ops/0/name", json!("mend"), "(mend): no such operation is known"),
        ("/gpus/0/threadblocks/0/ops/0/channel_type", json!("air"), "unknown variant `air`"),
    ] {
        let said = set(path, value);
        assert!(said.contains(why), "{said}");
    }
    for (path, value, why) in [
        (
            "/gpus/0/threadblocks/0/ops/3/src_buff/0/index",
            json!(2),
            "i[2], 1 of them: this buffer of gpu 0 has 2 chunks",
        ),
        ("/gpus/0/threadblocks/0/ops/3/src_buff/1/buffer_id", json!(9), "buffer_id 9"),
        ("/gpus/0/threadblocks/0/ops/3/src_buff/0/size", json!(2), "are not of one length"),
    ] {
        let said = set(path, value);
        assert!(said.starts_with(place) && said.contains(why), "{said}");
    }
    let said = changed(&|plan| op(plan, 0, 3)["tbg_info"] = json!({"tb_id": 2, "tbg_size": 2}));
    assert!(said.contains("a group of thread blocks is none"), "{said}");
    let text = in_memory(2).to_string().replace("\"inplace\":true", "\"inplace\":\n7");
    assert!(from_plan(&text).unwrap_err().to_string().contains("line 2"));
    assert!(!is_plan("{\"steps\": []}") && !is_plan("nonsense"));
}
