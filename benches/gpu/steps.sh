# What stages are made of: steps with a limit each, rows of results, and the tools of the bundle or
# of this machine. Sourced by run.sh.

# Ranks share a GPU: NCCL allows it, no stream waits for another's to get there, and nothing goes
# through a network card. First calls of kernels do not load them while others wait for them in
# kernels. A call that hangs says so, with its step, after five seconds.
export NCCL_MULTI_RANK_GPU_ENABLE=1 CUDA_DEVICE_MAX_CONNECTIONS=32 NCCL_NET_GDR_LEVEL=LOC
export CUDA_MODULE_LOADING=EAGER OXCCL_TIMEOUT=${OXCCL_BUNDLE_TIMEOUT:-5}

oxccl=$here/bin/oxccl against_nccl=$here/bin/oxccl-against-nccl
image=(${OXCCL_BUNDLE_IMAGE:+--image "$OXCCL_BUNDLE_IMAGE"})

# within SECONDS COMMAND...: ends it, and what it has started, after so long, and before its stage
# ends; 125 if no time is left.
within() {
    local seconds=$1 left=$((deadline - SECONDS - 3))
    shift
    [ "$seconds" -le "$left" ] || seconds=$left
    [ "$seconds" -ge 1 ] || { echo "no time was left for $*"; return 125; }
    # In the background, so that the end of the stage finds it.
    timeout -k 2 "$seconds" "$@" </dev/null &
    echo $! >"$work/step.pid"
    wait $!
}

# ended STATUS: how a step that ended with it did.
ended() {
    case $1 in
    0) echo ok ;;
    124 | 137) echo "timed out" ;;
    125) echo "not run" ;;
    *) echo failed ;;
    esac
}

# rows: keeps its input as rows of this stage, and shows it.
rows() {
    tee -a "$results/$stage/rows.jsonl"
}

# row FORMAT VALUE...: one more row.
row() {
    printf "$@" >>"$results/$stage/rows.jsonl"
    printf '\n' >>"$results/$stage/rows.jsonl"
}

# skip REASON: a stage that cannot run here says why.
skip() {
    echo "skipped: $*"
    echo "$*" >"$results/$stage/skipped"
}

json_text() {
    local text=${1//\\/\\\\}
    text=${text//\"/\\\"}
    printf '"%s"' "$(tr -d '\000-\037' <<<"$text")"
}

gpu_state() {
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.draw \
        --format=csv,noheader 2>/dev/null | head -1
}

# timed SECONDS NAME COMMAND...: a step whose output is shown if it fails; sets `said` and
# `took_ms`.
timed() {
    local seconds=$1 name=$2 begun=$(date +%s%N) status
    shift 2
    within "$seconds" "$@" >"$work/step" 2>&1
    status=$?
    took_ms=$((($(date +%s%N) - begun) / 1000000))
    said=$(ended $status)
    [ $status != 0 ] || ! grep -q '^skipped: ' "$work/step" || said=skipped
    printf '%-9s %3d.%03d s  %s\n' "$said" $((took_ms / 1000)) $((took_ms % 1000)) "$name"
    [ $status = 0 ] || { cat "$work/step"; return 1; }
}

# unpack FILE.xz: its content in the work folder; machines without xz have Python.
unpack() {
    local to="$work/$(basename "$1" .xz)"
    [ -e "$to" ] || xz -dc "$1" >"$to" 2>/dev/null ||
        python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], "wb"))' "$1" "$to" ||
        rm -f "$to"
    [ -s "$to" ] && echo "$to"
}

