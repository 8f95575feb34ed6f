"""Which Megatron-Core fits a release of Megatron-Bridge."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ringproof.errors import InputError, shown

CORES: Mapping[str, str] = MappingProxyType(
    {"0.3": "0.16.1", "0.4": "0.17.1", "0.5": "0.18.2", "0.6": "0.19.2"}
)
"""By release of Megatron-Bridge, the Megatron-Core of its time."""


def core_of(version: str) -> str:
    """Return the Megatron-Core on which a release of Megatron-Bridge runs.

    Raises:
        InputError: It is not known.
    """
    release = ".".join(version.split(".")[:2])
    if release not in CORES:
        sentence = f"the Megatron-LM of Bridge {shown(version)} is not known; name it as well"
        raise InputError("--upstream", sentence)
    return f"pip:megatron-core=={CORES[release]}"
