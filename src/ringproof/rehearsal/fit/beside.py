"""What upstream refuses at full size only, beside the rehearsal of a launch in small."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import ringproof
from ringproof.errors import InputError
from ringproof.launch.flags import Flags
from ringproof.launch.reading import Launch
from ringproof.rehearsal.fit.fitting import FitRequest, Fitting, Progress, Refused
from ringproof.rehearsal.fit.shallow import depths, with_layers
from ringproof.rehearsal.protocol.reports import Failure
from ringproof.rehearsal.rehearsing import Request, changed_by_against
from ringproof.rehearsal.verdict.refusal import refusal_of
from ringproof.rehearsal.verdict.variant import FullSizeRun, Rehearsal, Variant

SECONDS = 120.0
"""Longest time of the two steps at full size."""
VOCABULARY = 131_072
"""Entries of a vocabulary that is in files, which no check depends on."""
PRECISIONS = ("--bf16", "--fp16")
FRAME = re.compile(r'^ +File "(.+)", line \d+, in ', re.MULTILINE)
OURS = Path(ringproof.__file__).parent


def of_one_rank(launch: Launch, megatron: str, engine: str | None, **given: Any) -> FitRequest:
    """Ask for two steps of rank 0, whatever the size of the vocabulary where files decide it.

    Args:
        given: Other fields of the request.
    """
    sized = Flags(launch.arguments).has("--vocab-size")
    return FitRequest(
        launch, megatron, engine, ranks=(0,), timeout=SECONDS,
        vocabulary=None if sized else VOCABULARY, **given,
    )  # fmt: skip


def with_full_size(
    rehearsal: Rehearsal, request: Request, progress: Progress, limit: float = SECONDS
) -> Rehearsal:
    """Run one rank of each variant that started in small at full size, without content.

    Layers are cut to two in each stage where a launch with more is the same; a refusal has to be
    that of all layers, and not of what runs in small.

    Args:
        limit: Longest time of a variant, in seconds, imports included.
    """
    began = time.monotonic()
    changed, _ = changed_by_against(request)
    limit = min(limit, request.timeout)
    asked = [
        of_one_rank(
            one.launch, its.megatron, its.engine, folder=request.folder / "full-size" / name,
            cache=request.cache, limit=limit, offline=request.offline,
        )
        for one, its, name in zip(
            rehearsal.variants, (request, changed), ("launch", "against"), strict=False
        )
    ]  # fmt: skip
    main, *rest = (
        replace(one, full_size=_run(one, fit, request.skills, progress)) if one.starts else one
        for one, fit in zip(rehearsal.variants, asked, strict=True)
    )
    seconds = rehearsal.seconds + time.monotonic() - began
    return replace(rehearsal, main=main, against=rest[0] if rest else None, seconds=seconds)


def _run(
    variant: Variant, asked: FitRequest, skills: Path | None, progress: Progress
) -> FullSizeRun:
    try:
        with Fitting(asked, lambda phase, line: progress(f"full size, {phase}", line)) as fitting:
            refused = _refused(fitting, variant)
            if refused is None:
                return FullSizeRun()
            doubt = _doubt(fitting, variant, refused.failure)
    except Refused as unsure:
        late = unsure.failure.kind == "timeout"
        said = f"it takes more than {asked.limit:g} s" if late else unsure.sentence
        return FullSizeRun(unknown=said)
    except InputError as error:
        return FullSizeRun(unknown=str(error))
    if doubt:
        return FullSizeRun(unknown=f"{doubt} ({refused.failure.message})")
    return FullSizeRun(refusal_of(refused.failure, (), skills, variant.path.requested.feature))


def _refused(fitting: Fitting, variant: Variant) -> Refused | None:
    """Return upstream's refusal of a launch with all of its layers; ``None`` if it runs.

    Raises:
        Refused: It was ended by something else.
    """
    launch, found = variant.launch, None
    shallow = depths(launch.arguments, launch.ranks)
    for one in (*([with_layers(launch, shallow[0])] if shallow else []), launch):
        try:
            fitting.fit(fitting.prepare(one))
            return None
        except Refused as refused:
            if not refused.by_upstream:
                raise
            found = refused
    return found


def _doubt(fitting: Fitting, variant: Variant, failure: Failure) -> str:
    """Say why an exception may be the fault of a run without content; empty for no reason.

    What runs in small with content has to run without it, too.
    """
    small, frames = variant.small, FRAME.findall(failure.traceback)
    if frames and Path(frames[-1]).is_relative_to(OURS):
        return "it ended in the rehearsal's own code"
    assert small is not None
    given, flags = Flags(variant.launch.arguments), Flags(small.arguments)
    for name in PRECISIONS:  # attention in float32 has no backend, and the rehearsal's has
        flags = flags.with_(name) if given.has(name) else flags.without(name)
    launch = replace(
        variant.launch, arguments=flags.words, environment=small.environment, nodes=1,
        ranks_per_node=small.ranks,
    )  # fmt: skip
    try:
        fitting.fit(fitting.prepare(launch))
    except Refused as refused:
        if refused.failure.kind == "timeout":
            raise
        return f"without content, what starts in small ends, too: {refused.sentence}"
    return ""
