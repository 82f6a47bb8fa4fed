//! GPUs below the communicator, end to end against the stand-in driver: memory is exchanged,
//! connections are made, verified schedules are lowered and launched in streams and graphs, by
//! processes and by threads. Each case is a set of processes that take the stand-in for libcuda;
//! with `OXCCL_TEST_HARDWARE=1`, those that can run on the machine's GPUs.
#![allow(clippy::unwrap_used)]

#[path = "../common/allocations.rs"]
mod allocations;
mod buckets;
mod calls;
#[path = "../common/mod.rs"]
mod common;
mod copies;
mod custom;
mod ends;
mod failures;
mod groups;
#[path = "../../transports/tests/common/guest.rs"]
mod guest;
mod guests;
mod hot;
mod joined;
mod launches;
mod memory_order;
mod misuse;
mod multicast;
mod order;
#[allow(dead_code)]
#[path = "../../examples/overlap/main.rs"]
mod overlap;
mod processes;
mod rank;
mod registered;
mod repeated;
mod results;
mod suspended;
mod traced;

use oxccl::plans;
#[path = "../common/rewritten.rs"]
mod rewritten;

use processes::On::{Anything, StandIn};
use processes::{needs, run, run_on_nodes};

macro_rules! cases {
    ($entry:ident by $each:path: $($case:ident = $function:path, $on:expr, $ranks:expr, $settings:expr;)*) => {
        $(#[test] fn $case() {
            run(stringify!($case), stringify!($entry), $on, $ranks, &$settings);
        })*

        #[test]
        #[ignore = "one process, started by the other tests"]
        fn $entry() {
            match processes::case().as_str() {
                $(stringify!($case) => $each($function),)*
                other => panic!("no case {other}"),
            }
        }
    };
}

cases! {
    rank_process by processes::each_rank:
    processes_on_one_gpu = results::all_reduces, Anything, 3, [];
    processes_on_two_gpus = results::all_reduces, Anything, 2, [("OXCCL_STAND_IN_DEVICES", "2")];
    threads_on_one_gpu = results::all_reduces, Anything, 1, [processes::threads("4"), MANY];
    threads_on_two_gpus =
        results::all_reduces, Anything, 1, [processes::threads("3"), MANY, ("OXCCL_STAND_IN_DEVICES", "2")];
    buffers_of_another_library = results::foreign_buffers, Anything, 3, [];
    one_graph_of_all_ranks = results::one_graph, Anything, 1, [MANY];
    streams_keep_order = order::streams, Anything, 1, [THREE];
    streams_share_connections =
        order::one_connection, StandIn, 1, [("CUDA_DEVICE_MAX_CONNECTIONS", "1")];
    captures_are_known = order::captures, Anything, 1, [];
    foreign_streams = order::foreign, StandIn, 1, [("OXCCL_STAND_IN_DEVICES", "2")];
    every_failure_of_a_start = failures::every_call, StandIn, 2, [];
    every_failure_of_a_start_with_a_switch = failures::every_call, StandIn, 2, [devices("2"), switched("2")];
    a_kernel_refuses_a_fold_that_its_type_lacks = failures::foreign_fold, Anything, 2, [];
    an_abort_ends_kernels = failures::abort, Anything, 2, [];
    a_death_ends_kernels = failures::death, Anything, 1, [MANY];
    too_many_blocks =
        failures::too_many_blocks, StandIn, 3, [("OXCCL_STAND_IN_MULTIPROCESSORS", "3"), ("OXCCL_STAND_IN_DEVICES", "2")];
    a_stream_of_another_gpu =
        failures::wrong_context, StandIn, 1, [("OXCCL_STAND_IN_DEVICES", "2")];
    no_image_for_a_gpu = failures::no_image, StandIn, 1, [("OXCCL_STAND_IN_CAPABILITY", "75")];
    a_host_pointer_ends_the_context = failures::host_pointer, StandIn, 1, [];
}

/// Launches run the kernels' own source, thread by thread, and not the host executor.
const EMULATED: (&str, &str) = ("OXCCL_STAND_IN_EMULATE", "1");

/// One for each stream of a case that puts waits into them by itself.
const THREE: (&str, &str) = ("CUDA_DEVICE_MAX_CONNECTIONS", "3");

/// Enough for the streams of all threads of a case.
const MANY: (&str, &str) = ("CUDA_DEVICE_MAX_CONNECTIONS", "32");

