"""Ranks on two hosts with a real rendezvous, and what the link between the hosts carries.

The hosts are network namespaces, so the counters of the link see every byte between them.
Hierarchical CP has its all-to-all inside a host, and its ring across.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringproof.rehearsal.fixtures import SessionServers
from smoke.hosts.attention import COMM_TYPES
from smoke.hosts.network import INTERFACE, PORT, Host, run_on, sent_bytes, two_hosts
from smoke.test_smoke_command import CARDS, UPSTREAMS, load_card, named, smoke

LAUNCHER = (sys.executable, "-m", "torch.distributed.run")
RING, EXCHANGE = (f"HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L{level}" for level in (1, 0))
FLAT = "CONTEXT_PARALLEL_GROUP"
OVERHEAD = 0.02
"""Share of a step's bytes that headers, acknowledgements and barriers may add on the link."""
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"}

Hosts = tuple[Host, Host]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    try:
        with two_hosts() as made:
            yield made
    except PermissionError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def found(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each host reports of attention on two ranks each."""
    words = [*LAUNCHER, "--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    words += ["--rdzv-endpoint", f"{hosts[0].address}:{PORT}", "--rdzv-id", "attention"]
    words += ["-m", "smoke.hosts.attention"]
    commands = {host: host.command(words, LAUNCHER) for host in hosts}
    folder = tmp_path_factory.mktemp("hosts")
    printed = run_on(commands, environment=ENVIRONMENT, folder=folder, seconds=240)
    return [
        json.loads(next(line for line in text.splitlines() if line.startswith("{")))
        for text in printed.values()
    ]


def sent(report: dict[str, Any], kind: str, group: str) -> list[int]:
    """Bytes that each rank sent on a group."""
    return [rank.get(group, 0) for rank in report["types"][kind]["sent"]]


def carried(report: dict[str, Any], kind: str) -> int:
    return int(report["types"][kind]["carried"])


def test_all_types_compute_the_same_on_two_hosts(found) -> None:
    assert len(found) == 2
    assert all(report["error"] < 1e-5 for report in found)


def test_the_link_carries_the_ring_and_nothing_of_the_all_to_all(found, record_property) -> None:
    for report in found:
        ring = sum(sent(report, "a2a+p2p", RING)) // 2  # that of one host
        exchange = sum(sent(report, "a2a+p2p", EXCHANGE)) // 2
        across = carried(report, "a2a+p2p")
        record_property("ring", ring)
        record_property("exchange", exchange)
        record_property("carried", across)
        assert ring <= across <= ring * (1 + OVERHEAD)
        assert exchange > ring * OVERHEAD, "it would be seen on the link"


def test_other_types_carry_more(found, record_property) -> None:
    """The pure all-to-all sends two of three shares across, and the flat ring every step."""
    for report in found:
        hierarchy = carried(report, "a2a+p2p")
        for kind, share in (("a2a", 2 * 2 / 3), ("p2p", 1)):
            expected = sent(report, kind, FLAT)[0] * share
            across = carried(report, kind)
            record_property(f"carried by {kind}", across)
            assert expected <= across <= expected * (1 + OVERHEAD)
            assert across > hierarchy * (1 + OVERHEAD)
    assert set(found[0]["types"]) == set(COMM_TYPES)


@pytest.mark.timeout(900)
def test_upstream_s_program_trains_on_two_hosts(
    hosts: Hosts, stage: SessionServers, tmp_path: Path, record_property
) -> None:
    """By the printed commands; the hierarchy sends less across than the flat ring."""
    skill, megatron, _ = UPSTREAMS["hcp"]
    upstream = stage.upstream(named(load_card(CARDS / skill / "card.yaml"), megatron))
    given = ("--upstream", str(upstream.megatron), "--te", str(upstream.engine), "--feature", "hcp")
    words = (*given, "--device", "cpu", "--steps", "3", "--ranks-per-node", "2", "--nodes", "2")
    place = ("--out", str(tmp_path / "logs"))
    endpoint = f"{hosts[0].address}:{PORT}"
    printed = smoke(*words, *place, "--dry-run", "--rendezvous", endpoint).stdout.splitlines()
    across = []
    for line in printed:
        split = shlex.split(line)
        start = split.index(sys.executable)
        variables = dict(word.split("=", 1) for word in split[:start]) | ENVIRONMENT
        commands = {host: host.command(split[start:], LAUNCHER) for host in hosts}
        before = sent_bytes(hosts[0])
        run_on(commands, environment=variables, folder=tmp_path, seconds=400)
        across.append(sent_bytes(hosts[0]) - before)
    done = smoke(*words, *place, "--judge")
    assert done.exit_code == 0, done.output[-3000:]
    on, off = across
    record_property("carried with the hierarchy", on)
    record_property("carried with the flat ring", off)
    assert on < off
