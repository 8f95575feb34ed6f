"""``ringproof smoke``: upstream's real training program on a cluster, with a feature on and off."""

from __future__ import annotations

import importlib.metadata
import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ringproof.budget import Machine
from ringproof.cli.console import HarmlessConsole
from ringproof.cli.options import CacheOptions, command_of, known_skills
from ringproof.cli.output import write_json, write_result, write_text
from ringproof.cli.rehearse import RunOptions, rank_progress, require_packages
from ringproof.errors import InputError, shown
from ringproof.files import check_new_folder, claimed, make_folder, make_new_folder
from ringproof.options import option, require, seconds
from ringproof.rehearsal.smoke.jobs import JobOptions

if TYPE_CHECKING:
    from ringproof.rehearsal.protocol.program import Upstream
    from ringproof.rehearsal.smoke.commands import Job
    from ringproof.rehearsal.smoke.judging import SmokeVerdict
    from ringproof.rehearsal.smoke.pair import Pair

ENDPOINT = re.compile(r"[\w.-]+:\d+")
ENGINE = "transformer-engine"

app = typer.Typer(no_args_is_help=True)


@dataclass(frozen=True, kw_only=True)
class SmokeCommand(JobOptions, CacheOptions, RunOptions):
    """The options of ``ringproof smoke megatron``."""

    upstream: str = option(
        "", "Megatron-LM checkout to run: a folder or git:PATH@REF.", metavar="SPEC"
    )
    feature: str = option(
        "", "Feature that is on in one program.", choices=("hcp", "dynamic-cp", "graphs")
    )
    ranks_per_node: int = option(8, "Number of ranks on each node.", least=1)
    nodes: int = option(1, "Number of nodes.", least=1)
    device: str = option(
        "cuda", "Where it runs; cpu has stand-ins for GPUs and kernels.", choices=("cuda", "cpu")
    )
    te: str | None = option(
        None,
        "Transformer Engine for --device cpu: a wheel, a folder, git:PATH@REF or "
        "pip:NAME==VERSION. The default is the newest release on the package index. On cuda the "
        "installed one runs.",
        metavar="SPEC",
    )
    out: Path | None = option(
        None, "Folder for logs.  [default: build/smoke/FEATURE]", metavar="DIR"
    )
    dry_run: bool = option(False, "Print both commands and start nothing.")
    judge: bool = option(False, "Judge the logs that are in --out and start nothing.")
    trace: Path | None = option(
        None,
        "Write a sample of what all ranks compute in two steps into folders in this new folder, "
        "for ringproof trace compare; the program without the feature runs once more for it.",
        metavar="DIR",
    )
    rendezvous: str = option(
        "", "Rendezvous of several nodes (required with their --dry-run).", metavar="HOST:PORT"
    )
    record: Path | None = option(None, "Record the result below DIR/ENVIRONMENT.", metavar="DIR")
    timeout: float = seconds(900, "Longest time of one program in seconds.")
    skills: Path | None = option(
        None,
        "The folder that holds the skills.  [default: skills, or those of the installation]",
        metavar="DIR",
    )

    def __post_init__(self) -> None:
        self.check_job()
        require(self, "upstream", "feature")
        if self.dry_run and self.nodes > 1 and ENDPOINT.fullmatch(self.rendezvous) is None:
            sentence = f"{shown(self.rendezvous)} is not HOST:PORT, which several nodes need"
            raise InputError("--rendezvous", f"{sentence}; write it as node-0:29500")
        if self.trace and not self.judge:
            check_new_folder(self.trace, field="--trace")

    def pair(self) -> Pair:
        """Return both programs.

        Raises:
            InputError: The checkout, the feature or the number of ranks cannot be used.
        """
        from ringproof.rehearsal.smoke.pair import FEATURES, PairSetting, make_pair

        folder = (self.out or Path("build/smoke") / self.feature).absolute()
        folder = folder if self.kubernetes else folder.resolve()  # a link here is none in a pod
        cpu = self.device == "cpu"
        setting = PairSetting(
            self.ranks_per_node, self.nodes, self._open(), cpu, folder,
            traces=self.trace and self.trace.resolve(),
        )  # fmt: skip
        skills = known_skills(self.skills, FEATURES[self.feature].skill)
        return make_pair(self.feature, setting, skills=skills, steps=self.steps)

    def job(self, kind: str, pair: Pair) -> tuple[Job, Pair]:
        """Return what a scheduler's file says besides the commands, and the pair on its nodes.

        Raises:
            InputError: A pod lacks a place, or a container cannot have it.
        """
        from ringproof.rehearsal.smoke.commands import Job

        setting, upstream = pair.setting, pair.setting.upstream
        checkout = Path(self.upstream_on_nodes or upstream.megatron)
        setting = replace(setting, upstream=replace(upstream, megatron=checkout))
        mounts, written = "", tuple[Path, ...]()
        given = (("--record", self.record), ("--trace", setting.traces))
        results = [(option, path) for option, path in given if path]
        if kind == "kubernetes":
            places = [("--out", setting.folder), ("--upstream-on-nodes", checkout)]
            self.check_pods(self.device, [*places, *results])
        elif self.image:
            written = (setting.folder, *(path.resolve() for _, path in results))
            mounts = self.container_mounts(self.device, [*written, checkout])
        there = bool(self.upstream_on_nodes) or kind == "kubernetes"
        words = ["--upstream", str(checkout)] if there else _absolute("--upstream", self.upstream)
        for name in ("te", "skills") if not self.image else ():  # the image has its own
            words += _absolute(f"--{name}", getattr(self, name))
        for name in ("record", "trace"):
            words += _absolute(f"--{name}", getattr(self, name))
        for name in ("ranks_per_node", "nodes", "steps", "device"):
            words += [f"--{name.replace('_', '-')}", str(getattr(self, name))]
        setting = replace(setting, python="python" if self.image else setting.python)
        return Job(tuple(words), self, mounts, written), replace(pair, setting=setting)

    def _open(self) -> Upstream:
        """Open upstream's code; on CUDA the Transformer Engine that is installed."""
        from ringproof.rehearsal.protocol.program import Upstream
        from ringproof.rehearsal.runs.upstreams import open_megatron, open_upstream
        from ringproof.rehearsal.smoke.pair import SCRIPT
        from ringproof.stack.products import checked_out

        source: dict[str, Any] = {"cache": self.downloads, "offline": self.offline}
        if self.device == "cpu":
            require_packages("--device")
            upstream = open_upstream(self.upstream, self.te, **source)
        else:
            root, name = open_megatron(self.upstream, **source)
            version = ""
            with suppress(importlib.metadata.PackageNotFoundError):
                version = importlib.metadata.version(ENGINE)
            upstream = Upstream(root, name, Path(), version, None)
        if not (upstream.megatron / SCRIPT).is_file():
            sentence = f"{shown(self.upstream)} has no {SCRIPT}; name a checkout, not a wheel"
            raise InputError("--upstream", sentence)
        commit = checked_out(upstream.megatron)
        if commit is None:
            return upstream
        return replace(upstream, megatron_name=f"{upstream.megatron_name}#commit={commit}")


