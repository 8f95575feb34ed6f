"""``ringproof rehearse``: a launch of Megatron-LM, run in small without GPUs."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from rich.cells import set_cell_size
from rich.console import Console
from rich.text import Text

from ringproof.budget import Machine
from ringproof.cli.console import HarmlessConsole
from ringproof.cli.options import (
    CacheOptions,
    command_of,
    folder_option,
    force_option,
    json_option,
    knowing_skills,
)
from ringproof.cli.output import write_result, write_text
from ringproof.errors import InputError, printable, shown
from ringproof.extras import how_to_install
from ringproof.files import check_new_folder
from ringproof.launch.options import PROGRAMS
from ringproof.launch.overrides import VERL_MODULES
from ringproof.options import option, seconds

if TYPE_CHECKING:
    from ringproof.launch.reading import Launch

EXAMPLE = (
    "Example: ringproof rehearse train.sh --upstream git:/src/Megatron-LM@dev --set NNODES=8 "
    "--html train.html"
)
PACKAGES = ("torch", "numpy", "psutil", "einops", "pybind11", "omegaconf")
VERL_PACKAGES = (
    "accelerate", "codetiming", "datasets", "dill", "hydra", "msgspec", "peft", "pyarrow",
    "pylatexenc", "tensordict", "torchdata", "transformers", "zmq",
)  # fmt: skip
BRIDGE_PACKAGES = ("transformers", "hydra", "modelopt", "datasets", "tensorboard")
VERL, BRIDGE, OWN = "a launch of verl", "a launch of Megatron-Bridge", "a program of your own"
SECONDS_BETWEEN_LINES = 10.0
ITERATION = re.compile(r"iteration\s+(\d+)/\s*(\d+)")
CHECKOUT = "Megatron-LM to run: a folder, git:PATH@REF, a wheel, or megatron-core==VERSION."


def set_option() -> Any:
    """Declare the option ``--set``; `assignment` reads one of its values."""
    help = "Value of a variable of the script."
    return option((), help, "--set", metavar="NAME=VALUE")


def launch_words() -> Any:
    """Declare the argument that names a launch; `launch_of` reads it."""
    help = "Launch script, model_config.yaml of a functional test, or a launch command."
    return option((), help, metavar="SCRIPT | -- COMMAND...", argument=True)


def engine_option() -> Any:
    """Declare the option ``--te``."""
    help = (
        "Transformer Engine to run: a wheel, a folder, git:PATH@REF or pip:NAME==VERSION. "
        "The default is the newest release on the package index."
    )
    return option(None, help, metavar="SPEC")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a checkout of Megatron-LM is run."""

    upstream: str = option(
        "",
        f"{CHECKOUT} Needed for Megatron-LM's own programs; the default of others is a release.",
        metavar="SPEC",
    )
    te: str | None = engine_option()
    steps: int = option(5, "Number of training steps.", least=1)
    json_path: str = json_option()
    offline: bool = option(False, "Do not download anything.")
    force: bool = force_option()


@dataclass(frozen=True, kw_only=True)
class RehearseCommand(CacheOptions, RunOptions):
    """The options of ``ringproof rehearse``."""

    words: tuple[str, ...] = launch_words()
    verl: str = option(
        "",
        "verl to run, for a launch of verl: a folder, git:PATH@REF or pip:verl==VERSION.  "
        "[default: pip:verl==0.9.1]",
        metavar="SPEC",
    )
    bridge: str = option(
        "",
        "Megatron-Bridge for a launch of it or of verl, named alike.  "
        "[default: the release that fits]",
        metavar="SPEC",
    )
    sets: tuple[str, ...] = set_option()
    against: str = option(
        "",
        "Rehearse a variant too: another checkout, or one option changed.",
        metavar="REF|FLAG=VALUE",
    )
    html: str = option("", "Write the result as one page; - is stdout.", metavar="PATH")
    locate: bool = option(True, "Look for the first wrong tensor of a run that does not agree.")
    keep_trace: Path | None = option(
        None,
        "Keep what all runs computed in this new folder, also where they agree; ringproof trace "
        "compare reads it.",
        metavar="DIR",
    )
    dtype: str = option("float32", "Precision of the run.", choices=("float32", "bfloat16"))
    max_ranks: int = option(32, "Largest number of ranks to run.", least=1)
    out: Path | None = option(
        None,
        "Folder for logs; those of an earlier rehearsal are replaced.  "
        "[default: build/rehearsal/NAME]",
        metavar="DIR",
    )
    timeout: float = seconds(600, "Longest time of a run in seconds.")
    verbose: bool = option(False, "List what was shrunk, and what each change can hide.")
    skills: Path = folder_option(knowing_skills)

    def __post_init__(self) -> None:
        if self.keep_trace:
            check_new_folder(self.keep_trace, field="--keep-trace")


