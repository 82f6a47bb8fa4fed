#!/usr/bin/env bash
# Runs what this bundle holds on a machine with a GPU: no Rust, no network, nothing installed. See --help.
#
# A stage that fails, or takes too long, does not keep the next from running. The exit status is 0 if none failed; a target
# that was missed is a result, and no failure.
set -uo pipefail

# Ranks share a GPU: NCCL allows it, no stream waits for another's to get there, and nothing goes through a network card.
export NCCL_MULTI_RANK_GPU_ENABLE=1 CUDA_DEVICE_MAX_CONNECTIONS=32 NCCL_NET_GDR_LEVEL=LOC

stages=(doctor tests bench group sanitizer profile processes)
usage() {
    cat <<TEXT
run.sh [-o FOLDER] [-t SECONDS] [-r RANKS] [-q] [STAGE...]

  -o FOLDER   where results go (default: ./results): results.json and a log of each stage
  -t SECONDS  for all stages together (default: 560); each has its share of it
  -r RANKS    ranks to measure with, in this order (default: "8 2 4")
  -q          quick: few sizes and turns, to see that everything runs
  STAGE       of ${stages[*]} (default: all)

  doctor      what the machine has
  tests       the tests of the CUDA path on this GPU whose ranks are threads
  bench       collectives beside copies, an empty kernel and NCCL
  group       buckets in one launch, beside NCCL's groups
  sanitizer   memcheck and racecheck of compute-sanitizer on small calls
  profile     kernels of a call and of a group, as CUPTI counts them
  processes   the other tests: processes take turns on a GPU, and so they take longer
TEXT
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=./results total=560 ranks="8 2 4" quick=0
while getopts "o:t:r:qh-:" option; do
    case $option in
    o) out=$OPTARG ;;
    t) total=$OPTARG ;;
    r) ranks=$OPTARG ;;
    q) quick=1 ;;
    h | -) usage; exit ;;
    *) usage >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
for stage in "$@"; do
    [[ " ${stages[*]} " == *" $stage "* ]] || { usage >&2; exit 2; }
done
[ $# -eq 0 ] || stages=("$@")

mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
work=$(mktemp -d) || exit 2
image=(${OXCCL_BUNDLE_IMAGE:+--image "$OXCCL_BUNDLE_IMAGE"})
trap 'rm -rf "$work"' EXIT
: >"$out/rows.jsonl"
: >"$out/stages.jsonl"

# skip REASON: a stage that cannot run here says why.
skip() {
    echo "skipped: $*"
    echo "$*" >"$work/skipped"
}

# within SECONDS COMMAND...: ends it, and what it has started, after so long, and before its stage ends; 125 if no time is left.
within() {
    local seconds=$1 left=$((deadline - SECONDS - 3))
    shift
    [ "$seconds" -le "$left" ] || seconds=$left
    [ "$seconds" -ge 1 ] || { echo "no time was left for $*"; return 125; }
    timeout -k 2 "$seconds" "$@" </dev/null
}

# unpack FILE.xz: its content in the work folder; machines without xz have Python.
unpack() {
    local to="$work/$(basename "$1" .xz)"
    [ -e "$to" ] || xz -dc "$1" >"$to" 2>/dev/null ||
        python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], "wb"))' "$1" "$to" ||
        rm -f "$to"
    [ -s "$to" ] && echo "$to"
}

# NCCL: the bundle's, unpacked once; otherwise one that Python packages of this machine brought.
nccl() {
    local found
    [ -z "${OXCCL_BUNDLE_NCCL:-}" ] || { echo "$OXCCL_BUNDLE_NCCL"; return; }
    if [ -e "$here/lib/libnccl.so.2.xz" ]; then
        unpack "$here/lib/libnccl.so.2.xz" && return
    fi
    found=$(python3 -c 'import os, nvidia.nccl as n; print(os.path.join(list(n.__path__)[0], "lib", "libnccl.so.2"))' 2>/dev/null)
    [ -e "${found:-}" ] && echo "$found"
}

