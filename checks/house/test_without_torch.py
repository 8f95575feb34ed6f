"""All rooms but the reference and the rehearsal load where torch is not installed."""

from __future__ import annotations

import sys

from checks.running import ran

WITHOUT_TORCH = """
import importlib, pkgutil, sys
sys.modules["torch"] = None
import ringproof
loaded = 0
for module in pkgutil.walk_packages(ringproof.__path__, "ringproof."):
    if module.name in EXCEPT or module.name.startswith(tuple(EXCEPT_BELOW)):
        continue
    importlib.import_module(module.name)
    loaded += 1
print(loaded)
"""
NEEDS_TORCH = (
    "ringproof.__main__",
    "ringproof.cluster.worker",
    "ringproof.reference.topology.context",
    "ringproof.reference.topology.census",
    "ringproof.reference.topology.dynamic",
)
TENSORS_BELOW = (
    *(f"ringproof.reference.{part}." for part in ("attention", "model", "graphs", "training")),
    "ringproof.reference.graphs.tape",
    "ringproof.rehearsal.hollow.",
    "ringproof.rehearsal.library.",
    "ringproof.rehearsal.own.ranks.",
    "ringproof.rehearsal.rank.",
    "ringproof.rehearsal.standins.",
    "ringproof.rehearsal.trace.",
    "ringproof.rehearsal.wheels.",
    "ringproof.rehearsal.bridge.programs.",
    "ringproof.rehearsal.bridge.ranks.",
    "ringproof.rehearsal.verl.ranks.",
)
INTEGERS = (
    *(f"attention.{name}" for name in ("case", "heads", "names", "steps")),
    "model.config",
    *(f"training.{name}" for name in ("data", "options", "records", "schedules")),
)


def test_everything_but_the_workers_and_the_tensors_loads() -> None:
    program = WITHOUT_TORCH.replace("EXCEPT_BELOW", repr(TENSORS_BELOW))
    program = program.replace("EXCEPT", repr(NEEDS_TORCH))
    program += "".join(
        f"importlib.import_module({'ringproof.reference.' + name!r})\n" for name in INTEGERS
    )
    done = ran(sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 40


def test_a_module_that_needs_torch_is_noticed() -> None:
    program = 'import sys; sys.modules["torch"] = None\nimport ringproof.cluster.worker'
    done = ran(sys.executable, "-c", program)
    assert done.returncode != 0 and "torch" in done.stderr
