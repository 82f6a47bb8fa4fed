"""What the documents show in Python runs as it stands, by two ranks; the tutorial as a program."""

import pathlib
import re
import signal

import pytest

import ranks

ROOT = pathlib.Path(__file__).parents[3]
DOCUMENTS = ["docs/python.md", "bindings/python/README.md"]


def blocks() -> list[tuple[str, str]]:
    found = []
    for document in DOCUMENTS:
        text = (ROOT / document).read_text()
        found += [(document, block) for block in re.findall(r"```python\n(.*?)```", text, re.S)]
    return found


def test_there_are_some() -> None:
    assert len(blocks()) >= 3


@pytest.mark.parametrize(("document", "block"), blocks())
def test_what_is_shown_runs(document: str, block: str) -> None:
    for status, _, err in ranks.forked(2, block):
        assert status == 0, err[-3000:]


def test_the_tutorial_prints_what_it_shows() -> None:
    text = (ROOT / "docs/tutorial.md").read_text()
    cells = re.findall(r"```python\n(.*?)```", text, re.S)
    shown = re.findall(r"```text\n(.*?)```", text, re.S)
    assert len(cells) == len(shown) >= 10
    (status, out, err), (killed, *_) = ranks.forked(2, ranks.IMPORT + "\n".join(cells))
    assert status == 0 and killed == -signal.SIGKILL, err[-3000:]
    assert out == "".join(shown)
