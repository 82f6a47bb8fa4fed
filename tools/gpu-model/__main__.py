"""What small calls cost on an H100, by the machine code of this checkout's kernels.

    python3 tools/gpu-model                  the table, for the newest fat binary of target/
    python3 tools/gpu-model --compile        of the sources as they are: their kernels, for sm_90
    python3 tools/gpu-model --interpreted    without hot kernels
    python3 tools/gpu-model --call CALL      one call: its phases between barriers
    python3 tools/gpu-model --call CALL --trace THREAD      and each instruction of a thread
    python3 tools/gpu-model --code           bytes of all hot kernels: what a call runs of them
    python3 tools/gpu-model --code KERNEL    of one, by its parts

A CALL is KIND/ALGORITHM/ENCODING/RANKS/BYTES/CHANNELS[/BUCKETS][@RANK], as
plans/examples/programs.rs has it: the part of RANK, or of rank 0, which is the root. The table is of
the channel's local part: peers' messages are there already; no wire, no launch, a warm instruction
cache. Use it for before and after. With --compile, --code has the source's functions as parts;
without, what is out of line.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

import call
import code_bytes
import sass
from constants import H200, MIDDLE, OPTIMISTIC
from machine import Block

ROOT = pathlib.Path(__file__).resolve().parents[2]
INTERPRETER = "oxccl_f32_sum"
HOT = "oxccl_hot_"
BLOCK = 512
# Of several channels the first is run.
ALL_REDUCES = (("one_shot/ll", 8, 1), ("two_shot/ll", 32 << 10, 8), ("two_shot_push/windows", 64 << 10, 1))
CALLS = [f"all_reduce/{how}/{ranks}/{size}/{channels}" for how, size, channels in ALL_REDUCES for ranks in (2, 4, 8)]

# One kernel, by the macros that make all of them.
ONE_KERNEL = """
#include "any.h"
#undef OXCCL_ALL
#define OXCCL_ALL(KERNEL) KERNEL(F32, f32, sum, Sums)
#include "executor.cu"
"""
HOT_KERNELS = """
#include "hot.cu"
"""


def run(command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr[-4000:]}")
    return done.stdout + done.stderr


def tool(name):
    """A program of CUDA: beside nvcc, where tools/setup puts it, or on the path."""
    nvcc = pathlib.Path(run(["tools/setup-nvcc", "--path"], cwd=ROOT).split("\n")[0].strip()).resolve()
    for folder in (nvcc.parent, ROOT / ".cuda/nvidia/cu13/bin"):
        if (folder / name).is_file():
            return folder / name
    return shutil.which(name) or sys.exit(f"there is no {name}: run tools/setup")


def of_build(options, name):
    """What a build has written: the named one, or the newest."""
    if options.images:
        return pathlib.Path(options.images, name)
    found = sorted(ROOT.glob(f"target/*/build/oxccl-kernels-*/out/{name}"), key=lambda path: path.stat().st_mtime)
    if not found:
        sys.exit(f"no build has written {name}: build the crate oxccl-kernels")
    return found[-1]


def built(options, folder, name, text):
    """The machine code of one of the images, by kernels, compiled now or by the last build, and
    what the compiler says."""
    if not options.compile:
        image = of_build(options, f"{name}.fatbin")
        made = folder / name
        made.mkdir()
        run([tool("cuobjdump"), "--extract-elf", "sm_90", image.resolve()], cwd=made)
        return sass.image(run([tool("nvdisasm"), next(made.glob("*sm_90*.cubin"))])), ""
    source, cubin = folder / f"{name}.cu", folder / f"{name}.cubin"
    source.write_text(text)
    folders = [folder] + [ROOT / "kernels/machine" / part for part in ("shared", "cuda", "hot")]
    said = run([
        tool("nvcc"), "-cubin", "-arch=sm_90", "-std=c++17", "-O3", "--fmad=false", "-Xptxas", "-v",
        "--split-compile=0", "-lineinfo", *(word for path in folders for word in ("-I", path)), source, "-o", cubin,
    ])
    said = " ".join(line for line in said.split("\n") if "registers" in line or "spill" in line)
    lines = ["-gi"] if options.code else []
    return sass.image(run([tool("nvdisasm"), *lines, cubin])), said


class Kernels:
    """The kernels that calls are carried out by."""

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.images, self.found = {}, {}

    def image(self, name):
        if name not in self.images:
            if self.options.compile and name == "oxccl-hot":
                shutil.copy(of_build(self.options, "schedules.h"), self.folder)
            source = HOT_KERNELS if name == "oxccl-hot" else ONE_KERNEL
            self.images[name], said = built(self.options, self.folder, name, source)
            if said and name == "oxccl":
                print(said)
        return self.images[name]

    def of(self, program):
        """A call's: its schedule's own, or the interpreter."""
        if not program.kernel or self.options.interpreted:
            return INTERPRETER, self.named("oxccl", INTERPRETER)
        name = f"{HOT}{program.kernel}"
        if name not in self.image("oxccl-hot"):
            name += "_f32_sum"
        return name, self.named("oxccl-hot", name)

    def named(self, image, name):
        if name not in self.found:
            if name not in self.image(image):
                raise SystemExit(f"the image {image} has no kernel {name}")
            self.found[name] = sass.kernel(self.image(image)[name])
        return self.found[name]


class Program(NamedTuple):
    image: bytes
    kernel: str  # a hot one, if it has one
    extents: list


def programs(folder, names, built=None):
    made = [built] if built else ["cargo", "run", "-q", "-p", "oxccl-plans", "--example", "programs", "--"]
    run([*made, folder, *names], cwd=ROOT)
    form = call.Format((folder / "format.h").read_text())

    def read(name):
        image = folder / name.replace("/", "-")
        hot = image.with_name(image.name + ".hot")
        kernel, *extents = hot.read_text().split() if hot.exists() else ("",)
        return Program(image.read_bytes(), kernel, [int(number) for number in extents])

    return form, {name: read(name) for name in names}


def ranks_of(name):
    """How many there are, and whose program it is."""
    call_of_all, _, rank = name.partition("@")
    return int(call_of_all.split("/")[3]), int(rank or 0)


def buckets_of(name):
    """Where the buckets of a group begin and end; none of a call."""
    words = name.partition("@")[0].split("/")
    if len(words) < 7:
        return None
    size = int(words[4]) // int(words[6])
    return [(at * size, (at + 1) * size) for at in range(int(words[6]))]


def model(kernel, form, program, name, constants, threads, trace=None):
    one = call.Call(form, program.image, *ranks_of(name), program.extents, buckets_of(name), name.split("/")[0])
    block = Block(kernel, one.parameter, one.memory, constants, threads, trace)
    cycles = block.run()
    status = int.from_bytes(one.memory.regions[call.STATUSES >> 32][:4], "little")
    if status:
        sys.exit(f"{name}: the kernel ended with outcome {status}")
    if len(threads) == BLOCK and (wrong := one.wrong()):
        sys.exit(f"{name}: the output is WRONG at {wrong}")
    return one, block, cycles


def show_call(options, kernels, form, program):
    name, kernel = kernels.of(program)
    print(f"{name}: {kernel.code_bytes / 1024:.1f} KiB of code")
    one, block, cycles = model(kernel, form, program, options.call, MIDDLE, range(options.threads), options.trace)
    before, issued = 0.0, 0
    for number, (slowest, end, so_far, fences) in enumerate(block.phases):
        print(f"phase {number:2}: {end - before:7.0f} cycles, slowest thread {slowest:3}, "
              f"{so_far - issued:5} instructions of thread 0, {fences} fences")
        before, issued = end, so_far
    print(f"{cycles:.0f} cycles, {cycles / MIDDLE.clock_ghz / 1000:.2f} us; thread 0: {block.threads[0].notes}")
    wrong = one.wrong()
    print(f"output: {len(one.expected)} words, " + (f"wrong at {wrong}" if wrong else "right"))
    return 0


def show_table(options, kernels, form, all_programs):
    print(f"{'call, its first channel':45} {'code':>6} {'instr.':>7} {'barriers':>8} {'fences':>6} "
          f"{'optimistic':>10} {'middle':>8} {'H200':>8}")
    for name, program in all_programs.items():
        times = []
        _, kernel = kernels.of(program)
        for constants in (OPTIMISTIC, MIDDLE, H200):
            one, block, cycles = model(kernel, form, program, name, constants, range(options.threads))
            times.append(cycles / constants.clock_ghz / 1000)
        print(f"{name:45} {kernel.code_bytes / 1024:5.1f}K {block.threads[0].issued:7} {block.barriers:8} "
              f"{block.fences:6} {times[0]:7.1f} us {times[1]:5.1f} us {times[2]:5.1f} us", flush=True)
    return 0


def show_code(options, kernels, folder):
    """The table of hot kernels; of those that are named, their parts, too."""
    programs(folder, [], options.programs)  # the format, which sources include
    names = options.calls or sorted(name.removeprefix(HOT) for name in kernels.image("oxccl-hot"))
    hot = {name: kernels.named("oxccl-hot", HOT + name) for name in names}
    calls = {name: code_bytes.call_of(name) for name in names}
    form, of_calls = programs(folder, [one for one in calls.values() if one], options.programs)
    print(f"{'kernel':60} {'code':>6} {'run':>6} {'hot':>6} {'cold':>6}  largest cold parts, in bytes")
    over = 0
    for name, one in calls.items():
        kernel = hot[name]
        if one is None:  # of another type than the model adds
            print(f"{name:60} {kernel.code_bytes / 1024:5.1f}K {'-':>6} {'-':>6} {'-':>6}")
            continue
        program = of_calls[one]
        if name.removesuffix("_f32_sum") != program.kernel:
            sys.exit(f"{one} is not carried out by {name}")
        _, block, _ = model(kernel, form, program, one, MIDDLE, range(BLOCK))
        parts = code_bytes.parts(kernel, block.ran())
        whole = code_bytes.Share(*map(sum, zip(*parts.values())))
        over += whole.hot > code_bytes.MOST_HOT_BYTES
        sizes = " ".join(f"{size / 1024:5.1f}K" for size in (whole.code, whole.run, whole.hot, whole.cold))
        coldest = sorted(parts.items(), key=lambda part: -part[1].cold)[:3]
        print(f"{name:60} {sizes}  {', '.join(f'{part} {share.cold}' for part, share in coldest)}", flush=True)
        if options.calls:
            for part, share in sorted(parts.items(), key=lambda part: -part[1].code):
                print(f"  {part:58} {share.code:6} {share.run:6} {share.hot:6} {share.cold:6}")
    print(f"{over} have more than {code_bytes.MOST_HOT_BYTES >> 10} KiB of hot code")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("calls", nargs="*", help="calls of the table, instead of its own; of --code kernels")
    parser.add_argument("--code", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--interpreted", action="store_true")
    parser.add_argument("--images", help="the folder that a build has written")
    parser.add_argument("--programs", help="the example of oxccl-plans, where it has been built")
    parser.add_argument("--call")
    parser.add_argument("--trace", type=int)
    parser.add_argument("--threads", type=int, default=BLOCK,
                        help="of the block's 512, so many are run: all are needed by calls whose moves are side by side")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        kernels = Kernels(options, folder)
        if options.code:
            return show_code(options, kernels, folder)
        names = [options.call] if options.call else options.calls or CALLS
        form, all_programs = programs(folder, names, options.programs)
        if options.call:
            return show_call(options, kernels, form, all_programs[options.call])
        return show_table(options, kernels, form, all_programs)


if __name__ == "__main__":
    sys.exit(main())
