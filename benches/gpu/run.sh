#!/usr/bin/env bash
# Runs stages of this bundle on a machine with a GPU: no Rust, no network, nothing installed. See
# --help.
#
# All that was measured so far is in one archive, which is written again every few seconds and
# behind each stage: what ends a call in the middle costs a few seconds of figures. A stage or a
# step that fails, or takes too long, does not keep the next from running.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/steps.sh"
source "$here/stages.sh"

usage() {
    cat <<TEXT
run.sh [-o ARCHIVE] [-t SECONDS] [-r RANKS] [-q] STAGE...

  -o ARCHIVE  where results go (default: ./results.tar.gz); those of other stages that it has stay in it
  -t SECONDS  for all stages of this call together (default: 540); each has a limit of its own, too
  -r RANKS    ranks to measure with, in this order (default: "8 2 4")
  -q          quick: few sizes and turns, to see that everything runs

Stages, from simple to hard. The first hour goes best as three calls, of one line each:

  probe       what the hardware, the driver and their hazards are; none of oxccl's code
  first       doctor, then the smallest real calls, of ranks that share a launch and that do not
  tests       the tests of the CUDA path on this GPU whose ranks are threads

  trace       when each step of single calls began and ended, for a trace viewer
  ncu         hardware counters of single calls
  bench       short and long collectives beside copies, an empty kernel and NCCL
  sweep       sizes between, other types, numbers of channels, time of the host
  alone       short collectives of ranks that launch by themselves

  groups      buckets in one launch, beside NCCL's groups
  sanitizer   what compute-sanitizer finds in small calls
  processes   the tests with several processes, under MPS and without
  profile     kernels of a call and of a group, as CUPTI counts them
TEXT
}

archive=./results.tar.gz total=540 ranks="8 2 4" quick=0
while getopts "o:t:r:qh-:" option; do
    case $option in
    o) archive=$OPTARG ;;
    t) total=$OPTARG ;;
    r) ranks=$OPTARG ;;
    q) quick=1 ;;
    h | -) usage; exit ;;
    *) usage >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || { usage >&2; exit 2; }
for stage in "$@"; do
    limit "$stage" >/dev/null || { usage >&2; exit 2; }
done

work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
results=$work/results
mkdir -p "$results" "$(dirname "$archive")" && archive=$(cd "$(dirname "$archive")" && pwd)/$(basename "$archive") || exit 2
if [ -s "$archive" ]; then
    tar xzf "$archive" -C "$results" || exit 2
    cmp -s "$here/bundle.json" "$results/bundle.json" || { echo "$archive is of another bundle: name a new one" >&2; exit 2; }
fi
cp "$here/bundle.json" "$results/"

# keep: the archive has all that there is now. Its name never stands for a part of it.
keep() {
    kept_at=$SECONDS
    tar czf "$archive.partial" -C "$results" . 2>/dev/null
    # 1: a file has grown meanwhile.
    [ $? -le 1 ] && mv "$archive.partial" "$archive"
}

# told STATUS REASON: what became of the stage.
told() {
    cat >"$results/$stage/stage.json" <<JSON
{"stage": "$stage", "status": "$1", "seconds": $((SECONDS - started)), "limit": $seconds, "reason": $(json_text "$2"),
 "begun": "$begun", "quick": $([ "$quick" = 1 ] && echo true || echo false), "kernel": $(json_text "$(uname -srm)"),
 "before": $(json_text "$before"), "after": $(json_text "$(gpu_state)")}
JSON
}

# Ends the stage's processes: its own group, and that of its step.
end_stage() {
    kill -TERM -- "-$pid" "$(cat "$work/step.pid" 2>/dev/null)" 2>/dev/null
    sleep 1
    kill -KILL -- "-$pid" 2>/dev/null
    stop_mps
}

# What a kill of this script leaves is what it leaves at the end of a stage.
ended_from_outside() {
    [ -z "${pid:-}" ] || end_stage
    [ -z "${stage:-}" ] || told ended "the call was ended in the middle"
    keep
    exit 143
}
trap ended_from_outside TERM INT HUP

run_stage() {
    local status said=ok reason="" late=0
    rm -rf "${results:?}/$stage"
    mkdir "$results/$stage"
    : >"$results/$stage/rows.jsonl"
    begun=$(date -u +%Y-%m-%dT%H:%M:%SZ) before=$(gpu_state) started=$SECONDS
    deadline=$((SECONDS + seconds))
    # What stands there if nobody can write anything more.
    told ended "the call was ended in the middle"
    keep
    set -m
    "stage_$stage" >"$results/$stage/log" 2>&1 </dev/null &
    pid=$!
    set +m
    while kill -0 "$pid" 2>/dev/null; do
        if [ "$SECONDS" -ge "$deadline" ]; then
            late=1
            end_stage
        fi
        [ $((SECONDS - kept_at)) -lt 5 ] || keep
        sleep 0.2
    done
    wait "$pid" 2>/dev/null
    status=$?
    pid=""
    if [ "$late" = 1 ]; then
        said="timed out" reason="it took more than $seconds s"
    elif [ -e "$results/$stage/skipped" ]; then
        said=skipped reason=$(cat "$results/$stage/skipped")
    elif [ "$status" != 0 ]; then
        said=failed reason="status $status: $({ grep '^oxccl: ' "$results/$stage/log" || grep -v '^$' "$results/$stage/log"; } | tail -1 | cut -c1-300)"
    fi
    told "$said" "$reason"
    keep
    printf '%-10s %-10s %4d s  %s\n' "$stage" "$said" $((SECONDS - started)) "$reason"
    [ "$said" = ok ] || [ "$said" = skipped ]
}

# A stage for which no time was left. What an earlier call has of it stays.
not_run() {
    begun=$(date -u +%Y-%m-%dT%H:%M:%SZ) before="" started=$SECONDS
    mkdir "$results/$stage"
    told skipped "no time was left"
    keep
}

all=0 kept_at=0 pid=""
for stage in "$@"; do
    seconds=$(limit "$stage")
    [ "$seconds" -le $((total - SECONDS)) ] || seconds=$((total - SECONDS))
    if [ "$seconds" -le 5 ]; then
        echo "$stage: no time was left"
        [ -e "$results/$stage" ] || not_run
        all=1
        continue
    fi
    run_stage || all=1
    stage=""
done
if command -v python3 >/dev/null; then
    python3 "$here/summarize.py" "$archive" || all=1
else
    echo "no python3 here: run benches/gpu/summarize.py on $archive later"
fi
exit $all
