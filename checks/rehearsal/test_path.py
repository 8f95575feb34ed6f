"""The path that attention calls show, beside the path that a command line asks for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringproof.rehearsal.protocol.reports import AttentionCall, GroupTraffic, RankReport
from ringproof.rehearsal.verdict.path import PathTaken, executed, named, read_path, read_request


def call(ranks: tuple[tuple[int, ...], ...], kind: str = "p2p", **changes: object) -> AttentionCall:
    sizes = tuple(len(level) for level in ranks)
    return replace(AttentionCall(1, "train", 1, 0, kind, sizes, ranks, "thd", 64), **changes)


def report(rank: int, *calls: AttentionCall, traffic: tuple[GroupTraffic, ...] = ()) -> RankReport:
    return RankReport(rank, None, attention=calls, traffic=traffic)


def taken(command: str, *reports: RankReport, finished: bool = True) -> PathTaken:
    return read_path(command.split(), reports, finished=finished)


PAIR = ((0, 1),)


def test_a_static_launch_takes_its_path() -> None:
    path = taken("--context-parallel-size 2", report(0, call(PAIR)), report(1, call(PAIR)))
    assert path.as_requested
    assert [str(count) for count in path.taken] == ["p2p 2"]
    assert path.cp_sizes == {2: 1}
    assert path.microbatches[0].shares[0].tokens == (64, 64)


@pytest.mark.parametrize(
    ("command", "ran", "said"),
    [
        ("--context-parallel-size 2 --cp-comm-type a2a", call(PAIR), "asks for a2a 2"),
        ("--context-parallel-size 4", call(PAIR), "asks for p2p 4"),
        ("--context-parallel-size 2", call(((0,),), "none"), "ran as one rank"),
        ("--context-parallel-size 4 --cp-comm-type a2a+p2p "
         "--hierarchical-context-parallel-sizes 2 2",
         call(((0, 1, 2, 3),), "a2a+p2p"), "asks for a2a+p2p 2 x 2"),
        ("--context-parallel-size 2 --cp-comm-type a2a+p2p "
         "--hierarchical-context-parallel-sizes 1 2",
         call(((0,), (0, 1)), "a2a+p2p"), "Transformer Engine runs as p2p"),
        ("--context-parallel-size 2", call(((0,),), "none", without_cp=True), "ran as one rank"),
        ("--dynamic-context-parallel --cp-comm-type a2a", call(PAIR), "asks for a2a"),
        ("--hybrid-context-parallel", call(((0,),), "none"), "ran on one rank"),
        ("", call(PAIR), "asks for no context parallelism"),
    ],
)  # fmt: skip
def test_another_path_than_asked_is_named(command: str, ran: AttentionCall, said: str) -> None:
    path = taken(command, report(0, ran))
    assert not path.as_requested
    assert said in path.departures[0]


def test_a_part_that_upstream_sets_to_cp_1_is_not_judged_and_said() -> None:
    alone = call(((0,),), "none", without_cp=True)
    path = taken("--context-parallel-size 2", report(0, alone, call(PAIR)), report(1, call(PAIR)))
    assert path.as_requested
    assert [str(count) for count in path.taken] == ["p2p 2"]
    assert path.cp_sizes == {2: 1} and path.tokens == {0: 64, 1: 64}
    (remark,) = path.remarks
    assert remark.startswith("1 attention call of a part of the model")


def test_a_type_for_each_layer_is_compared_layer_by_layer() -> None:
    command = "--context-parallel-size 2 --cp-comm-type p2p a2a"
    first, second = call(PAIR), call(PAIR, "a2a", layer=2)
    assert taken(command, report(0, first, second)).as_requested
    swapped = call(PAIR, "a2a"), call(PAIR, layer=2)
    assert len(taken(command, report(0, *swapped)).departures) == 2


def test_no_attention_call_is_a_departure_only_of_a_finished_run() -> None:
    command = "--context-parallel-size 2"
    assert "never called" in taken(command, report(0)).departures[0]
    assert taken(command, report(0), finished=False).as_requested
    assert taken("", report(0)).as_requested


def test_training_comes_before_evaluation() -> None:
    command = "--context-parallel-size 2 --cp-comm-type a2a"
    path = taken(command, report(0, call(PAIR, phase="evaluate"), call(PAIR)))
    assert ["training" in text for text in path.departures] == [True, False]


def test_levels_join_all_ranks_of_a_microbatch() -> None:
    levels = {0: ((0, 1), (0, 2)), 1: ((0, 1), (1, 3)), 2: ((2, 3), (0, 2)), 3: ((2, 3), (1, 3))}
    path = taken("", *(report(rank, call(ranks, "a2a+p2p")) for rank, ranks in levels.items()))
    assert [share.ranks for share in path.microbatches[0].shares] == [(0, 1, 2, 3)]
    assert path.cp_sizes == {4: 1}


def test_sizes_that_change_are_counted_by_microbatch() -> None:
    single = call(((0,),), "none", microbatch=1)
    other = call(((1,),), "none", microbatch=1)
    path = taken(
        "--dynamic-context-parallel",
        report(0, call(PAIR), single, call(PAIR, layer=2)),
        report(1, call(PAIR), other, call(PAIR, layer=2)),
    )
    assert path.as_requested
    assert path.cp_sizes == {1: 2, 2: 1}
    assert path.remarks == ()
    same = taken("--dynamic-context-parallel", report(0, call(PAIR)), report(1, call(PAIR)))
    assert same.as_requested and "no change of sizes" in same.remarks[0]


def test_idle_ranks_are_found() -> None:
    busy = [report(rank, call(((rank,),), "none")) for rank in range(3)]
    little = report(3, call(((3,),), "none", tokens=8))
    path = taken("", *busy, little, report(4))
    assert path.idle_ranks == (3, 4)
    assert path.tokens == {0: 64, 1: 64, 2: 64, 3: 8, 4: 0}
    assert "8 tokens" in path.remarks[0] and "no attention call" in path.remarks[1]
    assert taken("", *busy).idle_ranks == ()


def test_traffic_is_summed_over_ranks() -> None:
    traffic = (
        GroupTraffic("CP", (0, 1), "isend", 2, 100),
        GroupTraffic("CP", (0, 1), "irecv", 2, 0),
        GroupTraffic("TP", (0,), "broadcast", 1, 7),
    )
    path = taken("", report(0, traffic=traffic), report(1, traffic=traffic[:2]))
    assert [(group.group, group.bytes) for group in path.groups] == [("CP", 200), ("TP", 7)]
    assert path.groups[0].operations == {"irecv": 4, "isend": 4}


def test_what_a_launch_asks_for_in_words() -> None:
    assert str(read_request([])) == "no context parallelism"
    assert str(read_request(["--context-parallel-size", "4"])) == "p2p over 4 ranks"
    assert str(read_request(["--dynamic-context-parallel"])) == "Dynamic CP with p2p"
    levels = ("--hierarchical-context-parallel-sizes", "\u00b2", "9" * 5000, "2")
    assert read_request(levels).levels == (2,)
    for line, feature in (
        ("", "none"),
        ("--context-parallel-size 2", "p2p"),
        ("--context-parallel-size 2 --cp-comm-type all_gather", "all_gather"),
        ("--context-parallel-size 4 --cp-comm-type a2a+p2p", "a2a+p2p"),
        ("--context-parallel-size 2 --dynamic-context-parallel", "dynamic-cp"),
        ("--hybrid-context-parallel", "dynamic-cp"),
    ):
        assert read_request(line.split()).feature == feature
    assert named("a2a+p2p", (2, 4)) == "a2a+p2p 2 x 4"
    assert executed("a2a+p2p", (2, 1)) == "a2a" and executed("a2a+p2p", (2, 2)) == "a2a+p2p"


@pytest.mark.parametrize(
    ("ranks", "options", "unused"),
    [
        (2, "", (1,)),
        (2, "--min-dynamic-context-parallel-size 2", ()),
        (6, "", (1, 6)),  # no groups of 4: upstream makes powers below log2 of the domain
        (8, "", (1, 4, 8)),
        (8, "--tensor-model-parallel-size 4", (1,)),
    ],
)
def test_cp_sizes_that_no_microbatch_used_are_named(
    ranks: int, options: str, unused: tuple[int, ...]
) -> None:
    reports = [report(0, call(PAIR)), report(1, call(PAIR))]
    reports += [report(rank) for rank in range(2, ranks)]
    words = ("--dynamic-context-parallel", *options.split())
    assert read_path(words, reports).unused_sizes == unused
    assert read_path(words[1:], reports).unused_sizes == ()