# compute-sanitizer: this machine's own, which fits its driver, or else the bundle's, unpacked once.
sanitizer() {
    [ -z "${OXCCL_BUNDLE_SANITIZER:-}" ] || { echo "$OXCCL_BUNDLE_SANITIZER"; return; }
    command -v compute-sanitizer && return
    [ ! -x /usr/local/cuda/bin/compute-sanitizer ] || { echo /usr/local/cuda/bin/compute-sanitizer; return; }
    local archive
    [ -e "$here/lib/compute-sanitizer.tar.xz" ] && archive=$(unpack "$here/lib/compute-sanitizer.tar.xz") || return 1
    [ -d "$work/compute-sanitizer" ] || tar xf "$archive" -C "$work" || return 1
    echo "$work/compute-sanitizer/compute-sanitizer"
}

# What lists the kernels that a GPU executes.
profiler() {
    [ -z "${OXCCL_BUNDLE_PROFILER:-}" ] || { echo "$OXCCL_BUNDLE_PROFILER"; return; }
    [ -e "$here/lib/libprofile.so" ] && unpack "$here/lib/libcupti.so.13.xz" >/dev/null &&
        cp "$here/lib/libprofile.so" "$work/" && echo "$work/libprofile.so"
}

gpu_state() {
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.draw \
        --format=csv,noheader 2>/dev/null | head -1
}

# nccl_rows: measurements of NCCL so far.
nccl_rows() {
    grep -c '"contestant":"nccl","family"' "$out/rows.jsonl"
}

# bench SECONDS ARGUMENT...: a comparison, with NCCL if it is here. If that fails before NCCL was measured, which cannot be told to
# go on, it is asked for less, and then oxccl's own numbers are taken without.
bench() {
    local before with library
    before=$(nccl_rows)
    if library=$(nccl) && [ -n "$library" ]; then
        for with in "" "--nccl-ways default --nccl-ctas 8"; do
            one_bench "$@" --compare nccl --nccl-lib "$library" $with && return
            [ "$(nccl_rows)" = "$before" ] || return 1
        done
        one_bench "$@" --compare floor
        return 1
    fi
    one_bench "$@" --compare floor
}

# one_bench SECONDS ARGUMENT...: the command with what all benches have; rows go to rows.jsonl as well as into the log.
one_bench() {
    local seconds=$1
    shift
    [ "$quick" = 0 ] || set -- "$@" --repeats 2 --repeat-ms 1 --channels 2 --nccl-ctas 2
    echo "\$ oxccl bench $*"
    within "$seconds" "$here/bin/oxccl" bench "$@" "${image[@]}" --json | tee -a "$out/rows.jsonl"
}

stage_doctor() {
    uname -srm
    gpu_state
    # What it finds missing on such a machine (launchers, network cards) is no failure of this stage; a GPU is needed.
    within 15 "$here/bin/oxccl" doctor | tee "$work/doctor"
    grep -q 'ok.*device' "$work/doctor" || { echo "oxccl sees no GPU"; return 1; }
}

# Tests with more than one process, by their names.
several='processes|dead_process|abort|death_in|registered|another_library'

# run_tests SECONDS ARGUMENT...: those tests one by one whose names `grep -E ARGUMENT...` leaves, each within so long.
run_tests() {
    local seconds=$1 tests=0 failed=0 program name
    shift
    # First calls of kernels do not load them while others wait for them in kernels.
    export CUDA_MODULE_LOADING=EAGER OXCCL_TEST_HARDWARE=${OXCCL_BUNDLE_HARDWARE:-1}
    for program in "$here"/bin/cuda*; do
        while read -r name; do
            tests=$((tests + 1))
            one_test "$seconds" "$program" "$name" || failed=$((failed + 1))
        done < <(comm -23 <(tests_of "$program") <(tests_of "$program" --ignored) | grep -E "$@")
    done
    [ "$tests" != 0 ] && [ "$failed" = 0 ] || { echo "$failed of $tests tests failed"; return 1; }
}

# tests_of PROGRAM ARGUMENT...: the names of its tests, but for those that start a guest by tools of the sources.
tests_of() {
    within 10 "$@" --list --format terse | sed -n 's/: test$//p' | grep -v '_in_the_guest$' | sort
}