#[test]
fn calls_between_nodes_over_rdma_in_the_guest() {
    guest::run("rdma_carries_", &[]);
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn rdma_carries_calls_between_nodes() {
    let rdma = ("OXCCL_FABRIC", "rdma");
    // Messages in the GPU's memory, with the read behind them that older GPUs need and without;
    // then in pinned memory of the host.
    for (direct, capability) in [("peer", "80"), ("peer", "90"), ("off", "90")] {
        let settings =
            [rdma, ("OXCCL_GPU_DIRECT", direct), ("OXCCL_STAND_IN_CAPABILITY", capability)];
        run_on_nodes("replays_between_nodes", "communicator_process", &settings);
    }
    let devices = ("OXCCL_RDMA_DEVICES", "rxe0_0,rxe1_0");
    let settings = [processes::threads("2"), MANY, TWO_NODES, rdma, devices];
    run("ways_that_adapters_have_not", "start_process", StandIn, 1, &settings[1..]);
    // A minute on the guest's one core.
    if !common::left::to_test_all("rdma_carries_calls_between_nodes: every call") {
        run("calls_between_nodes", "communicator_process", StandIn, 1, &settings);
    }
}

/// Ranks that are threads launch by themselves.
const SEPARATE: (&str, &str) = ("OXCCL_SINGLE_LAUNCH", "0");

/// Parts of the machine, between which messages go by links.
const TWO_NODES: (&str, &str) = ("OXCCL_NODES", "2");

cases! {
    communicator_process by processes::each_communicator:
    calls_of_processes = calls::all, Anything, 2, [];
    calls_of_threads = calls::all, Anything, 1, [processes::threads("3"), MANY, needs("6")];
    calls_of_one = calls::all, Anything, 1, [processes::threads("1")];
    calls_on_two_gpus =
        calls::all, StandIn, 1, [processes::threads("4"), MANY, ("OXCCL_STAND_IN_DEVICES", "2"), needs("4")];
    calls_between_nodes = calls::all, Anything, 1, [processes::threads("4"), MANY, TWO_NODES, needs("8")];
    calls_between_groups_of_nodes =
        calls::by_groups_of_nodes, StandIn, 1, [processes::threads("4"), MANY, ("OXCCL_NODES", "4"), needs("8")];
    links_have_memory_once_used = calls::over_links, StandIn, 4, [("OXCCL_NODES", "4")];
    calls_between_nodes_of_processes = calls::all, Anything, 2, [TWO_NODES];
    replays_between_nodes = calls::captured, Anything, 1, [processes::threads("2"), MANY, TWO_NODES, needs("4")];
    calls_in_graphs = calls::captured, Anything, 1, [processes::threads("2"), MANY, needs("4")];
    calls_in_graphs_of_processes = calls::captured, Anything, 2, [];
    replays_beside_calls_of_processes_are_refused = calls::replayed_beside, Anything, 2, [EMULATED];
    calls_beside_replays_of_processes_are_refused = calls::called_beside, Anything, 2, [EMULATED];
    calls_with_parts_of_their_own = calls::with_parts, Anything, 1, [processes::threads("3"), MANY, needs("6")];
    calls_with_parts_of_processes = calls::with_parts, Anything, 2, [];
    calls_of_parts = calls::of_parts, Anything, 1, [processes::threads("3"), MANY, needs("6")];
    calls_of_parts_of_processes = calls::of_parts, Anything, 3, [];
    calls_of_grown_processes = calls::joined_later, Anything, 3, [];
    calls_of_grown_threads =
        calls::joined_later, Anything, 1, [processes::threads("3"), MANY, needs("9")];
    calls_of_grown_processes_on_gpus_with_a_switch =
        calls::joined_later, StandIn, 3, [devices("3"), switched("3")];
    calls_of_parts_on_two_gpus =
        calls::of_parts, StandIn, 1, [processes::threads("4"), MANY, ("OXCCL_STAND_IN_DEVICES", "2"), needs("6")];
    calls_of_parts_between_nodes = calls::of_parts, Anything, 1, [processes::threads("4"), MANY, TWO_NODES, needs("8")];
    calls_in_several_streams = calls::streams, Anything, 1, [processes::threads("2"), MANY];
    calls_prepared_while_others_wait =
        calls::prepared_late, StandIn, 1, [processes::threads("2"), MANY, SEPARATE, ("OXCCL_STAND_IN_DRAINS", "1"), needs("4")];
    calls_prepared_while_others_meet =
        calls::prepared_late, StandIn, 1, [processes::threads("2"), MANY, ("OXCCL_STAND_IN_DRAINS", "1")];
    calls_of_threads_by_themselves = calls::streams, Anything, 1, [processes::threads("2"), MANY, SEPARATE, needs("6")];
    calls_in_graphs_by_themselves = calls::captured, Anything, 1, [processes::threads("2"), MANY, SEPARATE, needs("4")];
    communicators_that_do_not_fit_take_turns =
        calls::crowded, StandIn, 2, [devices("2"), ("OXCCL_STAND_IN_MULTIPROCESSORS", "2")];
    ranks_that_cannot_take_turns_are_refused = calls::too_crowded, StandIn, 1,
        [processes::threads("2"), MANY, SEPARATE, ("OXCCL_STAND_IN_MULTIPROCESSORS", "5"), needs("4")];
    few_blocks = launches::few_blocks, StandIn, 1, [processes::threads("2"), MANY];
    one_launch_a_call = launches::one_a_call, StandIn, 1, [processes::threads("2"), MANY, SEPARATE, needs("4")];
    driver_calls_of_a_call = launches::driver_calls, StandIn, 1, [processes::threads("2"), MANY, SEPARATE, needs("4")];
    one_launch_a_call_on_older_gpus =
        launches::one_a_call, StandIn, 1, [processes::threads("2"), MANY, SEPARATE, needs("4"), ("OXCCL_STAND_IN_CAPABILITY", "80")];
    a_late_rank_is_named = ends::late, Anything, 1, [processes::threads("2"), MANY, SEPARATE, needs("4")];
    a_late_rank_is_named_thread_by_thread =
        ends::late, StandIn, 1, [processes::threads("2"), MANY, SEPARATE, EMULATED, needs("4")];
    a_late_rank_is_named_beside_a_free = ends::late_beside_a_free, Anything, 1, [processes::threads("2"), MANY, SEPARATE, needs("4")];
    a_rank_late_for_one_call_is_named = ends::late_for_one_call, Anything, 1, [processes::threads("2"), MANY, SEPARATE, needs("4")];
    a_rank_late_for_one_launch_of_all_is_named = ends::late_for_one_call, Anything, 1, [processes::threads("2"), MANY];
    a_kernel_that_waits_is_seen = ends::seen, Anything, 1, [processes::threads("2"), MANY, SEPARATE, needs("4")];
    a_kernel_that_waits_for_another_node_is_seen =
        ends::seen, Anything, 1, [processes::threads("2"), MANY, TWO_NODES, SEPARATE, needs("4")];
    a_late_replay_is_named = ends::late_replay, Anything, 1, [processes::threads("2"), MANY, needs("4")];
    other_calls_are_named_thread_by_thread =
        ends::mismatch, StandIn, 1, [processes::threads("2"), MANY, SEPARATE, EMULATED, needs("4")];
    other_calls_are_named = ends::mismatch, Anything, 1, [processes::threads("2"), MANY, SEPARATE, needs("4")];
    a_dead_process_is_named = ends::death, Anything, 2, [];
    processes_go_on_after_a_death = ends::survivors, Anything, 3, [];
    processes_of_nodes_go_on_after_a_death = ends::survivors, Anything, 3, [("OXCCL_NODES", "3")];
    a_kernel_that_waits_is_stopped =
        ends::aborted, Anything, 1, [processes::threads("2"), MANY, SEPARATE, needs("4")];
    processes_whose_kernels_wait_are_stopped = ends::aborted, Anything, 2, [];
    a_dead_thread_is_named = ends::panic, Anything, 1, [processes::threads("2"), MANY, SEPARATE, needs("2")];
    a_rank_that_left_is_named = ends::left, Anything, 1, [processes::threads("2"), MANY, SEPARATE, needs("2")];
    a_late_rank_of_another_node_is_named =
        ends::late, Anything, 1, [processes::threads("2"), MANY, TWO_NODES, SEPARATE, needs("4")];
    a_late_replay_of_another_node_is_named =
        ends::late_replay, Anything, 1, [processes::threads("2"), MANY, TWO_NODES, needs("4")];
    other_calls_of_another_node_are_named =
        ends::mismatch, Anything, 1, [processes::threads("2"), MANY, TWO_NODES, SEPARATE, needs("4")];
    a_dead_process_of_another_node_is_named = ends::death, Anything, 2, [TWO_NODES];
    registered_memory = registered::in_place, StandIn, 3, [];
    registered_memory_on_two_gpus =
        registered::in_place, StandIn, 2, [("OXCCL_STAND_IN_DEVICES", "2")];
    registered_memory_in_parts = registered::in_parts, StandIn, 4, [];
    registered_by_all_or_none = registered::by_all_or_none, StandIn, 3, [];
    registered_by_one_alone = registered::by_one_alone, Anything, 2, [];
    not_registered_by_one = registered::not_by_one, Anything, 2, [];
    suspended_processes = suspended::suspended, StandIn, 3, [];
    suspended_processes_on_two_gpus =
        suspended::suspended, StandIn, 2, [("OXCCL_STAND_IN_DEVICES", "2")];
    suspended_threads = suspended::suspended, StandIn, 1, [processes::threads("2"), MANY];
    not_resumed_without_memory = suspended::without_memory, StandIn, 2, [];
    traces_of_threads = traced::steps, Anything, 1, [processes::threads("3"), MANY];
    traces_of_threads_by_themselves =
        traced::steps, Anything, 1, [processes::threads("2"), MANY, SEPARATE, ("OXCCL_STAND_IN_DRAINS", "1"), needs("2")];
    traces_of_processes = traced::steps, Anything, 2, [];
    traces_of_calls = traced::calls, Anything, 1, [processes::threads("2"), MANY];
    traces_without_room = traced::overflow, Anything, 1, [processes::threads("2"), MANY, ("OXCCL_TRACE_STEPS", "4")];
    traces_of_captures = traced::captured, Anything, 1, [processes::threads("2"), MANY, needs("4")];
    traces_of_some_ranks = traced::apart, Anything, 1, [processes::threads("2"), MANY];
    every_kernel_thread_by_thread =
        calls::every_kernel, StandIn, 1, [processes::threads("3"), MANY, EMULATED];
    trees_thread_by_thread =
        calls::every_kernel, StandIn, 1, [processes::threads("9"), MANY, EMULATED];
    long_copies = calls::long_copies, Anything, 1, [processes::threads("3"), MANY];
    bulk_copies_thread_by_thread =
        calls::long_copies, StandIn, 1, [processes::threads("3"), MANY, EMULATED, ("OXCCL_BULK_COPIES", "1")];
    calls_thread_by_thread = calls::all, StandIn, 1, [processes::threads("3"), MANY, EMULATED, needs("6")];
    other_calls_thread_by_thread =
        ends::mismatch, StandIn, 1, [processes::threads("2"), MANY, TWO_NODES, EMULATED, SEPARATE, needs("4")];
    wrong_memory = misuse::memory, StandIn, 1, [("OXCCL_STAND_IN_DEVICES", "2"), processes::threads("1")];
    lines_over_pcie = misuse::no_nvlink, StandIn, 1,
        [("OXCCL_STAND_IN_DEVICES", "2"), ("OXCCL_STAND_IN_NVLINK", "0"), processes::threads("2"), MANY];
    wrong_streams = misuse::streams, StandIn, 1, [processes::threads("2"), MANY, SEPARATE, needs("4")];
    too_few_connections = misuse::connections, StandIn, 1, [processes::threads("1")];
}

/// As [`EMULATED`], with account of what orders memory.
const ORDERED: (&str, &str) = ("OXCCL_STAND_IN_MEMORY_ORDER", "1");

cases! {
    order_process by processes::each_communicator:
    memory_is_ordered = memory_order::algorithms, StandIn, 1,
        [processes::threads("3"), MANY, ORDERED, SEPARATE, ("OXCCL_HOT_KERNELS", "0")];
    memory_is_ordered_in_hot_kernels =
        memory_order::hot_kernels, StandIn, 1, [processes::threads("3"), MANY, ORDERED, SEPARATE];
    memory_is_ordered_in_groups = memory_order::groups, StandIn, 1,
        [processes::threads("2"), MANY, ORDERED, SEPARATE, ("OXCCL_HOT_KERNELS", "0")];
    memory_is_ordered_in_hot_kernels_of_groups =
        memory_order::hot_groups, StandIn, 1, [processes::threads("2"), MANY, ORDERED, SEPARATE];
    memory_is_ordered_bucket_by_bucket =
        buckets::gradients, StandIn, 1, [processes::threads("2"), MANY, ORDERED, SEPARATE, needs("4")];
    memory_is_ordered_by_a_switch = memory_order::by_switch, StandIn, 1,
        [devices("3"), switched("3"), processes::threads("3"), MANY, ORDERED, ("OXCCL_HOT_KERNELS", "0")];
    memory_is_ordered_by_a_switch_in_hot_kernels = memory_order::by_switch, StandIn, 1,
        [devices("3"), switched("3"), processes::threads("3"), MANY, ORDERED];
    memory_is_ordered_of_guests = guests::everything, StandIn, 1, [processes::threads("3"), MANY, ORDERED];
    memory_is_ordered_of_guests_that_multiply =
        guests::matmul, StandIn, 1, [processes::threads("3"), MANY, ORDERED];
    memory_is_ordered_of_guests_that_mark_buckets =
        guests::gradients, StandIn, 1, [processes::threads("2"), MANY, ORDERED];
    memory_is_ordered_of_guests_in_windows =
        memory_order::guests_in_windows, StandIn, 1, [processes::threads("2"), MANY, ORDERED];
    memory_is_ordered_in_bulk_copies = memory_order::bulk_copies, StandIn, 1,
        [processes::threads("2"), MANY, ORDERED, SEPARATE, ("OXCCL_BULK_COPIES", "1")];
}

cases! {
    group_process by processes::each_communicator:
    groups_of_processes = groups::random_groups, Anything, 2, [];
    groups_of_threads = groups::random_groups, Anything, 1, [processes::threads("3"), MANY];
    groups_of_one = groups::random_groups, Anything, 1, [processes::threads("1"), MANY];
    groups_on_two_gpus =
        groups::random_groups, StandIn, 1, [processes::threads("4"), MANY, ("OXCCL_STAND_IN_DEVICES", "2"), needs("6")];
    one_kernel_a_group = groups::one_kernel, StandIn, 1, [processes::threads("1"), MANY];
    groups_bucket_by_bucket = groups::bucket_by_bucket, Anything, 1, [processes::threads("2"), MANY];
    groups_of_processes_bucket_by_bucket = groups::bucket_by_bucket, Anything, 2, [];
    groups_bucket_by_bucket_by_themselves =
        groups::bucket_by_bucket, Anything, 1, [processes::threads("2"), MANY, SEPARATE, needs("4")];
    buckets_marked_in_any_order = groups::marked_in_any_order, Anything, 1, [processes::threads("2"), MANY];
    buckets_marked_in_any_order_thread_by_thread =
        groups::marked_in_any_order, StandIn, 1, [processes::threads("2"), MANY, EMULATED, SEPARATE];
    marks_that_would_be_kept_back = groups::kept_back, StandIn, 1,
        [processes::threads("1"), ("CUDA_DEVICE_MAX_CONNECTIONS", "1")];
    a_done_bucket_is_done = groups::done_is_done, Anything, 1, [processes::threads("2"), MANY];
    a_bucket_that_is_never_ready = groups::never_ready, Anything, 1, [processes::threads("2"), MANY];
    other_groups_are_named = groups::mismatch, Anything, 1, [processes::threads("2"), MANY, SEPARATE, needs("4")];
    a_death_in_a_group = groups::death, Anything, 2, [];
    messages_in_groups = groups::messages, Anything, 1, [processes::threads("3"), MANY];
    messages_in_groups_of_processes = groups::messages, Anything, 2, [];
    groups_thread_by_thread =
        groups::random_groups, StandIn, 1, [processes::threads("3"), MANY, EMULATED];
    groups_of_many_ranks_thread_by_thread =
        groups::of_many, StandIn, 1, [processes::threads("66"), MANY, EMULATED, ("OXCCL_STAND_IN_MEMORY", "8589934592")];
    groups_in_graphs = groups::captured, Anything, 1, [processes::threads("2"), MANY, needs("4")];
    groups_in_graphs_of_processes = groups::captured, Anything, 2, [];
    groups_that_come_again = repeated::allocate_nothing, Anything, 1, [processes::threads("2"), MANY];
    groups_that_change_in_part = repeated::change_in_part, Anything, 1, [processes::threads("3"), MANY];
    groups_of_processes_that_change_in_part = repeated::change_in_part, Anything, 2, [];
    gradients_in_buckets = buckets::gradients, Anything, 1, [processes::threads("2"), MANY];
    parameters_in_buckets = buckets::sharded, Anything, 1, [processes::threads("2"), MANY];
    parameters_in_buckets_of_processes = buckets::sharded, Anything, 3, [];
}

/// Copy engines carry out what they can.
const ZERO_SM: (&str, &str) = ("OXCCL_ZERO_SM", "1");

cases! {
    copy_process by processes::each_communicator:
    copies_of_processes = copies::all, Anything, 3, [ZERO_SM];
    copies_of_processes_on_two_gpus = copies::all, StandIn, 4, [ZERO_SM, devices("2")];
    copies_of_threads = copies::all, Anything, 1, [ZERO_SM, processes::threads("3"), MANY, needs("6")];
    copies_of_threads_by_themselves =
        copies::all, Anything, 1, [ZERO_SM, processes::threads("3"), MANY, SEPARATE, needs("6")];
    copies_on_two_gpus =
        copies::all, StandIn, 1, [ZERO_SM, processes::threads("4"), MANY, devices("2"), needs("4")];
    copies_beside_kernels =
        copies::beside_kernels, Anything, 1, [ZERO_SM, processes::threads("2"), MANY, needs("6")];
    copies_beside_kernels_of_processes = copies::beside_kernels, Anything, 3, [ZERO_SM];
    copies_in_graphs = copies::captured, Anything, 1, [ZERO_SM, processes::threads("2"), MANY, needs("4")];
    copies_in_graphs_of_processes = copies::captured, Anything, 2, [ZERO_SM];
    copies_in_parts = copies::of_parts, Anything, 1, [ZERO_SM, processes::threads("4"), MANY, needs("12")];
    copies_in_parts_of_processes = copies::of_parts, Anything, 4, [ZERO_SM];
    copies_of_registered_memory = copies::registered, StandIn, 3, [ZERO_SM];
    copies_of_registered_memory_on_two_gpus =
        copies::registered, StandIn, 2, [ZERO_SM, devices("2")];
    copies_from_other_places_are_named =
        copies::elsewhere, Anything, 1, [ZERO_SM, processes::threads("2"), MANY, needs("4")];
    copies_from_other_places_of_processes_are_named = copies::elsewhere, Anything, 2, [ZERO_SM];
    copies_from_other_memory_of_processes_are_named = copies::other_memory, Anything, 2, [ZERO_SM];
    other_copies_are_named =
        copies::mismatch, Anything, 1, [ZERO_SM, processes::threads("2"), MANY, needs("4")];
    other_copies_of_processes_are_named = copies::mismatch, Anything, 2, [ZERO_SM];
    copies_in_one_stream_are_refused =
        copies::one_stream, StandIn, 1, [ZERO_SM, processes::threads("2"), MANY];
    a_late_copy_is_named = copies::late, Anything, 1, [ZERO_SM, processes::threads("2"), MANY, needs("4")];
    a_late_replay_of_copies_is_named =
        copies::late_replay, Anything, 1, [ZERO_SM, processes::threads("2"), MANY, needs("4")];
    a_copy_that_waits_is_seen = copies::seen, Anything, 1, [ZERO_SM, processes::threads("2"), MANY, needs("4")];
    a_dead_process_of_a_copy_is_named = copies::death, Anything, 3, [ZERO_SM];
    copies_that_wait_are_stopped =
        copies::aborted, Anything, 1, [ZERO_SM, processes::threads("2"), MANY, needs("4")];
    copies_of_processes_that_wait_are_stopped = copies::aborted, Anything, 2, [ZERO_SM];
    no_copies_between_nodes =
        copies::by_kernels, Anything, 1, [ZERO_SM, processes::threads("2"), MANY, TWO_NODES];
    no_copies_by_an_algorithm =
        copies::by_kernels, Anything, 1, [ZERO_SM, processes::threads("2"), MANY];
}

cases! {
    guest_process by processes::each_communicator:
    guests_of_processes = guests::everything, Anything, 3, [];
    guests_of_processes_on_two_gpus = guests::everything, StandIn, 2, [devices("2")];
    guests_of_threads = guests::everything, Anything, 1, [processes::threads("4"), MANY];
    guests_of_one = guests::everything, Anything, 1, [processes::threads("1"), MANY];
    guests_multiply = guests::matmul, Anything, 1, [processes::threads("3"), MANY];
    guests_of_processes_multiply = guests::matmul, Anything, 2, [];
    guests_mark_buckets = guests::gradients, Anything, 1, [processes::threads("2"), MANY];
    guests_of_processes_mark_buckets = guests::gradients, Anything, 3, [];
    guests_of_processes_whose_buckets_are_never_ready = guests::never_ready, Anything, 2, [];
    guests_in_graphs = guests::captured, Anything, 1, [processes::threads("2"), MANY];
    guests_overlap = guests::overlap, Anything, 1, [processes::threads("2"), MANY];
    guests_of_processes_overlap = guests::overlap, Anything, 2, [];
    guests_that_wait_are_stopped = guests::aborted, Anything, 1, [processes::threads("2"), MANY];
    guests_of_processes_that_wait_are_stopped = guests::aborted, Anything, 2, [];
    guests_of_a_dead_process_are_stopped = guests::death, Anything, 2, [];
    guests_that_differ_are_named = guests::differ, StandIn, 2, [];
    guests_that_cannot_be = guests::refused, StandIn, 1, [processes::threads("2"), MANY];
    guests_between_nodes = guests::refused, StandIn, 1, [processes::threads("2"), MANY, TWO_NODES];
}

/// Gated groups, and ranks that are threads of one GPU, over few connections and many.
#[test]
fn streams_of_any_number_of_connections() {
    for count in ["1", "2", "3", "8", "32"] {
        let connections = ("CUDA_DEVICE_MAX_CONNECTIONS", count);
        let group = |case: &str, processes: usize, threads: Option<&'static str>| {
            let ranks = threads.map(processes::threads);
            let settings: Vec<_> = ranks.into_iter().chain([connections]).collect();
            run(case, "group_process", Anything, processes, &settings);
        };
        group("groups_of_processes_bucket_by_bucket", 2, None);
        for ranks in ["1", "2"] {
            group("groups_bucket_by_bucket", 1, Some(ranks));
            group("gradients_in_buckets", 1, Some(ranks));
            group("parameters_in_buckets", 1, Some(ranks));
        }
        group("a_done_bucket_is_done", 1, Some("3"));
        let threads = [processes::threads("3"), connections];
        run("calls_in_several_streams", "communicator_process", Anything, 1, &threads);
        run(
            "one_launch_for_groups_of_all_ranks",
            "start_process",
            StandIn,
            1,
            &[connections, needs("6")],
        );
    }
}

