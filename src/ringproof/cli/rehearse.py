"""``ringproof rehearse``: a launch of Megatron-LM, run in small without GPUs."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ringproof.budget import Machine
from ringproof.cli import options
from ringproof.cli.output import write_result, write_text
from ringproof.errors import InputError, shown

if TYPE_CHECKING:
    from ringproof.launch.reading import Launch

EXAMPLE = (
    "Example: ringproof rehearse train.sh --upstream git:/src/Megatron-LM@dev --set NNODES=8 "
    "--html train.html"
)
PACKAGES = ("torch", "numpy", "psutil", "einops", "pybind11", "omegaconf")
SECONDS_BETWEEN_LINES = 10.0
STDOUT = "-"
DTYPES = ("float32", "bfloat16")
ITERATION = re.compile(r"iteration\s+(\d+)/\s*(\d+)")


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SCRIPT | -- COMMAND...",
        help="Launch script, model_config.yaml of a functional test, or a launch command.",
    ),
]
CheckoutOption = Annotated[
    str,
    typer.Option(
        "--upstream",
        metavar="SPEC",
        help="Megatron-LM checkout to run: a folder, git:PATH@REF or pip:megatron-core==VERSION.",
    ),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        metavar="SPEC",
        help="Transformer Engine to run: a wheel, a folder, git:PATH@REF or pip:NAME==VERSION. "
        "The default is the newest release on the package index.",
    ),
]
StepsOption = Annotated[int, typer.Option(metavar="N", min=1, help="Number of training steps.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Value of a variable of the script."),
]
AgainstOption = Annotated[
    str,
    typer.Option(
        metavar="REF|FLAG=VALUE",
        help="Rehearse a variant too: another checkout, or one option changed.",
    ),
]
HtmlOption = Annotated[
    str, typer.Option(metavar="PATH", help="Write the result as one page; - is stdout.")
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Folder for logs.  [default: build/rehearsal/NAME]"),
]


def rehearse(
    words: Words = None,
    *,
    upstream: CheckoutOption,
    te: EngineOption = None,
    sets: SetOption = None,
    against: AgainstOption = "",
    json_path: options.JsonOption = "",
    html: HtmlOption = "",
    steps: StepsOption = 5,
    dtype: Annotated[
        str, typer.Option(metavar="|".join(DTYPES), help="Precision of the run.")
    ] = "float32",
    max_ranks: Annotated[int, typer.Option(min=1, help="Largest number of ranks to run.")] = 32,
    out: OutOption = None,
    timeout: Annotated[float, options.seconds("Longest time of a run in seconds.")] = 600,
    skills: options.KnowingFolderOption = Path("skills"),
    cache: options.CacheOption = None,
    offline: options.OfflineOption = False,
    force: options.ForceOption = False,
) -> None:
    """Run a training launch in small on this machine's CPU, with upstream's own code.

    The launch is read and not executed. Its sizes are shrunk so that every option that decides
    the path of context parallelism keeps its effect. Megatron-LM's own program then runs with
    Transformer Engine's own context parallelism, and once more without context parallelism.

    Exit code 0: it starts, takes the path asked for, and agrees; 1: it does not; 2: bad input.
    """
    require_packages("rehearse")
    if dtype not in DTYPES:
        raise InputError("--dtype", f"{shown(dtype)} is unknown; use float32 or bfloat16")
    launch = _launch(words or [], sets or [])
    from ringproof.rehearsal.rehearsing import Request, rehearse
    from ringproof.rehearsal.verdict.rendering import lines, page
    from ringproof.rehearsal.verdict.variant import as_json

    request = Request(
        launch=launch,
        megatron=upstream,
        engine=te,
        against=against,
        folder=out if out is not None else Path("build/rehearsal") / _name(words or [], launch),
        cache=options.cache_folder(cache),
        skills=skills if skills.is_dir() else None,
        iterations=steps,
        dtype=dtype,
        max_ranks=max_ranks,
        timeout=timeout,
        offline=offline,
        machine=None if force else Machine.here(),
    )
    with rank_progress(Console(stderr=True)) as progress:
        result = rehearse(request, lambda phase, line: progress(phase, _brief(line)))
    if html:
        write_text(page(result), html, field="--html")
    said = () if html == STDOUT else lines(result)
    write_result(as_json(result), said, json_path, good=result.passed)


def require_packages(command: str, packages: Sequence[str] = PACKAGES) -> None:
    """Refuse to go on without the packages that ranks need.

    Raises:
        InputError: One is not installed.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        names = ", ".join(missing)
        sentence = f"{names} cannot be imported; run pip install 'ringproof[rehearsal]'"
        raise InputError(command, sentence)


def _launch(words: Sequence[str], sets: Sequence[str]) -> Launch:
    from ringproof.launch.reading import read_command, read_launch

    if not words:
        sentence = "no launch is named; name a launch script, or give a command after --"
        raise InputError("SCRIPT", sentence)
    values = dict(assignment(entry) for entry in sets)
    if len(words) == 1 and not words[0].endswith(".py"):
        return read_launch(Path(words[0]), values)
    if values:
        name = next(iter(values))
        sentence = f"a command has no variable {name} to set; write the value into the command"
        raise InputError("--set", sentence)
    return read_command(words)


def assignment(entry: str) -> tuple[str, str]:
    """Return the name and the value of a ``--set`` option."""
    name, equals, value = entry.partition("=")
    if not equals or re.fullmatch(r"[A-Za-z_]\w*", name) is None:
        raise InputError("--set", f"{shown(entry)} is not NAME=VALUE; write --set NNODES=8")
    return name, value


def _name(words: Sequence[str], launch: Launch) -> str:
    path = Path(words[0] if len(words) == 1 else launch.script)
    name = path.parent.name if path.stem == "model_config" else path.stem
    return re.sub(r"[^\w.-]", "_", name) or "launch"


@contextlib.contextmanager
def rank_progress(console: Console) -> Iterator[Callable[[str, str], None]]:
    """Show progress on stderr: one changing line on a terminal, plain lines anywhere else."""
    last = ("", 0.0)  # the phase and the time of the last line

    def tell(phase: str, line: str) -> None:
        nonlocal last
        now = time.monotonic()
        if phase != last[0] or now - last[1] >= SECONDS_BETWEEN_LINES:
            last = phase, now
            console.print(f"{phase}: {line}", markup=False, highlight=False, soft_wrap=True)

    if not console.is_terminal:
        yield tell
        return
    with console.status("starting") as status:
        yield lambda phase, line: status.update(_escaped(f"{phase}: {line}"))


def _brief(line: str) -> str:
    """Shorten a line of progress that ends with the last line of a log."""
    running, colon, logged = line.partition(" ranks running: ")
    if not colon:
        return line
    step = ITERATION.search(logged)
    doing = f"step {step[1]} of {step[2]} is done" if step else "before or between steps"
    return f"{running} ranks running, {doing}"


def _escaped(text: str) -> str:
    return escape("".join(letter if letter.isprintable() else "?" for letter in text))