# one_test SECONDS PROGRAM NAME: a line of how it ended, and a row; what it said if it failed.
one_test() {
    local said=ok begun=$(date +%s%N) status took
    within "$1" "$2" --exact "$3" >"$work/test" 2>&1
    status=$?
    took=$((($(date +%s%N) - begun) / 1000000))
    case $status in
    0) ! grep -q '^skipped: ' "$work/test" || said=skipped ;;
    124 | 137) said="timed out" ;;
    125) said="not run" ;;
    *) said=failed ;;
    esac
    printf '%-9s %3d.%03d s  %s\n' "$said" $((took / 1000)) $((took % 1000)) "$3"
    printf '{"op":"test","name":"%s","status":"%s","seconds":%d.%03d}\n' "$3" "$said" $((took / 1000)) $((took % 1000)) >>"$out/rows.jsonl"
    [ "$status" = 0 ] || { cat "$work/test"; return 1; }
}

stage_tests() {
    run_tests ${OXCCL_BUNDLE_SECONDS:-25} -v "$several"
}

stage_processes() {
    run_tests ${OXCCL_BUNDLE_SECONDS:-45} "$several"
}

stage_bench() {
    local n op failed=0
    if [ "$quick" = 1 ]; then
        for n in $ranks; do
            bench 60 all_reduce --ranks "$n" -b 4K -e 4K -G 2 || failed=1
        done
        return $failed
    fi
    for n in $ranks; do
        bench 120 all_reduce --ranks "$n" -b 8 -e 16K -f 2 -G 20 --repeat-ms 5 || failed=1
        bench 90 all_reduce --ranks "$n" -b 64M -e 256M -f 2 || failed=1
    done
    for n in $ranks; do
        for op in reduce_scatter all_gather all_to_all; do
            bench 60 $op --ranks "$n" -b 64M -e 64M || failed=1
        done
    done
    # No target is between: for the table alone.
    for n in $ranks; do
        bench 60 all_reduce --ranks "$n" -b 32K -e 32M -f 8 --repeat-ms 5 || failed=1
    done
    return $failed
}

stage_group() {
    local n model failed=0
    if [ "$quick" = 1 ]; then
        for n in $ranks; do
            bench 60 group --ranks "$n" --buckets 3 --bucket-size 2K -G 2 || failed=1
        done
        return $failed
    fi
    for n in $ranks; do
        bench 60 group --ranks "$n" --buckets 20 --bucket-size 64K -G 4 || failed=1
        bench 60 group --ranks "$n" --buckets 20 --bucket-size 2K -G 4 || failed=1
    done
    for model in resnet_50 gpt2_small; do
        for n in $ranks; do
            bench 150 group --ranks "$n" --buckets-from "$here/data/$model.toml" || failed=1
        done
    done
    return $failed
}

stage_sanitizer() {
    local tool check what status failed=0
    tool=$(sanitizer) && [ -n "$tool" ] || { skip "there is no compute-sanitizer, in the bundle or here"; return; }
    within 10 "$tool" --version
    # Ranks share a launch: those that wait for each other in launches of their own hang where the sanitizer lets one kernel run at a time.
    for check in memcheck racecheck; do
        for what in "all_reduce -b 1K -e 64K -f 64" "group --buckets 3 --bucket-size 2K --modes fused"; do
            echo "== $check: $what"
            within 35 "$tool" --tool "$check" --error-exitcode 9 "$here/bin/oxccl" bench $what --device cuda --threads --single-launch \
                --ranks 2 --no-probe --warmup-iters 1 --iters 2 --repeats 1 --json "${image[@]}"
            status=$?
            [ $status = 0 ] || { echo "== $check: $what: status $status"; failed=1; }
            printf '{"op":"sanitizer","check":"%s","what":"%s","ranks":2,"status":%d}\n' "$check" "${what%% *}" "$status" >>"$out/rows.jsonl"
        done
    done
    return $failed
}

# profiled CALLS MODE FILE: lists the kernels of a bench in which a timed loop has so many calls of 20 buckets.
profiled() {
    CUDA_INJECTION64_PATH=$profiler OXCCL_PROFILE=$3 within 15 "$here/bin/oxccl" bench group --device cuda --threads --ranks 2 \
        --no-probe --buckets 20 --bucket-size 2K --modes "$2" --iters "$1" --repeats 1 --json "${image[@]}"
}

