#!/usr/bin/env bash
# Runs what this bundle holds on a machine with a GPU: no Rust, no network, nothing installed. See --help.
#
# A stage that fails, or takes too long, does not keep the next from running. The exit status is 0 if none failed; a target
# that was missed is a result, and no failure.
set -uo pipefail

stages=(doctor tests bench group sanitizer profile)
usage() {
    cat <<TEXT
run.sh [-o FOLDER] [-t SECONDS] [-r RANKS] [-q] [STAGE...]

  -o FOLDER   where results go (default: ./results): results.json and a log of each stage
  -t SECONDS  for all stages together (default: 560)
  -r RANKS    ranks to measure with, in this order (default: "8 2 4")
  -q          quick: few sizes and turns, to see that everything runs
  STAGE       of ${stages[*]} (default: all)

  doctor      what the machine has
  tests       the tests of the CUDA path on this GPU
  bench       collectives beside copies, an empty kernel and NCCL
  group       buckets in one launch, beside NCCL's groups
  sanitizer   memcheck and racecheck of compute-sanitizer on small calls
  profile     launches of a call and of a group, as Nsight Systems counts them
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
trap 'rm -rf "$work"' EXIT
: >"$out/rows.jsonl"
: >"$out/stages.jsonl"

# skip REASON: a stage that cannot run here says why.
skip() {
    echo "skipped: $*"
    echo "$*" >"$work/skipped"
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

sanitizer() {
    if [ -e "$here/lib/compute-sanitizer.tar.xz" ]; then
        local archive
        archive=$(unpack "$here/lib/compute-sanitizer.tar.xz") || return 1
        [ -d "$work/compute-sanitizer" ] || tar xf "$archive" -C "$work" || return 1
        echo "$work/compute-sanitizer/compute-sanitizer"
        return
    fi
    command -v compute-sanitizer || { [ -x /usr/local/cuda/bin/compute-sanitizer ] && echo /usr/local/cuda/bin/compute-sanitizer; }
}

gpu_state() {
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.draw \
        --format=csv,noheader 2>/dev/null | head -1
}

# bench WITH ARGUMENT...: a comparison. If it fails with NCCL, which cannot be told to go on, oxccl's own numbers are taken without.
bench() {
    local with=$1
    shift
    one_bench $with "$@" && return
    [[ $with == *floor ]] || one_bench --compare floor "$@"
    return 1
}

# one_bench ARGUMENT...: the command with what all benches have; rows go to rows.jsonl as well as into the log.
one_bench() {
    local more=()
    [ "$quick" = 0 ] || more=(--repeats 2 --repeat-ms 1 --channels 2 --nccl-ctas 2)
    [ -z "${OXCCL_BUNDLE_IMAGE:-}" ] || more+=(--image "$OXCCL_BUNDLE_IMAGE")
    echo "\$ oxccl bench $*"
    "$here/bin/oxccl" bench "$@" "${more[@]}" --json > >(tee -a "$out/rows.jsonl") || return
}

# against: what to compare with.
against() {
    local library
    if library=$(nccl) && [ -n "$library" ]; then
        echo "--compare nccl --nccl-lib $library"
    else
        echo "--compare floor"
    fi
}

stage_doctor() {
    uname -srm
    gpu_state
    # What it finds missing on such a machine (launchers, network cards) is no failure of this stage; a GPU is needed.
    "$here/bin/oxccl" doctor | tee "$work/doctor"
    grep -q 'ok.*device' "$work/doctor" || { echo "oxccl sees no GPU"; return 1; }
}

stage_tests() {
    local failed=0 test
    for test in "$here"/bin/cuda*; do
        echo "== $(basename "$test")"
        OXCCL_TEST_HARDWARE=${OXCCL_BUNDLE_HARDWARE:-1} "$test" --test-threads=1 || failed=1
    done
    return $failed
}

stage_bench() {
    local n with failed=0
    with=$(against)
    [[ $with == *nccl* ]] || echo "no NCCL: compared with the floor alone"
    for n in $ranks; do
        if [ "$quick" = 1 ]; then
            bench "$with" all_reduce --ranks "$n" -b 4K -e 4K -G 2 || failed=1
        else
            bench "$with" all_reduce --ranks "$n" -b 8 -e 256M -f 2 -G 20 --repeat-ms 5 || failed=1
            bench "$with" all --ranks "$n" -b 16K -e 64M -f 4096 -G 4 || failed=1
        fi
    done
    return $failed
}

stage_group() {
    local n with failed=0 model
    with=$(against)
    for n in $ranks; do
        if [ "$quick" = 1 ]; then
            bench "$with" group --ranks "$n" --buckets 3 --bucket-size 2K -G 2 || failed=1
            continue
        fi
        bench "$with" group --ranks "$n" --buckets 20 --bucket-size 64K -G 4 || failed=1
        bench "$with" group --ranks "$n" --buckets 20 --bucket-size 2K -G 4 || failed=1
        for model in "$here"/data/*.toml; do
            bench "$with" group --ranks "$n" --buckets-from "$model" -G 1 || failed=1
        done
    done
    return $failed
}

stage_sanitizer() {
    local tool check n status failed=0
    tool=$(sanitizer) && [ -n "$tool" ] || { skip "there is no compute-sanitizer, in the bundle or here"; return; }
    "$tool" --version
    # One rank waits for nobody; with two, the sanitizer must let both ranks' kernels run at once, or the time limit ends it.
    for check in memcheck racecheck; do
        for n in 1 2; do
            echo "== $check, $n ranks"
            timeout -k 5 60 "$tool" --tool "$check" --error-exitcode 9 \
                "$here/bin/oxccl" bench all_reduce --compare floor --ranks "$n" -b 1K -e 64K -f 64 \
                --repeats 1 --repeat-ms 1 --timeout 50 --json ${OXCCL_BUNDLE_IMAGE:+--image "$OXCCL_BUNDLE_IMAGE"}
            status=$?
            [ $status = 0 ] || { echo "== $check, $n ranks: status $status"; failed=1; }
            printf '{"op":"sanitizer","check":"%s","ranks":%d,"status":%d}\n' "$check" "$n" "$status" >>"$out/rows.jsonl"
        done
    done
    return $failed
}

stage_profile() {
    local nsys
    nsys=$(command -v nsys) || { skip "there is no nsys"; return; }
    "$nsys" profile --trace=cuda --force-overwrite=true -o "$work/profile" \
        "$here/bin/oxccl" bench all_reduce --compare floor --ranks 2 -b 4K -e 4K --repeats 1 --repeat-ms 1 --json &&
        "$nsys" stats --report cuda_gpu_kern_sum --format csv "$work/profile.nsys-rep" &&
        "$nsys" profile --trace=cuda --force-overwrite=true -o "$work/group" \
            "$here/bin/oxccl" bench group --device cuda --threads -g 2 --no-probe --buckets 20 --bucket-size 2K --repeats 1 --repeat-ms 1 --json &&
        "$nsys" stats --report cuda_gpu_kern_sum --format csv "$work/group.nsys-rep"
}

# limit STAGE: its seconds.
limit() {
    case $1 in
    doctor) echo 30 ;;
    tests) echo 120 ;;
    bench) echo 300 ;;
    group) echo 90 ;;
    sanitizer) echo 200 ;;
    profile) echo 60 ;;
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
begun=$SECONDS all=0
for stage in "${stages[@]}"; do
    left=$((total - (SECONDS - begun)))
    seconds=$(limit "$stage")
    [ "$seconds" -le "$left" ] || seconds=$left
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
