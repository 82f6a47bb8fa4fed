//! GPUs below the communicator, end to end against the stand-in driver: memory is exchanged, connections are made, verified
//! schedules are lowered and launched in streams and graphs, by processes and by threads. Each case is a set of processes
//! that take the stand-in for libcuda.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod failures;
mod order;
mod processes;
mod rank;
mod results;

use processes::run;

macro_rules! cases {
    ($($case:ident = $function:path, $ranks:expr, $settings:expr;)*) => {
        $(#[test] fn $case() {
            run(stringify!($case), $ranks, &$settings);
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
    processes_on_one_gpu = results::all_reduces, 3, [];
    processes_on_two_gpus = results::all_reduces, 2, [("OXCCL_STAND_IN_DEVICES", "2")];
    threads_on_one_gpu = results::all_reduces, 1, [processes::threads("4")];
    threads_on_two_gpus =
        results::all_reduces, 1, [processes::threads("3"), ("OXCCL_STAND_IN_DEVICES", "2")];
    buffers_of_another_library = results::foreign_buffers, 3, [];
    one_graph_of_all_ranks = results::one_graph, 1, [];
    streams_keep_order = order::streams, 1, [];
    captures_are_known = order::captures, 1, [];
    foreign_streams = order::foreign, 1, [("OXCCL_STAND_IN_DEVICES", "2")];
    every_failure_of_a_start = failures::every_call, 2, [];
    an_abort_ends_kernels = failures::abort, 2, [];
    a_death_ends_kernels = failures::death, 1, [];
    too_many_blocks = failures::too_many_blocks, 1, [("OXCCL_STAND_IN_MULTIPROCESSORS", "3")];
    a_stream_of_another_gpu = failures::wrong_context, 1, [("OXCCL_STAND_IN_DEVICES", "2")];
    no_image_for_a_gpu = failures::no_image, 1, [("OXCCL_STAND_IN_CAPABILITY", "75")];
    a_host_pointer_ends_the_context = failures::host_pointer, 1, [];
}
