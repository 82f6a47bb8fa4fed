//! Programs that stand in for what a machine with a GPU has, or for parts of the bundle.

/// A sanitizer that finds something in groups, of races.
pub(crate) const SANITIZER: &str = r#"#!/bin/sh
[ "$1" != --version ] || exit 0
test "$1 $3 $4 $5" = "--tool --kernel-regex kns=oxccl_f32_sum --error-exitcode" || exit 1
tool=$2 status=$6
shift 6
"$@" || exit 2
case "$tool $3" in
"racecheck group") exit "$status" ;;
esac
"#;

/// A profiler that does not know all counters, and counts three kernels.
pub(crate) const NCU: &str = r#"#!/bin/sh
[ "$1" != --version ] || exit 0
while [ "${1#--}" != "$1" ]; do
    case $1 in
    --clock-control | --kernel-name | --launch-skip | --launch-count) shift ;;
    --metrics) case $2 in *stalled*) exit 1 ;; esac; shift ;;
    --log-file) file=$2; shift ;;
    esac
    shift
done
"$@" || exit 2
echo "==PROF== connected" >"$file"
echo '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"' >>"$file"
for id in 0 1 2; do echo "\"$id\",\"oxccl_f32_sum\",\"sm__cycles_elapsed.max\",\"cycle\",\"1,234\""; done >>"$file"
"#;

/// Tests as a test program lists and runs them.
pub(crate) const TESTS: &str = r#"#!/bin/sh
case "$*" in
*--ignored*) echo "a_process: test" ;;
*--list*) printf '%s: test\n' a_process calls_of_processes fails hangs is_skipped passes rdma_in_the_guest \
    streams_keep_order ;;
*fails) echo "why it fails"; exit 101 ;;
*hangs) echo "on the way"; echo $$ >"$(dirname "$0")/hangs.pid"; exec sleep 1000 ;;
*is_skipped) echo "skipped: is_skipped: no reason" >&2 ;;
"--exact passes" | "--exact calls_of_processes" | "--exact streams_keep_order")
    test "$OXCCL_TEST_HARDWARE $CUDA_MODULE_LOADING $OXCCL_TIMEOUT" = "1 EAGER 5" ;;
*) exit 1 ;;
esac
"#;

/// Probes of which one hangs and one crashes.
pub(crate) const PROBES: &str = r#"#!/bin/sh
case $1 in
"") echo "harmless hangs crashes gates" ;;
harmless) echo '{"op":"probe","probe":"harmless","what":"x","value":1,"unit":"","hazard":false,"says":""}' ;;
hangs) sleep 1000 ;;
crashes) kill -SEGV $$ ;;
gates) echo '{"op":"probe","probe":"gates","what":"x","value":'$CUDA_DEVICE_MAX_CONNECTIONS',"unit":"","hazard":true,"says":"a value never comes"}' ;;
esac
"#;
