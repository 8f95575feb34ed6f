"""``ringproof doctor --rehearse``: run the launch that doctor has examined."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ringproof.budget import Machine
from ringproof.cli.rehearse import rank_progress, require_packages
from ringproof.doctor.examine import Examination
from ringproof.doctor.rehearsed import Rehearsed, judge, launch_of
from ringproof.errors import InputError
from ringproof.harness.stack.products import ENGINE, MEGATRON, Product
from ringproof.holding import held_folder

STEPS = 2


def rehearsed(
    examination: Examination,
    products: Sequence[tuple[str, Product]],
    *,
    cache: Path,
    offline: bool,
    skills: Path,
) -> Rehearsed:
    """Train the launch for two steps in small, and compare what happens with the findings.

    Args:
        products: What ``--upstream`` names: a checkout of Megatron-LM, and Transformer Engine
            unless the newest release is meant.

    Raises:
        InputError: The configuration is no launch, no checkout is given, or torch is missing.
    """
    launch = launch_of(examination.settings)
    given = {product.repo: name for name, product in products}
    if MEGATRON not in given:
        problem = "needs a checkout of Megatron-LM to run"
        raise InputError("--rehearse", None, problem, "give --upstream PATH or git:PATH@REF")
    require_packages("doctor --rehearse")
    from ringproof.rehearsal.rehearsing import Request, rehearse

    name = re.sub(r"[^\w.-]", "_", Path(launch.source.partition(":")[0]).stem) or "launch"
    request = Request(
        launch=launch,
        megatron=given[MEGATRON],
        engine=given.get(ENGINE),
        against="",
        folder=Path("build/rehearsal") / f"doctor-{name}",
        cache=cache,
        skills=skills if skills.is_dir() else None,
        iterations=STEPS,
        offline=offline,
        machine=Machine.here(),
    )
    with held_folder(request.folder, "--rehearse"), rank_progress(Console(stderr=True)) as progress:
        result = rehearse(request, progress)
    return judge(examination, result.main)
