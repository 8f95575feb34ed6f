"""The commands of a smoke run, as words, as lines of a shell, and in files of a scheduler."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ringproof.errors import printable
from ringproof.rehearsal.smoke.jobs import JobOptions
from ringproof.rehearsal.smoke.pair import DISTURBED, SCRIPT, Pair, PairProgram
from ringproof.templates import fill_template

MEMBER = "ringproof.rehearsal.rank.member"
PORT = 29500
RENDEZVOUS = "$endpoint"
"""Word that a job's script expands. No other word begins with a dollar: paths are absolute."""


def environment(pair: Pair, program: PairProgram) -> Mapping[str, str]:
    """Return the variables that a program needs besides those of the shell."""
    own = {"OMP_NUM_THREADS": "1"}
    if pair.setting.cpu and pair.setting.nodes == 1:
        own["GLOO_SOCKET_IFNAME"] = "lo"
    return MappingProxyType({**program.environment, **own})


def torchrun(pair: Pair, program: PairProgram, endpoint: str = "") -> tuple[str, ...]:
    """Return the command that starts the ranks of one node.

    Args:
        endpoint: ``HOST:PORT`` of the rendezvous; empty for one node alone.
    """
    setting, upstream = pair.setting, pair.setting.upstream
    words = [setting.python, "-m", "torch.distributed.run"]
    if endpoint:
        words += ["--nnodes", str(pair.setting.nodes), "--rdzv-backend", "c10d"]
        words += ["--rdzv-endpoint", endpoint, "--rdzv-id", f"{pair.feature}-{program.name}"]
    else:
        words += ["--standalone", "--nnodes", "1"]
    words += ["--nproc-per-node", str(pair.setting.ranks_per_node), "--max-restarts", "0"]
    words += ["--log-dir", str(pair.folder(program)), "--redirects", "3"]
    if not setting.cpu and setting.traces is None:
        return (*words, str(upstream.megatron / SCRIPT), *program.arguments)
    words += ["-m", MEMBER, "--megatron", str(upstream.megatron)]
    words += ["--engine-version", upstream.engine_version]
    if setting.cpu:
        words += ["--engine", str(upstream.engine)]
    if setting.cpu and upstream.helpers is not None:
        words += ["--helpers", str(upstream.helpers)]
    if setting.traces is not None:
        words += ["--trace", str(setting.traces / program.name)]
        words += ["--traced-steps", ",".join(map(str, pair.traced))]
        words += ["--disturbed"] * (program.name == DISTURBED)
    return (*words, "--dtype", setting.dtype, SCRIPT, *program.arguments)


def shell(words: Sequence[str], variables: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return words as one line of bash, which expands none but the word `RENDEZVOUS`."""
    quoted = [f'"{word}"' if word == RENDEZVOUS else _quoted(word) for word in words]
    return " ".join([f"{name}={_quoted(value)}" for name, value in variables.items()] + quoted)


def _quoted(word: str) -> str:
    """Quote a word for bash, on one line whatever it holds."""
    if word.isprintable():
        return shlex.quote(word)
    letters = (chr(byte) for byte in os.fsencode(word))
    escaped = (x if x.isascii() and (x.isalnum() or x in "/._-") else f"\\x{ord(x):02x}"
               for x in letters)  # fmt: skip
    return f"$'{''.join(escaped)}'"


def lines(pair: Pair, endpoint: str = "") -> list[str]:
    """Return the commands as lines of bash, each with its environment."""
    return [
        shell(torchrun(pair, program, endpoint), environment(pair, program))
        for program in pair.started
    ]


@dataclass(frozen=True)
class Job:
    """What a scheduler's file says besides the commands.

    Attributes:
        options: Options that repeat this smoke run, apart from the feature and the folder of logs.
        asked: What the user says about the file.
        mounts: What Slurm mounts into a container; empty without one.
        written: Folders among it that the job creates.
    """

    options: tuple[str, ...]
    asked: JobOptions
    mounts: str = ""
    written: tuple[Path, ...] = ()


def render(template: str, pair: Pair, job: Job) -> str:
    """Return an sbatch script (``slurm``) or a JobSet manifest (``kubernetes``)."""
    setting, asked = pair.setting, job.asked
    judge = [setting.python, "-m", "ringproof", "smoke", "megatron", "--feature", pair.feature]
    judge += ["--out", str(setting.folder), "--judge", *job.options]
    started = zip(pair.started, lines(pair, RENDEZVOUS), strict=True)
    container = ("--container-image", asked.image, "--container-mounts", job.mounts)
    named = (one.partition("=") for one in asked.env)
    values = {
        "name": f"ringproof-{pair.feature}",
        "feature": pair.feature,
        "job": asked,
        "setting": setting,
        "folder": printable(str(setting.folder)),
        "written": shell([str(folder) for folder in job.written]),
        "setup": [*(f"export {name}={_quoted(value)}" for name, _, value in named), *asked.setup],
        "container": f" {shell(container)}" if job.mounts else "",
        "commands": [{"name": program.name, "line": line} for program, line in started],
        "judge": shell(judge),
        "port": PORT,
        "tolerations": list(asked.tolerations()),
        "rdma": asked.rdma.rpartition("="),
    }
    return fill_template("ringproof.rehearsal.smoke", f"{template}.jinja", values)