def _absolute(option: str, place: object) -> list[str]:
    """Return an option that names a place: a path as an absolute one, any other spec as it is."""
    if place is None:
        return []
    path = Path(str(place))
    is_path = isinstance(place, Path) or path.exists()
    return [option, str(path.resolve()) if is_path else str(place)]


@app.command(
    epilog="Example: ringproof smoke megatron --upstream ../Megatron-LM --feature hcp --dry-run"
)
@command_of(SmokeCommand)
def megatron(options: SmokeCommand) -> None:
    """Train a few steps with upstream's pretrain_gpt.py, with a feature on and with it off.

    Both programs come from the launch in the feature's skill, made small, with mock data. torchrun
    starts their ranks and keeps a log of each. The logs have to show the process groups that were
    asked for, and both programs the same losses.

    Exit code 0: they do; 1: they do not; 2: bad input.
    """
    from ringproof.rehearsal.smoke import judging
    from ringproof.rehearsal.smoke.commands import lines, render

    pair = options.pair()
    if options.dry_run:
        typer.echo("\n".join(lines(pair, options.rendezvous if options.nodes > 1 else "")))
    for kind, place in (("slurm", options.slurm), ("kubernetes", options.kubernetes)):
        if place:
            job, there = options.job(kind, pair)
            write_text(render(kind, there, job), place, field=f"--{kind}")
    if not (options.dry_run or options.slurm or options.kubernetes):
        _report(judging.judge(pair) if options.judge else _run(pair, options), options)


def _run(pair: Pair, options: SmokeCommand) -> SmokeVerdict:
    """Run both programs on this machine and judge them, in a folder that no other run has."""
    from ringproof.rehearsal.smoke import judging, launcher

    if pair.setting.nodes > 1:
        sentence = "only one node is started here; use --slurm, --kubernetes or --dry-run"
        raise InputError("--nodes", sentence)
    if not pair.setting.cpu:
        require_packages("--device", ("torch",))
        launcher.require_gpus(pair.setting.ranks)
    elif not options.force:
        launcher.estimate(pair.setting.ranks_per_node).check(Machine.here())
    if options.trace is not None:
        make_new_folder(options.trace, field="--trace")
    make_folder(pair.setting.folder, field="--out")
    with claimed(pair.setting.folder, field="--out"):
        with rank_progress(HarmlessConsole(stderr=True)) as progress:
            problems = launcher.run_pair(pair, timeout=options.timeout, progress=progress)
        return judging.judge(pair, tuple(problems))


def _report(verdict: SmokeVerdict, options: SmokeCommand) -> None:
    from ringproof.prove.environment import read_environment
    from ringproof.rehearsal.smoke import judging

    data: dict[str, Any] = {}
    record = options.record
    if options.json_path or record is not None:  # reading the environment takes a while
        machine = read_environment(Path.cwd())
        variables = {"SLURM_JOB_ID": "slurm", "JOB_COMPLETION_INDEX": "kubernetes"}
        under = next((kind for name, kind in variables.items() if name in os.environ), "")
        data = judging.record(verdict, machine, under)
        if record is not None:
            (record / machine.name).mkdir(parents=True, exist_ok=True)
            place = record / machine.name / f"smoke-{verdict.pair.feature}.json"
            write_json(data, place, field="--record")
    write_result(data, judging.lines(verdict), options.json_path, good=verdict.passed)
