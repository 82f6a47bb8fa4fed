"""PyTorch's own test suite of its backends, as it is in the wheel, with this backend's name in the
place of Gloo's: `python pytorch_suite.py [--backend gloo] [--ranks 3] [TEST ...]`.

Prints a line for each test that is not skipped, and those that failed; what is named in
`EXPECTED` may fail. The ranks are forked, which spares each of them the import of torch.
"""

import argparse
import os
import pathlib
import re
import sys
import tempfile
import unittest

# Tests that Gloo passes and that fail here, and why.
EXPECTED = {
    "test_ddp_logging_data_cpu": "it looks for Gloo's own variables in what DDP logs",
}


def prepare(backend: str, ranks: int) -> None:
    """Writes the suite for a backend."""
    import torch

    tests = pathlib.Path(torch.__file__).parent / "testing/_internal/distributed"
    text = (tests / "distributed_test.py").read_text()
    text = text.replace('"gloo"', f'"{backend}"')
    text = re.sub(r"dist\.Backend\.GLOO\b", f"dist.Backend.{backend.upper()}", text)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="oxccl-pytorch-suite-"))
    (folder / "distributed_suite.py").write_text(text)
    for name in ("tmp", "tmp/barrier", "tmp/test_dir", "tmp/init_dir"):
        (folder / name).mkdir()
    os.environ.update(
        BACKEND=backend,
        WORLD_SIZE=str(ranks),
        TEMP_DIR=str(folder / "tmp"),
        PYTORCH_TEST_RUN_EVERYTHING_IN_SERIAL="1",
    )
    sys.path.insert(0, str(folder))
    # No thread of torch's may run before the ranks are forked; theirs are one each.
    torch.set_num_threads(1)


parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="oxccl")
parser.add_argument("--ranks", type=int, default=3)
parser.add_argument("tests", nargs="*")
arguments = parser.parse_args()
if arguments.backend == "oxccl":
    import oxccl.torch  # noqa: F401
prepare(arguments.backend, arguments.ranks)

import torch  # noqa: E402
from torch.testing._internal.common_distributed import DistTestCases  # noqa: E402

for backends in DistTestCases.backend_feature.values():
    if "gloo" in backends:
        backends.add(arguments.backend)
from distributed_suite import DistributedTest, TestDistBackend  # noqa: E402


class Suite(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


class Result(unittest.TextTestResult):
    passed: list[str] = []

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.passed.append(test.id().rsplit(".", 1)[-1])


def main() -> int:
    loader = unittest.TestLoader()
    if arguments.tests:
        loader.testNamePatterns = [f"*.{name}" for name in arguments.tests]
    suite = loader.loadTestsFromTestCase(Suite)
    runner = unittest.TextTestRunner(resultclass=Result, verbosity=2)
    result = runner.run(suite)
    failed = {test.id().rsplit(".", 1)[-1] for test, _ in result.failures + result.errors}
    print(f"{arguments.backend}, {arguments.ranks} ranks: {len(Result.passed)} passed, "
          f"{len(failed)} failed, {len(result.skipped)} skipped")
    for name in sorted(failed):
        print("failed:", name, EXPECTED.get(name, ""))
    for name in sorted(Result.passed):
        print("passed:", name)
    return 0 if failed <= EXPECTED.keys() else 1


if __name__ == "__main__":
    sys.exit(main())
