"""The reader: any bytes, any length, bounded memory, right line numbers."""

from __future__ import annotations

import gzip
import io
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from checks.logs.groups_run import EXCHANGE, L0, L1, RING, census, layout, traffic
from ringproof.errors import InputError
from ringproof.logs.groups.expectation import Expectation
from ringproof.logs.groups.judge import read_groups
from ringproof.logs.lines import BLOCK_BYTES, PIECE_BYTES, OpenLog, Scan
from ringproof.logs.parsing import NEEDLES

LINES = [
    *census(layout(4, 4, (2, 2)), 4),
    *traffic(L0, 4, EXCHANGE, 7),
    *traffic(L1, 4, RING, 7),
]
NOISE = b"iteration 7 | lm loss: 1.0 | ringproof | grad norm: 0.5\n"


def judge(data: bytes, name: str = "-") -> tuple[str, str]:
    decision = read_groups([name], Expectation(), stdin=io.BytesIO(data)).decision
    return decision.verdict.value, decision.proof.value


@pytest.mark.parametrize(
    "dress",
    [
        lambda line: f"{line}\r\n",
        lambda line: f"\x1b[32m[rank3]:\x1b[0m {line}\x1b[0m\n",
        lambda line: f"{line}\n".replace("[", "\x1b[1m[\x1b[0m").replace("/", "\x1b[2m/\x1b[m"),
        lambda line: f"2026-11-20T09:00:00.000Z node-7 3: {line}  \n",
        lambda line: f" 10%|#    | 1/10\r 20%|##   | 2/10\r{line}\n",
        lambda line: f"\x1b]0;title\x07{line}\n",
        lambda line: f"[default0]:{line}",  # written without line feeds by several ranks
        lambda line: f"\ufeff{line}\n",
    ],
)  # fmt: skip
def test_dressed_lines(dress: Callable[[str], str]) -> None:
    dressed = "".join(dress(line) for line in LINES)
    assert judge(dressed.encode()) == ("hierarchical", "traffic")


def test_invalid_utf8_and_nuls_around_lines() -> None:
    data = b"".join(b"\xff\xfe\x00\xc3" + line.encode() + b"\n\x80\x00\n" for line in LINES)
    assert judge(data) == ("hierarchical", "traffic")


def test_line_numbers_over_block_borders(tmp_path: Path) -> None:
    filler = BLOCK_BYTES // len(NOISE)
    chunks, expected, number = [], [], 0
    for line in LINES[:6]:
        chunks += [NOISE * filler, f"{line}\n".encode()]
        number += filler + 1
        expected.append(number)
    log = OpenLog("-", "FILE", io.BytesIO(b"".join(chunks)))
    scan = Scan(log.blocks(), NEEDLES)
    assert [line.number for line in scan] == expected
    assert scan.lines == number
    assert log.bytes_read == sum(map(len, chunks))


@given(
    st.lists(st.sampled_from([b"x\n", b"ringproof census\r\n", b"\n", b"\r", b"y"]), max_size=30)
)
def test_counts_agree_with_python(parts: list[bytes]) -> None:
    data = b"".join(parts)
    scan = Scan(OpenLog("-", "FILE", io.BytesIO(data)).blocks(), NEEDLES)
    found = [line.number for line in scan]
    lines = data.split(b"\n")
    assert scan.lines == len(lines) - (lines[-1] == b"")
    held = [number for number, line in enumerate(lines, 1) if b"ringproof census" in line]
    assert sorted(set(found)) == held


def test_a_line_is_what_stands_between_carriage_returns() -> None:
    data = b"10%\r20% ringproof census\r30%\n40% ringproof census\r\n"
    scan = Scan(OpenLog("-", "FILE", io.BytesIO(data)).blocks(), NEEDLES)
    assert [line.text for line in scan] == ["20% ringproof census", "40% ringproof census"]


