"""verl and Megatron-Bridge beside Megatron-LM: from what a user names to folders."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass, replace
from pathlib import Path

from ringproof.errors import InputError, shown
from ringproof.rehearsal.protocol.program import Upstream
from ringproof.rehearsal.protocol.reports import Failure
from ringproof.rehearsal.runs.releases import BRIDGE
from ringproof.rehearsal.runs.upstreams import open_bridge, open_product

VERL = "pip:verl==0.9.1"
MODEL_TYPES = Path("megatron/core/enums.py")
OLD_MODEL_TYPE = "encoder_and_decoder"  # which mbridge asks for, and newer Megatron-LM lacks


@dataclass(frozen=True)
class VerlStack:
    """verl with what it imports.

    Attributes:
        upstream: Megatron-LM and Transformer Engine, with verl and the bridge as further folders.
        verl: Folder that holds ``verl``.
        name: All versions, for people.
    """

    upstream: Upstream
    verl: Path
    name: str

    @property
    def short(self) -> str:
        """All versions without hashes."""
        return re.sub(r"#[^,]*", "", self.name)


def open_verl(verl: str, *, cache: Path, offline: bool) -> tuple[Path, str]:
    """Return the folder that holds ``verl``, and its version for people.

    Args:
        verl: As `open_upstream` takes Megatron: a folder, ``git:PATH@REF`` or ``pip:verl==X``.

    Raises:
        InputError: It is not verl.
    """
    return open_product(
        "verl", "verl/trainer", ("verl/", "verl-"), verl or VERL,
        option="--verl", cache=cache, offline=offline,
    )  # fmt: skip


def open_stack(
    upstream: Upstream, verl: tuple[Path, str], bridge: str, *, vanilla: bool, cache: Path,
    offline: bool,
) -> VerlStack:  # fmt: skip
    """Return verl on an upstream.

    Args:
        verl: What `open_verl` returned.
        bridge: Megatron-Bridge as `open_upstream` takes Megatron; not read if ``vanilla``.
        vanilla: Whether the launch takes mbridge in the place of Megatron-Bridge.

    Raises:
        InputError: One of them is not what it should be, or the versions do not fit together.
    """
    root, name = verl
    extra, names = [root], [name]
    if vanilla:
        names.append(_mbridge(upstream))
    else:
        folder, bridge_name = open_bridge(
            bridge or BRIDGE, option="--bridge", cache=cache, offline=offline
        )
        extra.append(folder)
        names.append(bridge_name)
    versions = ", ".join([upstream.megatron_name, *names])
    return VerlStack(replace(upstream, extra=tuple(extra)), root, versions)


def unfit(name: str, failure: Failure) -> InputError:
    """Return the error for versions of which one lacks what another one imports.

    Args:
        name: All versions, for people.
    """
    at = f" at {failure.place}" if failure.place else ""
    versions = re.sub(r"#[^,]*", "", name)
    sentence = f"{versions} do not fit together: {failure.message}{at}; name other versions"
    return InputError("--upstream", " ".join(sentence.split()))


def _mbridge(upstream: Upstream) -> str:
    """Return the installed mbridge by name.

    Raises:
        InputError: It is not installed, or does not run with this Megatron-LM.
    """
    if importlib.util.find_spec("mbridge") is None:
        sentence = "the launch takes mbridge, which is not installed; pip install mbridge"
        raise InputError("vanilla_mbridge", sentence)
    version = importlib.metadata.version("mbridge")
    enums = upstream.megatron / MODEL_TYPES
    if enums.is_file() and OLD_MODEL_TYPE not in enums.read_text():
        sentence = (
            f"mbridge {version} does not run with {shown(upstream.megatron_name)}, whose ModelType "
            f"has no {OLD_MODEL_TYPE}; take pip:megatron-core==0.16.1, or vanilla_mbridge=False"
        )
        raise InputError("vanilla_mbridge", sentence)
    return f"mbridge {version}"
