"""What Megatron-Bridge itself says about a configuration: its recipe is built, and validated.

Recipe, overrides and checks are Bridge's own code. Nothing of a hub is read, see
`ringproof.rehearsal.rank.recipes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringproof.doctor.checked import Checked
from ringproof.doctor.forms import BRIDGE, PACK
from ringproof.doctor.models import settings_of_model
from ringproof.doctor.settings import NOTHING, Settings
from ringproof.errors import InputError
from ringproof.rehearsal.protocol.reports import MISSING

if TYPE_CHECKING:
    from ringproof.rehearsal.runs.validating import BesideMegatron

FUNCTION = "ringproof.rehearsal.rank.recipes:validated"
SECONDS = 300.0
PACKAGES = ("torch", "transformers", "hydra", "modelopt", "datasets")
"""What Bridge imports."""
TITLE = "Megatron-Bridge's own recipe and checks"
INVENTED = "5040"  # in messages about sizes of the model that stands in for one of a hub
TUNED = (*PACK, "dataset_kwargs.chat", "dataset.dataset_root", "dataset.dataset_name")
"""Fields of data for fine-tuning."""


def request_of(settings: Settings) -> dict[str, Any]:
    """Return what is asked of Bridge, see `ringproof.rehearsal.rank.recipes`.

    Raises:
        InputError: The configuration names no recipe that could be built, and sets nothing.
    """
    recipe = settings.entry("recipe").rpartition(".")[2]
    words = [word for name, value in settings.fields.items() if (word := _override(name, value))]
    if not re.fullmatch(r"[A-Za-z_]\w*", recipe) and (recipe or not words):
        sentence = "names no recipe of Megatron-Bridge that could be built; give --recipe NAME"
        raise InputError("the configuration", f"the configuration {sentence}")
    brought = settings_of_model(recipe)
    heads = {name: int(brought[name]) for name in ("num_attention_heads", "num_query_groups")
             if name in brought}  # fmt: skip
    softmax = {"softmax_type": brought["softmax_type"]} if "softmax_type" in brought else {}
    model = {**heads, **softmax}
    return {"recipe": recipe, "overrides": words, "model": model, "world": settings.ranks or 0,
            "tunes": any(map(settings.entry, TUNED))}  # fmt: skip


def _override(name: str, value: str) -> str:
    """A field as an override of hydra; empty for one that is not of a section of Bridge."""
    parts = name.split(".")
    if parts[0] not in BRIDGE:
        parts = parts[1:]  # the variable of a recipe, such as cfg
    if len(parts) < 2 or parts[0] not in BRIDGE:
        return ""
    return f"{'.'.join(parts)}={'null' if value in NOTHING else value}"


def ask(
    asked: Mapping[str, Any], bridge: str, megatron: str, engine: str | None, *, cache: Path,
    folder: Path, offline: bool, progress: Callable[[str, str], None], limit: float | None = None,
) -> Checked:  # fmt: skip
    """Let Bridge validate a configuration.

    Args:
        asked: See `request_of`.
        bridge: Megatron-Bridge, as `open_bridge` takes it; ``megatron`` and ``engine`` likewise.
        folder: Where logs are written.
        limit: Longest time of everything, in seconds.

    Raises:
        InputError: An upstream cannot be opened.
    """
    from ringproof.rehearsal.runs.upstreams import open_bridge
    from ringproof.rehearsal.runs.validating import validate

    outcome = validate(
        FUNCTION, dict(asked), partial(open_bridge, bridge, option="--upstream"), megatron, engine,
        cache=cache, folder=folder, offline=offline, progress=progress, seconds=limit or SECONDS,
    )  # fmt: skip
    invented = outcome.failure is not None and INVENTED in outcome.failure.message
    answer = answer_of(outcome, limit, ("megatron/",), TITLE)
    return replace(answer, accepted=None) if invented else answer


def answer_of(
    outcome: BesideMegatron, limit: float | None, roots: tuple[str, ...], title: str
) -> Checked:
    """Return what became of checks: they refuse where they raise what is no fault of this machine.

    Args:
        limit: Seconds after which they were ended; ``None`` where nothing asked for that.
        roots: Folders of the code whose exceptions are a refusal.
        title: What ran.
    """
    failure = outcome.failure
    if failure is None:
        return Checked(outcome.name, True, title=title)
    if failure.kind == "timeout" and limit is not None:
        why = f"they take longer than {limit:g} s here; --checks waits for them"
        return Checked(outcome.name, None, why_not=why, title=title)
    raised = failure.kind == "raised" and failure.place.startswith(roots)
    unsure = not raised or failure.symbol or MISSING.search(failure.message)
    given = (failure.message, failure.place, failure.symbol)
    return Checked(outcome.name, None if unsure else False, *given, title=title)
