#!/usr/bin/env python3
"""The gradient sizes of GPT-2 small and ResNet-50, in parameter order, from their architectures.

Usage: gradients.py            write the .toml files beside this script
       gradients.py --check    fail unless the files are what this script writes
"""
import math
import pathlib
import sys

FOLDER = pathlib.Path(__file__).parent


def gpt2_small():
    """12 layers, width 768, 1024 positions, 50257 tokens; the output head is the token embedding."""
    width = 768
    yield "wte.weight", (50257, width)
    yield "wpe.weight", (1024, width)
    for layer in range(12):
        parameters = [
            ("ln_1", (width,)), ("attn.c_attn", (width, 3 * width)), ("attn.c_proj", (width, width)),
            ("ln_2", (width,)), ("mlp.c_fc", (width, 4 * width)), ("mlp.c_proj", (4 * width, width)),
        ]
        for name, shape in parameters:
            yield f"h.{layer}.{name}.weight", shape
            yield f"h.{layer}.{name}.bias", shape[-1:]
    yield "ln_f.weight", (width,)
    yield "ln_f.bias", (width,)


def batch_norm(name, channels):
    yield f"{name}.weight", (channels,)
    yield f"{name}.bias", (channels,)


def resnet50():
    """Bottleneck blocks 3, 4, 6, 3; 1000 classes. Convolutions are (out, in, height, width)."""
    yield "conv1.weight", (64, 3, 7, 7)
    yield from batch_norm("bn1", 64)
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3), start=1):
        inner = 64 << (stage - 1)
        outer = 4 * inner
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            convolutions = [(inner, channels, 1, 1), (inner, inner, 3, 3), (outer, inner, 1, 1)]
            for number, shape in enumerate(convolutions, start=1):
                yield f"{name}.conv{number}.weight", shape
                yield from batch_norm(f"{name}.bn{number}", shape[0])
            if block == 0:
                yield f"{name}.downsample.0.weight", (outer, channels, 1, 1)
                yield from batch_norm(f"{name}.downsample.1", outer)
            channels = outer
    yield "fc.weight", (1000, channels)
    yield "fc.bias", (1000,)


# The published numbers of trainable parameters.
MODELS = {"gpt2_small": (gpt2_small, 124_439_808), "resnet_50": (resnet50, 25_557_032)}


def render(model, parameters, total):
    counts = [math.prod(shape) for _, shape in parameters]
    assert sum(counts) == total, f"{model}: {sum(counts)} parameters, {total} are published"
    lines = [
        "# Written by gradients.py. Elements, in parameter order; training makes the gradients ready",
        "# in the reverse order.",
        f'model = "{model}"', f"total = {total}", "gradients = [",
    ]
    for (name, shape), count in zip(parameters, counts):
        lines.append(f'    {{ name = "{name}", shape = {list(shape)}, count = {count} }},')
    return "\n".join(lines + ["]", ""])


def main(check):
    for model, (architecture, total) in MODELS.items():
        text, file = render(model, list(architecture()), total), FOLDER / f"{model}.toml"
        if not check:
            file.write_text(text)
        elif file.read_text() != text:
            sys.exit(f"{file} differs from what gradients.py writes; run it again")


if __name__ == "__main__":
    main("--check" in sys.argv[1:])
