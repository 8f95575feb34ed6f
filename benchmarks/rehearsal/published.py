"""What `ringproof fit` says of configurations that others published for GPUs of 80 GB.

python -m benchmarks.rehearsal.published --upstream git:PATH@REF --commit SHA --json FILE
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from benchmarks.rehearsal.memory import refused
from benchmarks.rehearsal.options import parser_of
from ringproof.cache import default_cache
from ringproof.errors import InputError
from ringproof.launch.reading import Launch
from ringproof.rehearsal.fit.fitting import FitRequest, fit
from ringproof.rehearsal.fit.gpus import gpu
from ringproof.rehearsal.runs.outcome import UpstreamFails
from ringproof.tables import read_table

TABLE = "published.toml"
SPLIT = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def launch_of(table: dict[str, Any], entry: dict[str, Any]) -> Launch:
    """Return the launch of an entry of the table."""
    families = (table["families"][name] for name in entry["families"])
    script = entry.get("script", "pretrain_gpt.py")
    swiglu = "" if "--squared-relu" in entry["options"] else table["swiglu"]
    words = " ".join((table["common"], swiglu, *families, entry["options"])).split()
    return Launch(script, tuple(words), SPLIT, entry["ranks"] // 8, 8, TABLE)


def row_of(entry: dict[str, Any], request: FitRequest) -> dict[str, Any]:
    """Measure an entry."""
    began = time.monotonic()
    row = {name: entry[name] for name in ("ranks", "source", "outcome", "peak_gb") if name in entry}
    try:
        found = fit(request, lambda *_: None)
    except (InputError, UpstreamFails) as error:
        sys.stderr.write(f"{error}\n")
        return row | {"not_measured": refused(error)}
    row |= {
        "fits": found.fits,
        "peak": found.largest.peak,
        "rank": found.largest.rank,
        "margin": found.margin,
        "seconds": round(time.monotonic() - began, 1),
    }
    return row | (
        {"error": found.largest.peak / row["peak_gb"] / 1e9 - 1} if "peak_gb" in row else {}
    )


def main() -> None:
    """Measure each entry, and write the table after each."""
    parser = parser_of(__doc__, "build/fit-published")
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    parser.add_argument("--timeout", type=float, default=600.0, help="of one rank, in seconds")
    given = parser.parse_args()
    table = read_table("benchmarks.rehearsal", TABLE)
    record = json.loads(given.json.read_text()) if given.json.is_file() else {"rows": {}}
    record |= {"megatron": given.commit, "bridge": table["commit"], "gpu": "H100"}
    for entry in table["launch"]:
        name = entry["name"]
        if given.only and not any(part in name for part in given.only):
            continue
        request = FitRequest(
            launch_of(table, entry), given.upstream, given.te, given.out, default_cache(),
            gpu("h100"), timeout=given.timeout, offline=True,
        )  # fmt: skip
        record["rows"][name] = row_of(entry, request)
        sys.stderr.write(f"{name} {record['rows'][name]}\n")
        given.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
