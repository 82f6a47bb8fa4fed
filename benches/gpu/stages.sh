# The stages: what each asks of the GPU, from simple to hard, and how long it may take. Sourced by
# run.sh.

# limit STAGE: the most seconds that it gets; fails of what is no stage.
limit() {
    case $1 in
    probe) echo 110 ;;
    first) echo 150 ;;
    tests) echo 540 ;;
    ncu) echo 120 ;;
    bench) echo 330 ;;
    sweep) echo 540 ;;
    alone) echo 240 ;;
    groups) echo 240 ;;
    sanitizer) echo 130 ;;
    processes) echo 300 ;;
    profile) echo 60 ;;
    trace) echo 90 ;;
    *) return 1 ;;
    esac
}

# --- the first call

# ask PROBE [CONNECTIONS]: one that hangs is a fact, too.
ask() {
    local status
    CUDA_DEVICE_MAX_CONNECTIONS=${2:-32} within ${OXCCL_BUNDLE_SECONDS:-12} "$here/bin/gpu-probe" "$1" | rows
    status=${PIPESTATUS[0]}
    # It has said itself why it gave up.
    [ $status -gt 1 ] || return $status
    row '{"op":"probe","probe":"%s","what":"the probe ran to its end","value":0,"unit":"","hazard":true,"says":"the probe %s %s (status %d)"}' \
        "$1" "$1" "$([ $status = 124 ] && echo "hangs" || echo "was ended")" $status
    return 1
}

stage_probe() {
    local name connections failed=0
    [ -x "$here/bin/gpu-probe" ] || { skip "the bundle has no probe"; return; }
    uname -srm
    gpu_state
    for name in ncu compute-sanitizer nvcc nvidia-cuda-mps-control python3; do
        echo "$name: $(tool_here $name || echo "not here")"
    done
    for name in $("$here/bin/gpu-probe"); do
        ask "$name" || failed=1
    done
    # What processes have that set nothing, and what some frameworks set.
    for connections in 8 1; do
        ask gates $connections || failed=1
    done
    echo "== hazards that are real:"
    sed -n 's/.*"hazard":true,"says":"\(.*\)"}$/\1/p' "$results/$stage/rows.jsonl"
    return $failed
}

# first RANKS SIZE JOINED: a call whose ranks share a launch (1) or not (0), checked.
first() {
    local what="$1 ranks, $([ "$3" = 1 ] && echo "one launch" || echo "launches of their own"), $2 B" said took_ms status=0
    OXCCL_SINGLE_LAUNCH=$3 timed ${OXCCL_BUNDLE_SECONDS:-20} "$what" "$oxccl" bench all_reduce --device cuda --threads --ranks "$1" -b "$2" -e "$2" \
        --patience $((2 * OXCCL_TIMEOUT)) --no-probe --warmup-iters 1 --iters 2 --repeats 1 --json "${image[@]}" || status=1
    row '{"op":"first","ranks":%d,"bytes":"%s","joined":%d,"status":"%s","seconds":%d.%03d,"says":%s}' "$1" "$2" "$3" "$said" \
        $((took_ms / 1000)) $((took_ms % 1000)) "$(json_text "$(grep '^oxccl: ' "$work/step" | head -1 | cut -c1-300)")"
    return $status
}

stage_first() {
    local joined n size counts="2 8" sizes="8 64K 64M" failed=0
    [ "$quick" = 0 ] || counts=2 sizes="8 64K"
    # What it finds missing on such a machine (launchers, network cards) is no failure of this
    # stage; a GPU is needed.
    within 15 "$oxccl" doctor | tee "$work/doctor"
    grep -q 'ok.*device' "$work/doctor" || { echo "oxccl sees no GPU"; return 1; }
    for joined in 1 0; do
        for n in $counts; do
            for size in $sizes; do
                first $n $size $joined || failed=1
            done
        done
    done
    return $failed
}

# Tests with more than one process, by their names.
several='refuses_a_fold|processes|dead_process|abort|death_in|registered|another_library'

stage_tests() {
    run_tests ${OXCCL_BUNDLE_SECONDS:-45} "" -v "$several"
}

# --- the second call

# Counters that tell whether a call is bound by instructions, by latency or by memory; the short
# list is on every GPU.
few_counters=sm__cycles_elapsed.max,gpu__time_duration.sum,smsp__inst_executed.sum
stalled=smsp__average_warps_issue_stalled
counters=$few_counters,smsp__average_warp_latency_per_inst_issued.ratio,l1tex__t_sector_hit_rate.pct,lts__t_sector_hit_rate.pct
counters+=,dram__bytes_read.sum,dram__bytes_write.sum
for reason in long_scoreboard barrier membar no_instruction branch_resolving short_scoreboard; do
    counters+=,${stalled}_${reason}_per_issue_active.ratio
done

