"""``ringproof smoke``: upstream's real training program on a cluster, with a feature on and off."""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ringproof.budget import Machine
from ringproof.cli import options
from ringproof.cli.output import write_json, write_result, write_text
from ringproof.cli.rehearse import rank_progress, require_packages
from ringproof.errors import InputError
from ringproof.holding import held_folder

if TYPE_CHECKING:
    from ringproof.rehearsal.protocol.program import Upstream
    from ringproof.rehearsal.smoke.commands import Job
    from ringproof.rehearsal.smoke.judging import SmokeVerdict
    from ringproof.rehearsal.smoke.pair import Pair, PairSetting

CLAIM = re.compile(r"([a-z0-9][-.a-z0-9]*):(/[\w./-]*)")
ENGINE = "transformer-engine"
DEVICES = ("cuda", "cpu")

app = typer.Typer(
    help="Run upstream's training program on a cluster, with a feature on and off.",
    no_args_is_help=True,
)

RepoOption = Annotated[
    str, typer.Option(metavar="PATH|git:PATH@REF", help="Megatron-LM checkout to run.")
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        metavar="WHEEL|PATH|git:PATH@REF|pip:NAME==VERSION",
        help="Transformer Engine for --device cpu; else the newest release on the package index. "
        "On cuda the installed one runs.",
    ),
]
DeviceOption = Annotated[
    str, typer.Option(help="cuda, or cpu with stand-ins for GPUs and kernels.")
]
TimeoutOption = Annotated[float, options.seconds("Longest time of one program in seconds.")]
OutOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder for logs. [default: build/smoke/FEATURE]")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print both commands and start nothing.")
]
JudgeOption = Annotated[
    bool, typer.Option("--judge", help="Judge the logs that are in --out and start nothing.")
]
RendezvousOption = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT", help="Rendezvous of several nodes (required with their --dry-run)."
    ),
]
SlurmOption = Annotated[
    str, typer.Option(metavar="FILE", help="Write a script for sbatch; - is stdout.")
]
KubernetesOption = Annotated[
    str, typer.Option(metavar="FILE", help="Write a JobSet manifest for kubectl; - is stdout.")
]
ClaimOption = Annotated[
    str,
    typer.Option(
        metavar="NAME:PATH",
        help="Persistent volume claim, and where pods have it (required with --kubernetes). "
        "--repo and --out are then paths in the pods, too.",
    ),
]
RecordOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Record the result below DIR/ENVIRONMENT.")
]


@app.callback()
def _root() -> None:
    pass


@app.command(
    epilog="Example: ringproof smoke megatron --repo ../Megatron-LM --feature hcp --dry-run"
)
def megatron(
    *,
    repo: RepoOption,
    feature: Annotated[str, typer.Option(help="Feature: hcp, dynamic-cp or graphs.")],
    nproc: Annotated[int, typer.Option(min=1, help="Number of ranks on each node.")] = 8,
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes.")] = 1,
    device: DeviceOption = "cuda",
    te: EngineOption = None,
    steps: Annotated[int, typer.Option(min=1, help="Number of training steps.")] = 5,
    out: OutOption = None,
    dry_run: DryRunOption = False,
    judge: JudgeOption = False,
    rendezvous: RendezvousOption = "",
    slurm: SlurmOption = "",
    kubernetes: KubernetesOption = "",
    minutes: Annotated[int, typer.Option(min=1, help="Time limit of a job in minutes.")] = 30,
    image: Annotated[str, typer.Option(help="Container image (required with --kubernetes).")] = "",
    claim: ClaimOption = "",
    record: RecordOption = None,
    json_path: options.JsonOption = "",
    timeout: TimeoutOption = 900,
    skills: options.KnowingFolderOption = Path("skills"),
    cache: options.CacheOption = None,
    offline: options.OfflineOption = False,
    force: options.ForceOption = False,
) -> None:
    """Train a few steps with upstream's pretrain_gpt.py, with a feature on and with it off.

    Both programs come from the launch in the feature's skill, made small, with mock data. torchrun
    starts their ranks and keeps a log of each. The logs have to show the process groups that were
    asked for, and both programs the same losses.

    Exit code 0: they do; 1: they do not; 2: bad input.
    """
    from ringproof.rehearsal.smoke import judging
    from ringproof.rehearsal.smoke.commands import Job, lines
    from ringproof.rehearsal.smoke.pair import PairSetting, make_pair

    upstream = _upstream(repo, te, device, options.cache_folder(cache), offline)
    folder = (out or Path("build/smoke") / feature).resolve()
    setting = PairSetting(nproc, nodes, upstream, device == "cpu", folder)
    pair = make_pair(feature, setting, skills=skills, steps=steps)
    if dry_run:
        typer.echo("\n".join(lines(pair, _endpoint(nodes, rendezvous))))
    if slurm or kubernetes:
        places = {"--repo": repo, "--te": te, "--skills": skills, "--record": record}
        again = (*_words(setting, device, steps), *_absolute(places))
        job = Job(again, minutes, image, _claim(kubernetes, image, claim))
        _write_jobs(pair, job, {"slurm": slurm, "kubernetes": kubernetes})
    if dry_run or slurm or kubernetes:
        return
    limit = None if force else Machine.here()
    with nullcontext() if out else held_folder(setting.folder, "--out"):
        verdict = judging.judge(pair, () if judge else _run(pair, timeout, limit))
    _report(verdict, json_path, record)


