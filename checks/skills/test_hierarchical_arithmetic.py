"""The integer arithmetic of the hierarchical CP skill: bytes sent, placement, ring neighbours.

Bytes are counted twice: by the closed forms of `references/choosing-comm-type.md` and by listing
every message of every rank. The worked table of that file must show the result.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

import pytest

from checks.skills.shared import REPOSITORY
from ringproof.reference.topology.hierarchy import level_groups
from ringproof.reference.topology.layout import RankLayout

REFERENCE = "skills/hierarchical-context-parallel/references/choosing-comm-type.md"
MIB = 1 << 20


@dataclass(frozen=True)
class Shard:
    """What one rank holds of one layer's attention inputs and output, in bytes."""

    q: int
    kv: int
    out: int

    @property
    def exchanged(self) -> int:
        return self.q + self.kv + self.out


WORKED = Shard(q=64 * MIB, kv=32 * MIB, out=64 * MIB)
WORKED_RANKS = 16
WORKED_NODE = 8


def test_worked_shard_is_the_model_of_the_text():
    tokens, heads, kv_heads, head_dim, item_bytes = 131072 // WORKED_RANKS, 32, 8, 128, 2
    kv = 2 * tokens * kv_heads * head_dim * item_bytes
    q = tokens * heads * head_dim * item_bytes
    assert Shard(q=q, kv=kv, out=q) == WORKED


def all_to_all(ranks, sent_bytes):
    for source, target in itertools.permutations(ranks, 2):
        yield source, target, sent_bytes // len(ranks)


def ring(ranks, sent_bytes):
    for _ in range(len(ranks) - 1):
        for place, source in enumerate(ranks):
            yield source, ranks[(place + 1) % len(ranks)], sent_bytes


def forward_messages(comm_type, shard, sizes):
    """Every (source, target, bytes) of one forward pass; exchanged tensors keep their size."""
    world = range(sizes[0] * sizes[1])
    if comm_type == "p2p":
        yield from ring(tuple(world), shard.kv)
    elif comm_type == "a2a":
        yield from all_to_all(tuple(world), shard.exchanged)
    else:
        for group in level_groups(world, sizes, level=0):
            yield from all_to_all(group, shard.exchanged)
        for group in level_groups(world, sizes, level=1):
            yield from ring(group, shard.kv)


def sent_per_rank(messages):
    sent = Counter()
    for source, _, count in messages:
        sent[source] += count
    return sent


def forward_bytes(comm_type, shard, a2a, p2p):
    """The closed forms of the text, per rank."""
    ranks = a2a * p2p
    if comm_type == "p2p":
        return (ranks - 1) * shard.kv
    if comm_type == "a2a":
        return (ranks - 1) * shard.exchanged // ranks
    return (a2a - 1) * shard.exchanged // a2a + (p2p - 1) * shard.kv


@pytest.mark.parametrize("comm_type", ["p2p", "a2a", "a2a+p2p"])
@pytest.mark.parametrize("sizes", [(1, 4), (2, 2), (4, 2), (2, 8), (3, 5), (8, 1)])
def test_closed_forms_count_every_message(comm_type, sizes):
    ranks = sizes[0] * sizes[1]
    shard = Shard(q=1440 * ranks, kv=480 * ranks, out=960 * ranks)
    sent = sent_per_rank(forward_messages(comm_type, shard, sizes))
    assert set(sent.values()) == {forward_bytes(comm_type, shard, *sizes)}
    assert len(sent) == ranks, "all ranks send alike"


def busiest_across_nodes(messages):
    """The most that one rank sends to another node: what its network card has to carry."""
    crossing = (m for m in messages if m[0] // WORKED_NODE != m[1] // WORKED_NODE)
    return max(sent_per_rank(crossing).values(), default=0)


def table_row(comm_type, sizes):
    messages = tuple(forward_messages(comm_type, WORKED, sizes))
    a2a = (sizes[0] - 1) * WORKED.exchanged // sizes[0] if comm_type == "a2a+p2p" else 0
    total = forward_bytes(comm_type, WORKED, *sizes)
    counts = (a2a, total - a2a, total, busiest_across_nodes(messages))
    name = f"[{sizes[0]}, {sizes[1]}]" if comm_type == "a2a+p2p" else "16"
    return f"| `{comm_type}` | {name} | " + " | ".join(str(c // MIB) for c in counts) + " |"


@pytest.mark.parametrize(
    ("comm_type", "sizes"),
    [("p2p", (1, 16)), ("a2a+p2p", (2, 8)), ("a2a+p2p", (4, 4)), ("a2a+p2p", (8, 2))],
)
def test_worked_table_of_the_reference(comm_type, sizes, record_property):
    row = table_row(comm_type, sizes)
    record_property("row", row)
    text = (REPOSITORY / REFERENCE).read_text(encoding="utf-8")
    assert text.splitlines().count(row) == 1, row


def level_zero_nodes(layout, sizes, node_size):
    """How many nodes each level-0 group of a layout touches."""
    for members in layout.groups(("cp",)):
        for group in level_groups(members, sizes, level=0):
            yield len({rank // node_size for rank in group})


@pytest.mark.parametrize("tp", [1, 2, 3, 4])
@pytest.mark.parametrize("sizes", [(2, 4), (4, 2), (3, 4), (8, 2)])
def test_level_zero_stays_in_a_node_when_its_span_divides_it(tp, sizes):
    node_size, world = 8, 16 * 9
    cp = sizes[0] * sizes[1]
    layout = RankLayout(tp=tp, cp=cp, dp=world // cp, pp=1)
    touched = set(level_zero_nodes(layout, sizes, node_size))
    assert (touched == {1}) == (node_size % (tp * sizes[0]) == 0)


def test_another_rank_order_breaks_the_placement():
    default = RankLayout(tp=1, cp=4, dp=4)
    dp_inside = RankLayout(tp=1, cp=4, dp=4, order="tp-dp-cp-pp")
    assert set(level_zero_nodes(default, (2, 2), 4)) == {1}
    assert set(level_zero_nodes(dp_inside, (2, 2), 4)) == {2}


def test_reversed_sizes_are_another_valid_layout():
    forward = [tuple(level_groups(range(8), (4, 2), level=level)) for level in (0, 1)]
    backward = [tuple(level_groups(range(8), (2, 4), level=level)) for level in (0, 1)]
    assert len(forward[0][0]) == 4
    assert len(backward[0][0]) == 2
    assert sorted(sum(forward[0], ())) == sorted(sum(backward[0], ()))


def te_successor(cp_global_ranks, a2a_size, rank):
    """Transformer Engine 2.20.2's ring neighbour, from `AttnFuncWithCPAndKVP2P.forward`."""
    place = cp_global_ranks.index(rank)
    rank_a2a, rank_p2p = place % a2a_size, place // a2a_size
    p2p_size = len(cp_global_ranks) // a2a_size
    return cp_global_ranks[(rank_p2p + 1) % p2p_size * a2a_size + rank_a2a]


@pytest.mark.parametrize("sizes", [(2, 2), (2, 4), (4, 2), (3, 4)])
def test_ring_neighbours_are_the_members_of_level_one(sizes):
    """A derivation from the rule as `te_successor` restates it, for more sizes than are run."""
    members = RankLayout(tp=2, cp=sizes[0] * sizes[1], dp=2).group(("cp",), 1)
    for group in level_groups(members, sizes, level=1):
        found = [te_successor(members, sizes[0], rank) for rank in group]
        assert found == [*group[1:], group[0]]
    wrong = next(level_groups(members, sizes, level=0))
    assert te_successor(members, sizes[0], wrong[0]) not in wrong
