"""``ringproof fit``: whether a launch fits on its GPUs, by upstream's own program."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ringproof.cli.console import HarmlessConsole
from ringproof.cli.options import CacheOptions, command_of, json_option
from ringproof.cli.output import write_result, write_text
from ringproof.cli.rehearse import (
    CHECKOUT,
    PACKAGES,
    brief,
    engine_option,
    launch_of,
    launch_words,
    name_of,
    rank_progress,
    require_packages,
    set_option,
)
from ringproof.errors import InputError
from ringproof.options import option, seconds

EXAMPLE = "Example: ringproof fit train.sh --upstream git:/src/Megatron-LM@dev --gpu h100"


@dataclass(frozen=True, kw_only=True)
class FitCommand(CacheOptions):
    """The options of ``ringproof fit``."""

    words: tuple[str, ...] = launch_words()
    upstream: str = option(..., CHECKOUT, metavar="SPEC")
    te: str | None = engine_option()
    sets: tuple[str, ...] = set_option()
    gpu: str = option(
        "", "GPU that it shall fit on: a100, h100, h200, b200, or GiB as a number.", metavar="GPU"
    )
    vocabulary: int | None = option(
        None, "Entries of the tokenizer's vocabulary, where they are in a file.", least=2
    )
    ranks: tuple[int, ...] = option(
        (),
        "Ranks to measure.  [default: one of the first, a middle and the last pipeline stage; of "
        "up to 8 stages where they have unlike layers]",
        metavar="0,8",
    )
    vary: tuple[str, ...] = option(
        (),
        "Measure every combination of these values of an option, as a table. Can be given several "
        "times.",
        metavar="NAME=VALUE,VALUE",
    )
    finalists: int | None = option(
        None,
        "With --vary: measure with all layers only as many that fit and send least, and those of "
        "which it is not clear whether they fit. Others follow from few layers.",
        least=0,
    )
    longest: bool = option(False, "Find the longest sequence with which it fits on the --gpu.")
    routing: str = option(
        "balanced",
        "Where the tokens of experts go: to every expert as many, or all to those of the rank.",
        choices=("balanced", "worst"),
    )
    whole_batch: bool = option(
        False,
        "For packed sequences: run all DP x CP ranks of a stage, each with the lengths that a "
        "batch gives it, and show the one with the highest peak.",
    )
    html: str = option(
        "", "Write the result as one page with a picture; - is stdout.", metavar="PATH"
    )
    json_path: str = json_option()
    out: Path | None = option(None, "Folder for logs.  [default: build/fit/NAME]", metavar="DIR")
    timeout: float = seconds(600, "Longest time of one rank in seconds.")
    offline: bool = option(False, "Do not download anything.")


@command_of(FitCommand)
def fit(options: FitCommand) -> None:
    """Measure what a launch takes of a GPU's memory, without a GPU.

    The launch is read and not executed. Megatron-LM's own program runs its first two steps at full
    size on this CPU. Large tensors have no content and nothing is computed in them; what is
    measured is which tensors live when.

    Exit code 0: it fits, or no GPU was named; 1: it does not fit; 2: bad input, or upstream
    refuses the launch. With --vary and --longest: 0 if one choice or length fits, 1 if none does.
    """
    _check_together(options)
    require_packages("fit", PACKAGES)
    launch = launch_of(options.words, options.sets)
    from ringproof.rehearsal.fit.fitting import FitRequest, fit
    from ringproof.rehearsal.fit.gpus import gpu
    from ringproof.rehearsal.fit.longest import lines as tried
    from ringproof.rehearsal.fit.longest import longest, longest_as_json
    from ringproof.rehearsal.fit.page import page
    from ringproof.rehearsal.fit.rendering import lines
    from ringproof.rehearsal.fit.result import as_json
    from ringproof.rehearsal.fit.vary import choices_as_json, combinations, table, vary

    request = FitRequest(
        launch=launch,
        megatron=options.upstream,
        engine=options.te,
        folder=options.out or Path("build/fit") / name_of(options.words, launch),
        cache=options.downloads,
        gpu=gpu(options.gpu) if options.gpu else None,
        vocabulary=options.vocabulary,
        ranks=options.ranks,
        routing=options.routing,
        whole_batch=options.whole_batch,
        timeout=options.timeout,
        offline=options.offline,
    )
    with rank_progress(HarmlessConsole(stderr=True)) as progress:

        def tell(phase: str, line: str) -> None:
            progress(phase, brief(line))

        if options.vary:
            choices = vary(request, combinations(options.vary), tell, options.finalists)
            fitting = sum(choice.fit is not None and choice.fit.fits for choice in choices)
            head = f"{fitting} of {len(choices)} choices {'fit' if options.gpu else 'are measured'}"
            found = choices_as_json(choices), iter((head, *table(choices))), fitting > 0
        elif options.longest:
            lengths = longest(request, tell)
            found = longest_as_json(lengths), tried(lengths), lengths.best is not None
        else:
            result = fit(request, tell)
            if options.html:
                write_text(page(result), options.html, field="--html")
            said = iter(()) if options.html == "-" else lines(result)
            found = as_json(result), said, result.fits
    data, text, good = found
    write_result(data, text, options.json_path, good=good)


def _check_together(options: FitCommand) -> None:
    """Refuse options that do not go together."""
    if options.longest and (options.vary or options.html):
        raise InputError("--longest", "it is a table of its own; leave --vary and --html out")
    if options.finalists is not None and not options.vary:
        raise InputError("--finalists", "there are no choices without --vary; leave it out")
    if options.vary and options.html:
        raise InputError("--html", "several choices have no page; leave --vary or --html out")
