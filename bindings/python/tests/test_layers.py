"""What PyTorch builds on its backends, by four ranks: `layers_rank.py` has the programs."""

import os
import sys
from pathlib import Path

import pytest

import ranks

PARTS = [
    "hsdp,tensor_parallel,dtensor,pipeline",
    "hooks,zero,join,checkpoint",
    "functional,compiled",
]


@pytest.mark.parametrize("parts", PARTS)
def test_layers(parts: str) -> None:
    if os.environ.get("OXCCL_TEST_ALL") != "1":
        print("left to make test-all: PyTorch's layers", file=sys.__stderr__)
        pytest.skip("OXCCL_TEST_ALL=1 runs it")
    program = Path(__file__).with_name("layers_rank.py").read_text()
    for out in ranks.run(4, f"{ranks.IMPORT}import sys; sys.argv = ['', {parts!r}]\n{program}"):
        assert out.endswith("done\n"), out