@command_of(RehearseCommand)
def rehearse(options: RehearseCommand) -> None:
    """Run a training launch in small on this machine's CPU, with upstream's own code.

    The launch is read and not executed. Its sizes are shrunk so that every option that decides
    the path of context parallelism keeps its effect. Megatron-LM's own program then runs with
    Transformer Engine's own context parallelism, and once more without context parallelism.

    Exit code 0: it starts, takes the path asked for, and agrees; 1: it does not; 2: bad input.
    """
    require_packages("rehearse")
    launch = launch_of(options.words, options.sets)
    kind = _kind(options, launch)
    _check_upstreams(options, kind, launch.script)
    from ringproof.rehearsal.bridge.rehearsing import BridgeRequest, rehearse_bridge
    from ringproof.rehearsal.fit.beside import with_full_size
    from ringproof.rehearsal.own.rehearsing import rehearse_own
    from ringproof.rehearsal.rehearsing import Request, rehearse
    from ringproof.rehearsal.verdict.rendering import lines, page
    from ringproof.rehearsal.verdict.variant import as_json
    from ringproof.rehearsal.verl.rehearsing import VerlRequest, rehearse_verl

    request = Request(
        launch=launch,
        megatron=options.upstream,
        engine=options.te,
        against=options.against,
        folder=options.out or Path("build/rehearsal") / name_of(options.words, launch),
        cache=options.downloads,
        skills=options.skills if options.skills.is_dir() else None,
        iterations=options.steps,
        dtype=options.dtype,
        max_ranks=options.max_ranks,
        timeout=options.timeout,
        offline=options.offline,
        machine=None if options.force else Machine.here(),
        locates=options.locate,
        keeps=options.keep_trace,
    )
    with rank_progress(HarmlessConsole(stderr=True)) as progress:

        def tell(phase: str, line: str) -> None:
            progress(phase, brief(line))

        if kind == VERL:
            result = rehearse_verl(VerlRequest(request, options.verl, options.bridge), tell)
        elif kind == BRIDGE:
            require_packages("rehearse", BRIDGE_PACKAGES, "rehearsal,bridge")
            result = rehearse_bridge(BridgeRequest(request, options.bridge), tell)
        elif kind == OWN:
            result = rehearse_own(request, tell)
        else:
            result = with_full_size(rehearse(request, tell), request, tell)
    if options.html:
        write_text(page(result), options.html, field="--html")
    said = () if options.html == "-" else lines(result, verbose=options.verbose)
    write_result(as_json(result), said, options.json_path, good=result.passed)


def _kind(options: RehearseCommand, launch: Launch) -> str:
    """Return which kind of launch it is; it is empty for one of Megatron-LM.

    Raises:
        InputError: A trace is to be kept, and launches of this kind have none.
    """
    from ringproof.rehearsal.bridge.upstreams import calls_bridge, is_bridge
    from ringproof.rehearsal.own.rehearsing import is_own_program

    if launch.script in VERL_MODULES:
        kind = VERL
    elif options.bridge or is_bridge(options.upstream) or calls_bridge(launch.script):
        kind = BRIDGE
    else:
        kind = OWN if is_own_program(launch) else ""
    if kind == OWN and options.keep_trace:
        raise InputError("--keep-trace", f"{kind} is not traced; leave the option out")
    return kind


def _check_upstreams(options: RehearseCommand, kind: str, script: str) -> None:
    """Refuse a launch without its packages or upstream, and options of verl for another launch."""
    if kind == VERL:
        require_packages("rehearse", VERL_PACKAGES, "verl")
    known = kind or options.upstream or PurePath(script).name in PROGRAMS
    if not (known or Path(script).is_file()):
        sentence = f"{shown(script)} is not here; correct its path, or give --upstream"
        raise InputError("the launch", sentence)
    if not (kind or options.upstream):
        sentence = "it is missing; name a checkout, git:PATH@REF or megatron-core==VERSION"
        raise InputError("--upstream", sentence)
    if options.verl and kind != VERL:
        raise InputError("--verl", "the launch is none of verl; leave the option out")


def require_packages(
    command: str, packages: Sequence[str] = PACKAGES, extra: str = "rehearsal"
) -> None:
    """Refuse to go on without the packages that ranks need.

    Raises:
        InputError: One is not installed.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        names = ", ".join(missing)
        raise InputError(command, f"{names} cannot be imported; {how_to_install(extra)}")


def launch_of(words: Sequence[str], sets: Sequence[str]) -> Launch:
    """Read the launch that a user names: a file, or the words of a command.

    Args:
        sets: Values of ``--set``.

    Raises:
        InputError: It is not a launch.
    """
    from ringproof.launch.reading import read_command, read_launch

    if not words:
        sentence = "no launch is named; name a launch script, or give a command after --"
        raise InputError("SCRIPT", sentence)
    values = dict(assignment(entry) for entry in sets)
    if len(words) == 1 and " " in words[0] and not Path(words[0]).exists():
        words = split_command(words[0])  # a command in quotes
    if len(words) == 1 and not words[0].endswith(".py"):
        return read_launch(Path(words[0]), values)
    if values:
        name = next(iter(values))
        sentence = f"a command has no variable {name} to set; write the value into the command"
        raise InputError("--set", sentence)
    return read_command(words)


def split_command(text: str) -> tuple[str, ...]:
    """Return the words of a command line that was given as one word."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        sentence = f"{shown(text)} is not a command ({error}); close its quotes"
        raise InputError("SCRIPT", sentence) from error


def assignment(entry: str) -> tuple[str, str]:
    """Return the name and the value of a ``--set`` option."""
    name, equals, value = entry.partition("=")
    if not equals or re.fullmatch(r"[A-Za-z_]\w*|[1-9]\d{0,2}", name) is None:
        raise InputError("--set", f"{shown(entry)} is not NAME=VALUE; write --set NNODES=8")
    return name, value


def name_of(words: Sequence[str], launch: Launch) -> str:
    """Return a name for the folder of a launch."""
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

    if not console.file.isatty():
        yield tell
        return
    with console.status("starting") as status:  # whose spinner breaks a longer text
        yield lambda phase, line: status.update(
            Text(set_cell_size(printable(f"{phase}: {line}"), console.width - 2).rstrip())
        )


def brief(line: str) -> str:
    """Shorten a line of progress that ends with the last line of a log."""
    running, colon, logged = line.partition(" ranks running: ")
    if not colon:
        return line
    step = ITERATION.search(logged)
    doing = f"step {step[1]} of {step[2]} is done" if step else "before or between steps"
    return f"{running} ranks running, {doing}"