# counted TYPE SIZE COUNTERS: of the first calls that are timed. Ranks share a launch: a profiler
# runs kernels one by one, and again and again.
counted() {
    local file="$results/$stage/$2-$1.csv"
    OXCCL_SINGLE_LAUNCH=1 OXCCL_TIMEOUT=30 within 25 "$tool" --clock-control none --kernel-name regex:oxccl --launch-skip 2 --launch-count 3 \
        --metrics "$3" --csv --log-file "$file" "$oxccl" bench all_reduce --device cuda --threads --ranks "$n" -b "$2" -e "$2" -d "$1" -c 0 \
        --no-probe --warmup-iters 1 --iters 2 --repeats 1 --json "${image[@]}" &&
        python3 "$here/counters.py" "$1" "$2" "$n" "$file" | rows
    [ "${PIPESTATUS[0]}" = 0 ] || { tail -3 "$file"; return 1; }
}

stage_ncu() {
    local tool type size of n=${ranks%% *} failed=0
    tool=${OXCCL_BUNDLE_NCU:-$(tool_here ncu)} || { skip "there is no ncu on this machine"; return; }
    within 10 "$tool" --version
    for of in "float 8" "float 64K" "float 64M" "float 16K" "float 1M" "bfloat16 64M" "f8e4m3 64M" "bfloat16 64K" "f8e4m3 64K"; do
        read -r type size <<<"$of"
        counted $type $size "$counters" || counted $type $size $few_counters || failed=1
        [ "$quick" = 0 ] || break
    done
    return $failed
}

# traced RANKS SIZE: the steps of one call, as a file for a trace viewer.
traced() {
    local file="$results/$stage/all_reduce-$1-$2.json" said took_ms steps=0 status=0
    OXCCL_SINGLE_LAUNCH=1 timed ${OXCCL_BUNDLE_SECONDS:-20} "$1 ranks, $2 B" "$oxccl" bench all_reduce --device cuda --threads --ranks "$1" \
        -b "$2" -e "$2" --patience $((2 * OXCCL_TIMEOUT)) --no-probe --warmup-iters 1 --iters 2 --repeats 1 --json --trace "$file" "${image[@]}" ||
        status=1
    [ ! -s "$file" ] || steps=$(grep -o '"ph":"X"' "$file" | wc -l)
    [ "$steps" != 0 ] || status=1
    row '{"op":"trace","ranks":%d,"bytes":"%s","status":"%s","steps":%d,"file":"%s","says":%s}' "$1" "$2" "$said" "$steps" \
        "$stage/${file##*/}" "$(json_text "$(grep '^oxccl: ' "$work/step" | head -1 | cut -c1-300)")"
    return $status
}

stage_trace() {
    local n size counts="2 8" sizes="8 64K 1M" failed=0
    [ "$quick" = 0 ] || counts=2 sizes="8 64K"
    for n in $counts; do
        for size in $sizes; do
            traced $n $size || failed=1
        done
    done
    return $failed
}

stage_bench() {
    local n op failed=0
    if [ "$quick" = 1 ]; then
        for n in $ranks; do
            bench 60 all_reduce --ranks "$n" -b 4K -e 4K -G 2 --channels 2 || failed=1
        done
        return $failed
    fi
    for n in $ranks; do
        bench 90 all_reduce --ranks "$n" -b 8 -e 16K -f 2 -G 20 --repeat-ms 5 || failed=1
        bench 90 all_reduce --ranks "$n" -b 64M -e 256M -f 2 || failed=1
    done
    return $failed
}

stage_sweep() {
    local n op type channels most=${ranks%% *} failed=0
    if [ "$quick" = 1 ]; then
        one_bench 60 all_reduce --ranks 2 -b 4K -e 4K -d bfloat16 --floor-only --channels 1 || failed=1
        one_bench 60 all_reduce --ranks 1 -b 8 -e 8 --floor-only --channels 1 || failed=1
        bench 60 all_reduce --ranks 2 -b 4K -e 4K --channels 1 --cold=1M || failed=1
        return $failed
    fi
    bench 90 all_reduce --ranks "$most" -b 32K -e 32M -f 4 -G 10 --repeat-ms 5 || failed=1
    # Host time, without others' threads and with one other.
    for n in 1 2; do
        one_bench 30 all_reduce --ranks $n -b 8 -e 8 --floor-only || failed=1
    done
    # As between an application's kernels: behind others, and with nothing in the caches.
    bench 60 all_reduce --ranks "$most" -b 8 -e 1M -f 512 --cold || failed=1
    # Kernels of other types, which may be bound by instructions.
    for type in bfloat16 f8e4m3; do
        bench 60 all_reduce --ranks "$most" -b 64K -e 64M -f 32 -d $type || failed=1
    done
    for channels in 4 8 12 16; do
        one_bench 30 all_reduce --ranks "$most" -b 1M -e 64M -f 8 --floor-only --channels $channels || failed=1
    done
    for n in $ranks; do
        for op in reduce_scatter all_gather all_to_all; do
            bench 60 $op --ranks "$n" -b 64M -e 64M || failed=1
        done
    done
    return $failed
}

