"""Torch's compiler is not imported to mark functions, and is there for whoever asks for it."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import sys
from ringproof.rehearsal.standins import compiler

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
    assert "torch._dynamo.eval_frame" not in sys.modules, "imported"
    {asks}
assert torch._dynamo.eval_frame and torch._dynamo.comptime.comptime
from torch._dynamo import convert_frame, utils
assert utils is sys.modules["torch._dynamo.utils"] and utils.counters is convert_frame.counters
assert not any(isinstance(finder, compiler._Once) for finder in sys.meta_path)
"""


@pytest.mark.slow
@pytest.mark.parametrize("asks", ["pass", "from torch._dynamo.utils import counters"])
def test_the_compiler_is_imported_only_when_it_is_asked_for(asks: str) -> None:
    """An import of a module inside of it, and any other name of it, give the real one."""
    subprocess.run([sys.executable, "-c", PROGRAM.format(asks=asks)], check=True)