def _words(setting: PairSetting, device: str, steps: int) -> tuple[str, ...]:
    counts = ("--nproc", str(setting.nproc), "--nodes", str(setting.nodes), "--steps", str(steps))
    return (*counts, "--device", device)


def _absolute(places: Mapping[str, object]) -> Iterator[str]:
    """Yield options that name places: a path as an absolute one, any other spec as it is."""
    for option, place in places.items():
        if place is not None:
            path = Path(str(place))
            is_path = isinstance(place, Path) or path.exists()
            yield from (option, str(path.resolve()) if is_path else str(place))


def _write_jobs(pair: Pair, job: Job, places: Mapping[str, str]) -> None:
    """Write the files of those schedulers that have a place."""
    from ringproof.rehearsal.smoke.commands import render

    for kind, place in places.items():
        if place:
            write_text(render(kind, pair, job), place, field=f"--{kind}")


def _endpoint(nodes: int, rendezvous: str) -> str:
    if nodes > 1 and re.fullmatch(r"[\w.-]+:\d+", rendezvous) is None:
        problem = "several nodes need HOST:PORT"
        raise InputError("--rendezvous", rendezvous or None, problem, "such as node-0:29500")
    return rendezvous if nodes > 1 else ""


def _claim(kubernetes: str, image: str, claim: str) -> tuple[str, str]:
    """Return the name of a volume claim and its folder, which only Kubernetes needs."""
    if not kubernetes:
        return "", ""
    if not image:
        raise InputError("--image", None, "pods need one", "name an image that has Megatron-LM's")
    match = CLAIM.fullmatch(claim)
    if match is None:
        remedy = "such as --claim training:/shared"
        raise InputError("--claim", claim or None, "is not NAME:PATH", remedy)
    return match[1], match[2]


def _upstream(repo: str, te: str | None, device: str, cache: Path, offline: bool) -> Upstream:
    """Open upstream's code; on CUDA the Transformer Engine that is installed."""
    from ringproof.rehearsal.protocol.program import Upstream
    from ringproof.rehearsal.runs.upstreams import open_megatron, open_upstream
    from ringproof.rehearsal.smoke.pair import SCRIPT
    from ringproof.stack.products import checked_out

    if device not in DEVICES:
        raise InputError("--device", device, "is not known", f"one of {', '.join(DEVICES)}")
    if device == "cpu":
        require_packages("--device")
        upstream = open_upstream(repo, te, cache=cache, offline=offline, option="--repo")
    else:
        root, name = open_megatron(repo, cache=cache, offline=offline, option="--repo")
        version = ""
        with suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(ENGINE)
        upstream = Upstream(root, name, Path(), version, None)
    if not (upstream.megatron / SCRIPT).is_file():
        raise InputError("--repo", repo, f"has no {SCRIPT}", "name a checkout; wheels have none")
    commit = checked_out(upstream.megatron)
    if commit is None:
        return upstream
    return replace(upstream, megatron_name=f"{upstream.megatron_name}#commit={commit}")


def _run(pair: Pair, timeout: float, machine: Machine | None) -> tuple[str, ...]:
    """Run both programs on this machine; return why one did not run through."""
    from ringproof.rehearsal.smoke import launcher

    if pair.setting.nodes > 1:
        remedy = "write a job with --slurm or --kubernetes, or print the commands with --dry-run"
        raise InputError("--nodes", pair.setting.nodes, "only one node is started here", remedy)
    if not pair.setting.cpu:
        require_packages("--device", ("torch",))
        launcher.require_gpus(pair.setting.ranks)
    elif machine is not None:
        launcher.estimate(pair.setting.nproc).check(machine)
    with rank_progress(Console(stderr=True)) as progress:
        return tuple(launcher.run_pair(pair, timeout=timeout, progress=progress))


def _report(verdict: SmokeVerdict, json_path: str, record: Path | None) -> None:
    from ringproof.prove.environment import read_environment
    from ringproof.rehearsal.smoke import judging

    data: dict[str, Any] = {}
    if json_path or record is not None:  # reading the environment takes a while
        machine = read_environment(Path.cwd())
        variables = {"SLURM_JOB_ID": "slurm", "JOB_COMPLETION_INDEX": "kubernetes"}
        under = next((kind for name, kind in variables.items() if name in os.environ), "")
        data = judging.record(verdict, machine, under)
        if record is not None:
            (record / machine.name).mkdir(parents=True, exist_ok=True)
            place = record / machine.name / f"smoke-{verdict.pair.feature}.json"
            write_json(data, place, field="--record")
    write_result(data, judging.lines(verdict), json_path, good=verdict.passed)