# Ranks that launch by themselves, as those with a GPU each do: short calls by kernels of their
# schedules, beside NCCL, and interpreted.
stage_alone() {
    local n hot failed=0
    export OXCCL_SINGLE_LAUNCH=0
    if [ "$quick" = 1 ]; then
        for hot in 1 0; do
            OXCCL_HOT_KERNELS=$hot one_bench 60 all_reduce --ranks 2 -b 4K -e 4K --floor-only --channels 1 || failed=1
        done
        return $failed
    fi
    for n in 2 4 8; do
        bench 60 all_reduce --ranks $n -b 8 -e 32K -f 2 -G 10 --repeat-ms 5 || failed=1
        OXCCL_HOT_KERNELS=0 one_bench 40 all_reduce --ranks $n -b 8 -e 32K -f 8 -G 10 --floor-only || failed=1
    done
    one_bench 40 all_reduce --ranks "${ranks%% *}" -b 1M -e 64M -f 8 --floor-only || failed=1
    return $failed
}

# --- the third call

# Ranks launch by themselves here, too.
stage_groups() {
    local n model failed=0
    export OXCCL_SINGLE_LAUNCH=0
    if [ "$quick" = 1 ]; then
        for n in $ranks; do
            bench 60 group --ranks "$n" --buckets 3 --bucket-size 2K -G 2 --channels 2 || failed=1
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

# One kernel is checked, since a sanitizer writes each anew that it checks. It takes its time: ranks
# wait longer for each other.
stage_sanitizer() {
    local tool check what status failed=0
    tool=$(sanitizer) && [ -n "$tool" ] || { skip "there is no compute-sanitizer, in the bundle or here"; return; }
    within 10 "$tool" --version
    for check in "memcheck all_reduce" "racecheck all_reduce" "synccheck all_reduce" "memcheck group" "racecheck group" "synccheck group" \
        "initcheck all_reduce"; do
        case $check in
        *group) what="group --buckets 3 --bucket-size 2K --modes fused" ;;
        *) what="all_reduce -b 1K -e 64K -f 64" ;;
        esac
        echo "== $check"
        # Ranks share a launch: those that wait for each other in launches of their own hang where
        # one kernel runs at a time.
        OXCCL_SINGLE_LAUNCH=1 OXCCL_TIMEOUT=30 within 35 "$tool" --tool "${check% *}" --kernel-regex kns=oxccl_f32_sum --error-exitcode 9 \
            "$oxccl" bench $what --device cuda --threads --ranks 2 --no-probe --warmup-iters 1 --iters 2 --repeats 1 --json "${image[@]}"
        status=$?
        [ $status = 0 ] || { echo "== $check: status $status"; failed=1; }
        row '{"op":"sanitizer","check":"%s","what":"%s","ranks":2,"status":%d}' "${check% *}" "${check#* }" $status
    done
    return $failed
}

# What dies under MPS takes its clients with it; of what does not, some tests run without, too,
# where processes take turns of milliseconds.
ends='dead|death|abort|stopped'
in_turns="$ends|^(calls|groups)_of_processes$|^processes_on_one_gpu$|buffers_of_another_library"

stage_processes() {
    local failed=0 daemon only=$in_turns
    # Kernels of all processes on the GPU at once, by a daemon of this call's own.
    export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps
    mkdir -p "$work/mps"
    if daemon=${OXCCL_BUNDLE_MPS:-$(tool_here nvidia-cuda-mps-control)} && within 10 "$daemon" -d; then
        BUT=$ends run_tests ${OXCCL_BUNDLE_SECONDS:-20} " under MPS" "$several" || failed=1
    else
        echo "there is no MPS on this machine, or it does not start"
        only=.
    fi
    stop_mps
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    ONLY=$only run_tests ${OXCCL_BUNDLE_SECONDS:-45} "" "$several" || failed=1
    return $failed
}

# Ends the daemon that the stage has started, if it has.
stop_mps() {
    local daemon
    [ -e "$work/mps" ] && daemon=${OXCCL_BUNDLE_MPS:-$(tool_here nvidia-cuda-mps-control)} || return 0
    echo quit | CUDA_MPS_PIPE_DIRECTORY=$work/mps timeout 10 "$daemon"
    rm -rf "$work/mps"
}

# profiled CALLS MODE FILE: lists the kernels of a bench in which a timed loop has so many calls of
# 20 buckets.
profiled() {
    OXCCL_SINGLE_LAUNCH=0 CUDA_INJECTION64_PATH=$profiler OXCCL_PROFILE=$3 within 15 "$oxccl" bench group --device cuda --threads \
        --ranks 2 --no-probe --buckets 20 --bucket-size 2K --modes "$2" --iters "$1" --repeats 1 --json "${image[@]}"
}

stage_profile() {
    local profiler mode failed=0
    profiler=$(profiler) && [ -n "$profiler" ] || { skip "the bundle has no profiler"; return; }
    for mode in fused one_by_one ideal; do
        # Three loops of ten calls more.
        profiled 10 $mode "$work/$mode-10" && profiled 20 $mode "$work/$mode-20" &&
            python3 "$here/kernels.py" $mode 2 30 "$work/$mode-10" "$work/$mode-20" | rows || failed=1
    done
    return $failed
}