/// Devices that a switch joins, and those of them that say so.
const fn devices(count: &'static str) -> (&'static str, &'static str) {
    ("OXCCL_STAND_IN_DEVICES", count)
}

const fn switched(count: &'static str) -> (&'static str, &'static str) {
    ("OXCCL_STAND_IN_MULTICAST", count)
}

/// Makes a call of the driver fail.
const fn failing(call: &'static str) -> (&'static str, &'static str) {
    ("OXCCL_STAND_IN_FAIL", call)
}

cases! {
    switch_process by processes::each_communicator:
    a_switch_of_2_threads = multicast::all, Anything, 1, [devices("2"), switched("2"), processes::threads("2"), MANY];
    a_switch_of_4_threads = multicast::all, Anything, 1, [devices("4"), switched("4"), processes::threads("4"), MANY];
    a_switch_of_8_threads = multicast::all, Anything, 1, [devices("8"), switched("8"), processes::threads("8"), MANY];
    a_switch_of_3_threads_thread_by_thread =
        multicast::all, StandIn, 1, [devices("3"), switched("3"), processes::threads("3"), MANY, EMULATED];
    hot_kernels_of_a_switch_thread_by_thread =
        hot::by_a_switch, StandIn, 1, [devices("3"), switched("3"), processes::threads("3"), MANY, EMULATED];
    odd_ends_by_a_switch_thread_by_thread =
        multicast::odd_ends, StandIn, 1, [devices("3"), switched("3"), processes::threads("3"), MANY, EMULATED];
    a_switch_of_2_processes = multicast::all, StandIn, 2, [devices("2"), switched("2")];
    a_switch_of_4_processes = multicast::all, StandIn, 4, [devices("4"), switched("4")];
    a_switch_of_8_processes = multicast::all, StandIn, 8, [devices("8"), switched("8")];
    switches_of_nodes_of_threads =
        multicast::of_nodes, StandIn, 1, [devices("4"), switched("4"), processes::threads("4"), MANY, TWO_NODES];
    switches_of_nodes_thread_by_thread =
        multicast::of_nodes, StandIn, 1, [devices("4"), switched("4"), processes::threads("4"), MANY, TWO_NODES, EMULATED];
    switches_of_nodes_of_processes = multicast::of_nodes, StandIn, 4, [devices("4"), switched("4"), TWO_NODES];
    no_switch_on_a_node = multicast::none_of_nodes, StandIn, 4, [devices("4"), switched("2"), TWO_NODES];
    no_team_on_a_node =
        multicast::none_of_nodes, StandIn, 1,
        [devices("4"), switched("4"), failing("cuMulticastCreate:2"), processes::threads("4"), MANY, TWO_NODES];
    no_switch = multicast::none, StandIn, 2, [devices("2")];
    no_switch_for_one = multicast::none, StandIn, 2, [devices("2"), switched("1")];
    no_switch_on_one_gpu = multicast::none, StandIn, 1, [switched("1"), processes::threads("2"), MANY];
    no_switch_on_older_gpus = multicast::none, StandIn, 2, [devices("2"), switched("2"), ("OXCCL_STAND_IN_CAPABILITY", "80")];
    no_team = multicast::none, StandIn, 2, [devices("2"), switched("2"), failing("cuMulticastCreate:1")];
    one_does_not_join = multicast::none, StandIn, 1,
        [devices("2"), switched("2"), failing("cuMulticastAddDevice:2"), processes::threads("2"), MANY];
    one_does_not_bind = multicast::none, StandIn, 1,
        [devices("2"), switched("2"), failing("cuMulticastBindMem:1"), processes::threads("2"), MANY];
}

