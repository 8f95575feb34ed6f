"""``ringproof logs groups``: exit codes, JSON, text, and input that cannot be used."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from checks.logs.groups_run import (
    EXCHANGE,
    L0,
    L1,
    RING,
    argument,
    census,
    engine,
    layout,
    startup,
    traffic,
)
from ringproof.cli.logs import app

RUN = [
    startup(4, 4, "[2, 2]"),
    argument("cp_comm_type", "['a2a+p2p']"),
    engine("a2a+p2p"),
    *census(layout(4, 4, (2, 2)), 4),
    *traffic(L0, 4, EXCHANGE, 100),
    *traffic(L1, 4, RING, 50),
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    path.write_text("\n".join(RUN) + "\n")
    return path


def groups(*arguments: str, data: str | bytes | None = None) -> Any:
    return CliRunner().invoke(app, ["groups", *arguments], input=data)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--expect", "hierarchical"), 0),
        (("--expect", "hierarchical", "--hcp", "2,2", "--require-traffic"), 0),
        (("--hcp", "2,2"), 0),
        (("--expect", "flat"), 1),
        (("--expect", "none"), 1),
        (("--hcp", "2,4"), 1),
        (("--hcp", "4,2"), 1),
    ],
)
def test_exit_codes(log: Path, options: tuple[str, ...], code: int) -> None:
    result = groups(str(log), *options)
    assert result.exit_code == code, result.output
    assert result.output.startswith("verdict: hierarchical  proof: traffic")
    assert ("finding:" in result.output) == (code == 1)
    told = json.loads(groups(str(log), *options, "--json", "-").stdout)
    assert told["finding_codes"] == ["unexpected"] * code


def test_json_is_the_contract(log: Path) -> None:
    result = groups(str(log), "--expect", "hierarchical", "--json", "-")
    told = json.loads(result.stdout)
    assert told["version"] == 1
    assert (told["verdict"], told["proof"]) == ("hierarchical", "traffic")
    assert (told["expected"], told["as_expected"]) == ("hierarchical", True)
    assert told["level_sizes"] == [2, 2]
    level = next(group for group in told["groups"] if group["name"] == L0)
    assert level == {
        "name": L0,
        "ranks": [0, 1],
        "size": 2,
        "backend": "gloo",
        "evidence": "traffic",
        "bytes": 200,
        "operations": {"all_to_all": 16},
    }
    assert told["configuration"] == {
        "world_size": 4,
        "data_parallel_size": 1,
        "context_parallel_size": 4,
        "hierarchical_context_parallel_sizes": [2, 2],
        "cp_comm_type": ["a2a+p2p"],
    }
    ran = {"context_parallel": True, "cp_comm_type": "a2a+p2p", "cp_size": 4, "lines": 1}
    assert told["engine"] == [ran]
    assert told["files"] == [{"path": str(log), "bytes": log.stat().st_size, "lines": len(RUN)}]
    assert (told["findings"], told["finding_codes"], told["warnings"]) == ([], [], [])
    for evidence in told["evidence"]:
        whole = " ".join(RUN[evidence["line"] - 1].split())
        assert whole.startswith(evidence["text"].rstrip("…"))
    assert {evidence["shows"] for evidence in told["evidence"]} == {
        "created",
        "traffic",
        "configuration",
        "configuration run",
    }


def test_evidence_is_capped(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    layers = argument("cp_comm_type", str(["a2a+p2p"] * 64))
    path.write_text("\n".join([layers, *RUN * 500]))
    told = json.loads(groups(str(path), "--json", "-").stdout)
    per_line = [(e["shows"], re.findall(r"group=(\S+)", e["text"])[:1]) for e in told["evidence"]]
    assert max(per_line.count(key) for key in per_line) <= 3
    assert max(len(evidence["text"]) for evidence in told["evidence"]) == 200
    assert len(groups(str(path)).output.splitlines()) < 30


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "odd.log"
    path.write_bytes(b"\x1b[2J\x07\x00evil\xe2\x80\xae " + census(layout(4, 4), 4)[0].encode())
    output = groups(str(path)).output
    assert "flat" in output
    assert not set(output) & {"\x1b", "\x07", "\x00", "\u202e"}


@pytest.mark.parametrize("content", [b"", b"\0" * 70_000, os.urandom(70_000)])
def test_empty_and_binary_are_unknown(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(content)
    silent = groups(str(path))
    assert silent.exit_code == 0
    assert silent.output.startswith("verdict: unknown")
    assert ("is empty" if not content else "looks binary") in silent.output
    expected = groups(str(path), "--expect", "flat")
    assert expected.exit_code == 1
    assert "TORCH_CPP_LOG_LEVEL=INFO" in expected.output
    assert "census" in expected.output
