//! GPUs below the communicator, end to end against the stand-in driver: memory is exchanged, connections are made, verified
//! schedules are lowered and launched in streams and graphs, by processes and by threads. Each case is a set of processes
//! that take the stand-in for libcuda; with `OXCCL_TEST_HARDWARE=1`, those that can run on the machine's GPUs.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod failures;
mod order;
mod processes;
mod rank;
mod results;

use processes::On::{Anything, StandIn};
use processes::run;

macro_rules! cases {
    ($($case:ident = $function:path, $on:expr, $ranks:expr, $settings:expr;)*) => {
        $(#[test] fn $case() {
            run(stringify!($case), $on, $ranks, &$settings);
        })*

        #[test]
        #[ignore = "one process, started by the other tests"]
        fn rank_process() {
            match processes::case().as_str() {
                $(stringify!($case) => processes::each_rank($function),)*
                other => panic!("no case {other}"),
            }
        }
    };
}

cases! {
    processes_on_one_gpu = results::all_reduces, Anything, 3, [];
    processes_on_two_gpus = results::all_reduces, Anything, 2, [("OXCCL_STAND_IN_DEVICES", "2")];
    threads_on_one_gpu = results::all_reduces, Anything, 1, [processes::threads("4")];
    threads_on_two_gpus =
        results::all_reduces, Anything, 1, [processes::threads("3"), ("OXCCL_STAND_IN_DEVICES", "2")];
    buffers_of_another_library = results::foreign_buffers, Anything, 3, [];
    one_graph_of_all_ranks = results::one_graph, Anything, 1, [];
    streams_keep_order = order::streams, Anything, 1, [];
    streams_share_connections =
        order::one_connection, StandIn, 1, [("CUDA_DEVICE_MAX_CONNECTIONS", "1")];
    captures_are_known = order::captures, Anything, 1, [];
    foreign_streams = order::foreign, StandIn, 1, [("OXCCL_STAND_IN_DEVICES", "2")];
    every_failure_of_a_start = failures::every_call, StandIn, 2, [];
    an_abort_ends_kernels = failures::abort, Anything, 2, [];
    a_death_ends_kernels = failures::death, Anything, 1, [];
    too_many_blocks =
        failures::too_many_blocks, StandIn, 3, [("OXCCL_STAND_IN_MULTIPROCESSORS", "3"), ("OXCCL_STAND_IN_DEVICES", "2")];
    a_stream_of_another_gpu =
        failures::wrong_context, StandIn, 1, [("OXCCL_STAND_IN_DEVICES", "2")];
    no_image_for_a_gpu = failures::no_image, StandIn, 1, [("OXCCL_STAND_IN_CAPABILITY", "75")];
    a_host_pointer_ends_the_context = failures::host_pointer, StandIn, 1, [];
}