cases! {
    start_process by processes::each_rank:
    one_launch_for_all_ranks = joined::launches, StandIn, 1, [MANY, needs("6")];
    one_launch_for_groups_of_all_ranks = joined::groups, StandIn, 1, [MANY, needs("6")];
    hot_kernels = hot::kernels, Anything, 1, [MANY, needs("12")];
    hot_kernels_of_groups = hot::groups, Anything, 1, [MANY, needs("12")];
    copies_in_a_row = calls::copies_in_a_row, Anything, 1, [MANY, needs("8")];
    copies_in_a_row_thread_by_thread = calls::copies_in_a_row, StandIn, 1, [MANY, EMULATED];
    memory_is_ordered_in_copies_in_a_row = calls::copies_in_a_row, StandIn, 1, [MANY, ORDERED];
    hot_kernels_thread_by_thread = hot::kernels, StandIn, 1, [MANY, EMULATED, needs("6")];
    hot_kernels_of_groups_thread_by_thread = hot::groups, StandIn, 1, [MANY, EMULATED, needs("6")];
    one_launch_thread_by_thread = joined::launches, StandIn, 1, [MANY, EMULATED, needs("6")];
    one_launch_in_a_graph = joined::captured, StandIn, 1, [MANY];
    ranks_that_do_not_join =
        joined::misuse, StandIn, 1, [("CUDA_DEVICE_MAX_CONNECTIONS", "8")];
    starts_that_cannot_join =
        joined::starts, StandIn, 1, [MANY, ("OXCCL_STAND_IN_DEVICES", "2")];
    custom_schedules = custom::schedules, Anything, 1, [MANY];
    custom_schedules_thread_by_thread = custom::schedules, StandIn, 1, [MANY, EMULATED];
    lists_of_custom_schedules = custom::lists, Anything, 1, [MANY];
    lists_of_custom_schedules_thread_by_thread = custom::lists, StandIn, 1, [MANY, EMULATED];
    starts_that_fail = misuse::starts, StandIn, 2, [];
    starts_without_a_driver = misuse::no_driver, StandIn, 1, [("OXCCL_STAND_IN_DRIVER", "11040")];
    bulk_copies_without_an_engine =
        misuse::bulk_copies, StandIn, 1, [("OXCCL_STAND_IN_CAPABILITY", "80")];
    bulk_copies = misuse::bulk_copies, StandIn, 1, [];
    ways_that_adapters_have_not = misuse::not_direct, StandIn, 1, [MANY, TWO_NODES];
    starts_without_room = misuse::no_room, StandIn, 1, [("OXCCL_STAND_IN_MULTIPROCESSORS", "3")];
}