class Endless(io.RawIOBase):
    """A stream of one long line: ``total`` bytes that are never held together."""

    def __init__(self, piece: bytes, total: int) -> None:
        self._piece, self._left = piece, total

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override] # all that is asked for
        take = min(len(buffer), self._left)
        self._left -= take
        buffer[:take] = (self._piece * (take // len(self._piece) + 1))[:take]
        return take


@pytest.mark.parametrize(
    "piece", [b"\0", b"a b ", NOISE, b"\rcontext_parallel_size " + b"." * 50_000]
)
def test_memory_does_not_grow_with_the_log(piece: bytes) -> None:
    peaks = []
    for blocks in (4, 24):
        tracemalloc.start()
        stream = cast("BinaryIO", Endless(piece, blocks * BLOCK_BYTES))
        assert judge_stream(stream) == "unknown"
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + BLOCK_BYTES
    assert peaks[1] < 24 * BLOCK_BYTES


def judge_stream(stream: BinaryIO) -> str:
    return read_groups(["-"], Expectation(), stdin=stream).decision.verdict.value


def test_long_lines_are_cut_and_the_rest_is_read() -> None:
    long = b"z" * (3 * BLOCK_BYTES)
    data = b"".join(long + b"\n" + line.encode() + b"\n" for line in LINES[:2])
    rest = "\n".join(LINES[2:]).encode()
    assert judge(data + rest) == ("hierarchical", "traffic")
    report = read_groups(["-"], Expectation(), stdin=io.BytesIO(data + rest))
    assert all(len(evidence.text) <= 200 for evidence in report.facts.evidence)
    assert report.files[0]["lines"] == 2 + len(LINES)
    prefixed = b"p" * (PIECE_BYTES // 2) + LINES[0].encode()
    assert judge(prefixed) == ("flat", "groups-created")


def test_gzip_and_its_damage(tmp_path: Path) -> None:
    packed = tmp_path / "run.log.gz"
    packed.write_bytes(gzip.compress("\n".join(LINES).encode()))
    report = read_groups([str(packed)], Expectation())
    assert report.decision.verdict.value == "hierarchical"
    packed.write_bytes(gzip.compress(bytes(BLOCK_BYTES) + NOISE * 99999)[:-2000])
    damaged = read_groups([str(packed)], Expectation())
    assert any("damaged" in warning for warning in damaged.warnings)
    packed.write_bytes(b"plain text")  # whatever it is called
    assert read_groups([str(packed)], Expectation()).files[0]["bytes"] == 10
    packed.write_bytes(b"\x1f\x8b no method of gzip")
    with pytest.raises(InputError, match="not gzip"):
        read_groups([str(packed)], Expectation())


def test_ranks_in_separate_files_are_one_run(tmp_path: Path) -> None:
    paths = []
    for rank in range(4):
        path = tmp_path / f"rank{rank}.log"
        path.write_text("\n".join(line for line in LINES if f"rank={rank}/" in line))
        paths.append(str(path))
    together = read_groups(paths, Expectation())
    assert together.decision.verdict.value == "hierarchical"
    assert len(together.files) == 4
    assert together.findings == ()
    twice = read_groups([*paths, *paths], Expectation())
    assert [g.bytes_sent for g in twice.facts.groups] == [
        g.bytes_sent for g in together.facts.groups
    ]


SNIPPETS = [
    *(line.encode() for line in LINES[:3]),
    b"[ringproof census] ",
    b"[ringproof traffic] rank=0/4 group=",
    b"[I ProcessGroupNCCL.cpp:1] [PG ID 1 PG GUID 1(HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L0) Rank ",
    b"] [PG ",
    b"Running with config={'transformer_engine_version': '2', 'cp_comm_type': 'a2a+p2p'",
    b"  cp_comm_type ....... ['a2a+p2p']",
    b"using world size: 4, data-parallel size: 1, context-parallel size: 4, ",
    b"HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L1",
    b"\n", b"\r", b"\x1b[", b"\x1b]", b"\0", b"ranks=0-1 place=0/2", b"bytes=5",
]  # fmt: skip


def plain(data: bytes) -> bool:
    """Whether it is read as text: what begins like gzip and is none is refused."""
    return not data.startswith(b"\x1f\x8b")


def junk(snippets: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    parts = st.one_of(st.sampled_from(snippets), st.binary(max_size=9))
    return st.lists(parts, max_size=20).map(b"".join).filter(plain)


@given(st.binary(max_size=600).filter(plain))
@example(b"[ringproof census] rank=/ group= backend= ranks= place=/")
@example(b"[ringproof census] rank=0/9 group=a backend=b ranks=0-99999999999 place=0/1")
def test_junk_is_unknown(data: bytes) -> None:
    assert judge(data)[0] == "unknown"


@pytest.mark.slow
@settings(max_examples=150)
@given(junk(SNIPPETS), junk(SNIPPETS[3:]))
def test_mixed_junk_is_not_hierarchical(any_snippets: bytes, no_groups: bytes) -> None:
    assert judge(no_groups)[0] in ("unknown", "none", "flat")
    assert judge(any_snippets)[0]  # is read without an error


@pytest.mark.parametrize(
    "text",
    [
        "context_parallel_size .. x" + " " * 60_000 + "y",
        "context_parallel_size " + "." * 60_000,
        "I a.cpp:1] [PG " + "a" * 60_000,
        "[ringproof census] rank=0/4 group=a backend=b ranks=0 place=0/1" + " " * 60_000 + "x",
        "\x1b]" * 30_000 + "ringproof census",
    ],
)
@pytest.mark.timeout(60)  # an expression that backtracks takes minutes
def test_no_line_takes_long(text: str) -> None:
    assert judge("\n".join([text] * 20).encode())[0] == "unknown"
