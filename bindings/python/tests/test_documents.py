"""What the documents show in Python runs as it stands, by two ranks."""

import pathlib
import re

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
    ranks.run(2, block)
