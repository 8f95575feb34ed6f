"""Upstream that cannot be imported: errors in torch or in a stand-in are not blamed on it."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ringproof.rehearsal.protocol.reports import Failure
from ringproof.rehearsal.rank.bootstrap import describe
from ringproof.rehearsal.verdict.refusal import refusal_of
from ringproof.rehearsal.verdict.variant import headline_of

OWN = "from ringproof.rehearsal.standins.guard import put\n\nput(5)\n"
INSIDE = "import torch\n\ntorch.nn.Linear(2, 2, dtype='none')\n"
CASES = {
    INSIDE: f"torch {torch.__version__} at torch/nn/",
    OWN: "the rehearsal's own code at ringproof/rehearsal/standins/guard.py:",
    "import torch\n\ntorch.no_such_function()\n": "torch",
    "raise ValueError('upstream')\n": "",
}


def failing(code: str, folder: Path) -> Failure:
    """How an import of a module of upstream with this code fails."""
    module = folder / "module.py"
    module.write_text(code)
    upstream: Any = SimpleNamespace(
        roots=(folder,), relative=lambda place: place.removeprefix(f"{folder}/")
    )
    with pytest.raises(Exception) as caught:
        runpy.run_path(str(module))
    return describe(caught.value, upstream, "import", -1)


@pytest.mark.parametrize("code", CASES)
def test_the_headline_names_who_raised(code: str, tmp_path: Path) -> None:
    failure = failing(code, tmp_path)
    said = headline_of(refusal_of(failure, ()))
    assert failure.place == f"module.py:{code.count(chr(10))}"
    assert failure.raised_in.startswith(CASES[code])
    if CASES[code]:
        assert said.startswith(f"Upstream's imports fail in {failure.raised_in}, called at module")
        assert "may be the fault of this torch or of the rehearsal" in said
    else:
        assert said == "Upstream cannot be imported: ValueError: upstream at module.py:1"
