"""Torch's compiler is not imported to mark functions, and is there for whoever asks later."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import sys
from ringproof.rehearsal.standins import compiler
from ringproof.rehearsal.standins.guard import StandInMissing

compiler.install()
with compiler.left_out():
    import torch._dynamo

    def marked():
        return 1

    assert torch._dynamo.disable(marked) is marked
    assert torch._dynamo.disable(recursive=False)(marked) is marked
    assert torch._dynamo.disable(fn=marked) is torch.compiler.disable(fn=marked) is marked
    assert torch.compile(model=marked) is torch.jit.script(obj=marked) is marked
    assert torch.compiler.assume_constant_result(marked) is marked
    torch._dynamo.config.error_on_nested_jit_trace = False
    try:
        from torch._dynamo.comptime import comptime
    except ImportError:
        comptime = None
    assert comptime is None
    try:
        torch._dynamo.explain(marked)
    except StandInMissing as error:
        assert error.symbol == "torch._dynamo.explain"
    else:
        raise AssertionError("nothing refused")
    assert "torch._dynamo.eval_frame" not in sys.modules, "imported"
assert torch._dynamo.eval_frame and torch._dynamo.comptime.comptime
from torch._dynamo import convert_frame, utils
assert utils is sys.modules["torch._dynamo.utils"] and utils.counters is convert_frame.counters
with compiler.left_out():
    assert torch._dynamo.utils is utils, "what is there stays"
"""


@pytest.mark.slow
def test_the_compiler_is_imported_only_where_it_is_asked_for() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
