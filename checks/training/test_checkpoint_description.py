"""A checkpoint's own description: read, or refused in one line whatever is in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ringproof.errors import InputError
from ringproof.reference.training import checkpoint


def written(folder: Path, content: str) -> Path:
    kept = folder / "step-000003"
    kept.mkdir()
    (folder / checkpoint.LATEST).write_text("step-000003\n")
    (kept / checkpoint.DESCRIPTION).write_text(content)
    return kept


def test_the_newest_is_found(tmp_path: Path) -> None:
    kept = written(tmp_path, json.dumps({"format": 1, "step": 3, "identity": {"tp": 2}}))
    assert checkpoint._newest(tmp_path) == (kept, 3, {"tp": 2})


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[1]",
        "7",
        '{"format": 1, "step": 3}',
        '{"format": 1, "step": "x", "identity": {}}',
        '{"format": 1, "step": null, "identity": {}}',
        '{"format": 1, "step": 3, "identity": [3]}',
        '{"format": 2, "step": 3, "identity": {}}',
    ],
)
def test_a_damaged_description_is_refused(tmp_path: Path, content: str) -> None:
    written(tmp_path, content)
    with pytest.raises(InputError) as caught:
        checkpoint._newest(tmp_path)
    assert caught.value.field == "resume"
