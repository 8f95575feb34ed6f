"""The fingerprint by which code scanning knows a line again after it has moved.

The algorithm is that of github/codeql-action (``src/fingerprints.ts``), so that what its upload
step computes agrees with what a report says: a polynomial hash, base 37, modulo 2**64, of the 100
UTF-16 units that follow a line's start when blanks and tabs are left out and line ends are LF.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping

WINDOW = 100
_BASE = 37
_MASK = 2**64 - 1
_END_OF_FILE = 0xFFFF


def line_fingerprints(text: str) -> Mapping[int, str]:
    """The fingerprint of every line by its 1-based number: ``HASH:n`` for the n-th such hash."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").replace(" ", "").replace("\t", "")
    data = lines.encode("utf-16-le", "surrogatepass")
    units = [*struct.unpack(f"<{len(data) // 2}H", data), _END_OF_FILE]
    starts = [0, *(index + 1 for index, unit in enumerate(units) if unit == ord("\n"))]
    units += [0] * WINDOW
    seen: Counter[str] = Counter()
    found: dict[int, str] = {}
    for number, start in enumerate(starts, 1):
        value = 0
        for unit in units[start : start + WINDOW]:
            value = (value * _BASE + unit) & _MASK
        name = f"{value:x}"
        seen[name] += 1
        found[number] = f"{name}:{seen[name]}"
    return found