stage_profile() {
    local profiler mode failed=0
    profiler=$(profiler) && [ -n "$profiler" ] || { skip "the bundle has no profiler"; return; }
    for mode in fused one_by_one ideal; do
        # Three loops of ten calls more.
        profiled 10 $mode "$work/$mode-10" && profiled 20 $mode "$work/$mode-20" &&
            python3 "$here/kernels.py" $mode 2 30 "$work/$mode-10" "$work/$mode-20" | tee -a "$out/rows.jsonl" || failed=1
    done
    return $failed
}

# limit STAGE: the most seconds that it gets.
limit() {
    case $1 in
    doctor) echo 20 ;;
    tests) echo 180 ;;
    bench) echo 540 ;;
    group) echo 540 ;;
    sanitizer) echo 160 ;;
    profile) echo 60 ;;
    processes) echo 180 ;;
    esac
}

json_text() {
    local text=${1//\\/\\\\}
    text=${text//\"/\\\"}
    printf '"%s"' "$(tr -d '\000-\037' <<<"$text")"
}

# Ends a stage's processes, all of which are in its group.
run_stage() {
    local stage=$1 seconds=$2 pid status started=$SECONDS waited=0
    rm -f "$work/skipped"
    deadline=$((SECONDS + seconds))
    set -m
    "stage_$stage" >"$out/$stage.log" 2>&1 &
    pid=$!
    set +m
    while kill -0 "$pid" 2>/dev/null; do
        if [ $((SECONDS - started)) -ge "$seconds" ]; then
            kill -TERM -- "-$pid" 2>/dev/null
            sleep 1
            kill -KILL -- "-$pid" 2>/dev/null
            waited=1
        fi
        sleep 0.2
    done
    wait "$pid" 2>/dev/null
    status=$?
    local said=ok reason=""
    if [ "$waited" = 1 ]; then
        said="timed out" reason="it took more than $seconds s"
    elif [ -e "$work/skipped" ]; then
        said=skipped reason=$(cat "$work/skipped")
    elif [ "$status" != 0 ]; then
        said=failed reason="status $status: $({ grep '^oxccl: ' "$out/$stage.log" || grep -v '^$' "$out/$stage.log"; } | tail -1 | cut -c1-300)"
    fi
    printf '{"stage":"%s","status":"%s","seconds":%d,"limit":%d,"reason":%s}\n' \
        "$stage" "$said" $((SECONDS - started)) "$seconds" "$(json_text "$reason")" >>"$out/stages.jsonl"
    printf '%-10s %-10s %4d s  %s\n' "$stage" "$said" $((SECONDS - started)) "$reason"
    [ "$said" = ok ] || [ "$said" = skipped ]
}

before=$(gpu_state)
begun=$SECONDS all=0 wanted=0
for stage in "${stages[@]}"; do
    wanted=$((wanted + $(limit "$stage")))
done
for stage in "${stages[@]}"; do
    # Its share of what is left, beside the stages behind it.
    seconds=$(limit "$stage")
    share=$(((total - (SECONDS - begun)) * seconds / wanted))
    wanted=$((wanted - seconds))
    [ "$seconds" -le "$share" ] || seconds=$share
    if [ "$seconds" -le 5 ]; then
        printf '{"stage":"%s","status":"skipped","seconds":0,"limit":0,"reason":"no time was left"}\n' "$stage" >>"$out/stages.jsonl"
        echo "$stage: no time was left"
        all=1
        continue
    fi
    run_stage "$stage" "$seconds" || all=1
done
printf '{"before":%s,"after":%s,"date":"%s","kernel":%s,"quick":%s}\n' "$(json_text "$before")" "$(json_text "$(gpu_state)")" \
    "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$(json_text "$(uname -srm)")" "$([ "$quick" = 1 ] && echo true || echo false)" >"$out/machine.json"
cp "$here/bundle.json" "$out/bundle.json"
if command -v python3 >/dev/null; then
    python3 "$here/summarize.py" "$out" || all=1
else
    echo "no python3 here: run benches/gpu/summarize.py on $out later"
fi
exit $all
