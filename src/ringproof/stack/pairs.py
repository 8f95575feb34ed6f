"""Which Megatron-Core fits a release of Megatron-Bridge."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ringproof.errors import InputError, shown

PAIRS: Mapping[str, str] = MappingProxyType({
    f"pip:megatron-core=={core}": f"pip:megatron-bridge=={bridge}"
    for core, bridge in {
        "0.19.2": "0.6.2", "0.18.2": "0.5.1", "0.17.1": "0.4.2", "0.16.1": "0.3.1"
    }.items()
})  # fmt: skip
"""Megatron-Core and the Megatron-Bridge of its time, as specs, the newest releases first.

Those of each pair import each other, and were seen to train.
"""


def core_of(version: str) -> str:
    """Return the Megatron-Core on which a release of Megatron-Bridge runs.

    Raises:
        InputError: It is not known.
    """
    start = f"pip:megatron-bridge=={'.'.join(version.split('.')[:2])}."
    for core, bridge in PAIRS.items():
        if bridge.startswith(start):
            return core
    sentence = f"the Megatron-LM of Bridge {shown(version)} is not known; name it as well"
    raise InputError("--upstream", sentence)