# tool_here NAME: a tool of this machine's CUDA, which fits its driver.
tool_here() {
    command -v "$1" && return
    local found
    for found in /usr/local/cuda*/bin/"$1" /opt/nvidia/nsight-compute/*/"$1"; do
        [ ! -x "$found" ] || { echo "$found"; return; }
    done
    return 1
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

# compute-sanitizer: this machine's own, or else the bundle's, unpacked once.
sanitizer() {
    [ -z "${OXCCL_BUNDLE_SANITIZER:-}" ] || { echo "$OXCCL_BUNDLE_SANITIZER"; return; }
    tool_here compute-sanitizer && return
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

# nccl_rows: measurements of NCCL so far.
nccl_rows() {
    grep -c '"contestant":"nccl","family"' "$results/$stage/rows.jsonl"
}

# bench SECONDS ARGUMENT...: a comparison, with NCCL if it is here. If that fails before NCCL was
# measured, which cannot be told to go on, it is asked for less, and then oxccl's own numbers are
# taken without.
bench() {
    local before with library
    before=$(nccl_rows)
    if library=$(nccl) && [ -n "$library" ]; then
        for with in "" "--nccl-ways default --nccl-ctas 8"; do
            one_bench "$@" --nccl-lib "$library" $with && return
            [ "$(nccl_rows)" = "$before" ] || return 1
        done
        one_bench "$@" --floor-only
        return 1
    fi
    one_bench "$@" --floor-only
}

# one_bench SECONDS ARGUMENT...: the tool with what all benches have, whose ranks share launches
# unless OXCCL_SINGLE_LAUNCH is 0; its rows say so. Those of ranks that do not say whether calls
# could have kernels of their schedules (OXCCL_HOT_KERNELS). NCCL's start, and filling long buffers,
# may take longer than a call may.
one_bench() {
    local seconds=$1 joined=${OXCCL_SINGLE_LAUNCH:-1} hot=${OXCCL_HOT_KERNELS:-1}
    shift
    [ "$quick" = 0 ] || set -- "$@" --repeats 2 --repeat-ms 1 --nccl-ctas 2
    echo "\$ oxccl-against-nccl $*"
    OXCCL_SINGLE_LAUNCH=$joined OXCCL_HOT_KERNELS=$hot within "$seconds" "$against_nccl" "$@" --patience $((4 * OXCCL_TIMEOUT)) "${image[@]}" --json |
        sed -u "s/^{/{\"single_launch\":$joined,\"hot_kernels\":$hot,/" | rows
    return "${PIPESTATUS[0]}"
}

# tests_of PROGRAM ARGUMENT...: the names of its tests, but for those that start a guest by tools of
# the sources.
tests_of() {
    within 10 "$@" --list --format terse | sed -n 's/: test$//p' | grep -v '_in_the_guest$' | sort
}

# run_tests SECONDS BEHIND ARGUMENT...: those tests one by one, from simple to hard, whose names
# `grep -E ARGUMENT...` leaves, each within so long; of these those that match $ONLY and none that
# match $BUT. BEHIND goes behind their names in rows.
run_tests() {
    local seconds=$1 behind=$2 tests=0 failed=0 program name said took_ms
    shift 2
    export OXCCL_TEST_HARDWARE=${OXCCL_BUNDLE_HARDWARE:-1}
    [ ! -d "$here/guests" ] || export OXCCL_TEST_GUESTS=$here/guests
    for program in "$here"/bin/cuda*; do
        while read -r name; do
            tests=$((tests + 1))
            timed "$seconds" "$name$behind" "$program" --exact "$name" || failed=$((failed + 1))
            row '{"op":"test","name":"%s","status":"%s","seconds":%d.%03d}' "$name$behind" "$said" $((took_ms / 1000)) $((took_ms % 1000))
        done < <(comm -23 <(tests_of "$program") <(tests_of "$program" --ignored) | grep -E "$@" | grep -E "${ONLY:-.}" | grep -vE "${BUT:-^$}" | by_difficulty)
    done
    [ "$tests" != 0 ] && [ "$failed" = 0 ] || { echo "$failed of $tests tests failed"; return 1; }
}

# by_difficulty: names of tests, the simple ones first, and last those in which ranks come late,
# differ or die.
by_difficulty() {
    awk '{
        class = 5
        if ($0 ~ /^(streams_keep_order|captures_are_known)$/) class = 1
        else if ($0 ~ /late|named|death|dead|abort|never|fails|failure/) class = 9
        else if ($0 ~ /graph|captur|replay/) class = 7
        else if ($0 ~ /^threads_on_one_gpu$/) class = 2
        else if ($0 ~ /of_one$/) class = 3
        else if ($0 ~ /group|bucket/) class = 6
        print class, $0
    }' | sort -s -k1,1n | cut -d' ' -f2
}
