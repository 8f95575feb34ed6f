"""The options of ``ringproof smoke`` that a scheduler's file needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ringproof.errors import InputError, shown
from ringproof.options import check_options, option

CLAIM = re.compile(r"([a-z0-9][-.a-z0-9]*):(/[\w./-]*)")
_NAME = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_KEY = r"[A-Za-z0-9]([\w.-]*/)?[\w.-]*"
_SEVERAL = "Can be given several times."
_ANY_JOB = "slurm kubernetes"
_FORMS = (
    ("sbatch", r"--[a-z][\w-]*(=[\w.,:/%@+()*\[\]|&=?!-]+)?", "--account=team"),
    ("setup", r"[^\n\r\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029]+", "'module load cuda'"),
    ("env", r"[A-Za-z_]\w*=[^\0]*", "NCCL_SOCKET_IFNAME=eth0"),
    ("memory", r"[1-9]\d*(\.\d+)?(k|Ki|[MGTPE]i?)?", "512Gi"),
    ("rdma", rf"(?!(nvidia\.com/gpu|cpu|memory)=){_KEY}=[1-9]\d*", "rdma/shared=1"),
    ("toleration", rf"{_KEY}(=[\w.-]*)?", "nvidia.com/gpu"),
    ("namespace", _NAME, "training"),
    ("queue", _NAME, "team-queue"),
    ("upstream_on_nodes", r"/[^\0]*", "/shared/Megatron-LM"),
)
"""What values look like, by field, with an example: none can become another part of a file."""


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The files of schedulers, and what is in them."""

    slurm: str = option(
        "", "Write a script for sbatch. - writes it to standard output.", metavar="PATH"
    )
    kubernetes: str = option(
        "", "Write a JobSet manifest for kubectl. - writes it to standard output.", metavar="PATH"
    )
    minutes: int = option(30, "Time limit of a job in minutes.", least=1, needs=_ANY_JOB)
    image: str = option(
        "",
        "Container image (required with --kubernetes); with --slurm that of srun's option "
        "--container-image, which pyxis adds.",
        metavar="IMAGE",
        needs=_ANY_JOB,
    )
    upstream_on_nodes: str = option(
        "",
        "Where the nodes or pods have the checkout, if not at the place of --upstream.",
        metavar="DIR",
        needs=_ANY_JOB,
    )
    cpus: int = option(
        0, "Cores of a node for all of its ranks. With --slurm, 0 takes whole nodes.",
        least=0, needs=_ANY_JOB,
    )  # fmt: skip
    env: tuple[str, ...] = option(
        (), f"Set a variable for all ranks of a job. {_SEVERAL}",
        metavar="NAME=VALUE", needs=_ANY_JOB,
    )  # fmt: skip
    setup: tuple[str, ...] = option(
        (), f"Line of bash for a job, before its programs. {_SEVERAL}",
        metavar="LINE", needs=_ANY_JOB,
    )  # fmt: skip
    sbatch: tuple[str, ...] = option(
        (), f"Option of sbatch for the script, such as --account=team. {_SEVERAL}",
        metavar="OPTION", needs="slurm",
    )  # fmt: skip
    claim: str = option(
        "",
        "Persistent volume claim, and where pods have it (required with --kubernetes). --out and "
        "the checkout are then paths below it.",
        metavar="NAME:PATH",
        needs="kubernetes",
    )
    memory: str = option("", "Memory of a pod.", metavar="512Gi", needs="kubernetes")
    rdma: str = option(
        "",
        "RDMA devices of a pod, as their plugin names them. The pod gets the capability IPC_LOCK.",
        metavar="NAME=COUNT",
        needs="kubernetes",
    )
    toleration: tuple[str, ...] = option(
        (), f"Taint of nodes that pods tolerate. {_SEVERAL}",
        metavar="KEY[=VALUE]", needs="kubernetes",
    )  # fmt: skip
    namespace: str = option("", "Namespace of the JobSet.", needs="kubernetes")
    queue: str = option("", "Local queue of Kueue.", metavar="NAME", needs="kubernetes")

    def check_job(self) -> None:
        """Refuse what a scheduler's file cannot hold.

        Raises:
            InputError: A value has another form, or one is missing.
        """
        check_options(self)
        for name, form, example in _FORMS:
            value = getattr(self, name)
            for one in (value,) if isinstance(value, str) else value:
                if one and re.fullmatch(form, one) is None:
                    sentence = (
                        f"{shown(one)} is not of the form that a job needs; write it as {example}"
                    )
                    raise InputError(f"--{name.replace('_', '-')}", sentence)
        if not self.kubernetes:
            return
        if not self.image:
            raise InputError("--kubernetes", "--kubernetes needs --image, which has Megatron-LM's")
        if CLAIM.fullmatch(self.claim) is None:
            sentence = f"{shown(self.claim)} is not NAME:PATH; write it as training:/shared"
            raise InputError("--claim", sentence)

    @property
    def shared(self) -> tuple[str, str]:
        """Name of the claim, and the folder where pods have it; empty without one."""
        found = CLAIM.fullmatch(self.claim) if self.kubernetes else None
        return (found[1], found[2]) if found else ("", "")

    def check_pods(self, device: str, places: Sequence[tuple[str, object]]) -> None:
        """Refuse places of this machine, which pods do not have.

        Args:
            places: Options and the paths that the manifest will hold.
        """
        if device == "cpu":
            sentence = "its stand-ins are on this machine and not in the image; use --device cuda"
            raise InputError("--device", sentence)
        top = PurePosixPath(self.shared[1])
        for name, value in places:
            path = PurePosixPath(str(value or ""))
            if top not in (path, *path.parents) or ".." in path.parts:
                said = f"{shown(value)} is not below {top}, which is what pods have of {self.claim}"
                raise InputError(name, f"{said}; name a folder there")

    def tolerations(self) -> Iterator[dict[str, str]]:
        """Yield the tolerations of a pod, as Kubernetes has them."""
        for one in self.toleration:
            key, equal, value = one.partition("=")
            yield {"key": key, "operator": "Equal" if equal else "Exists"} | (
                {"value": value} if equal else {}
            )

    def container_mounts(self, device: str, places: Sequence[Path]) -> str:
        """Return what srun mounts into a container: each place under its own name.

        Raises:
            InputError: A path has a character that divides mounts, or no container can run this.
        """
        if device == "cpu":
            raise InputError("--image", "--device cpu runs without one; leave it out")
        for place in places:
            if re.search(r"[:,]", str(place)):
                sentence = f"{shown(place)} has a colon or comma, which divide mounts; rename it"
                raise InputError("--image", sentence)
        return ",".join(f"{place}:{place}" for place in dict.fromkeys(places))
