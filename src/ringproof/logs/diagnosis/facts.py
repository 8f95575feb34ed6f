"""What a run used, by its logs: Dynamic CP, CUDA graphs, context parallelism, and some more.

An entry of the index may need such a fact: a NaN has other causes where no graph was captured. A
fact that no line shows counts as absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from types import MappingProxyType

from ringproof.logs.parsing import RunSetup

DYNAMIC, GRAPHS, CP = "dynamic-cp", "graphs", "cp"
EP_OVERLAP, FUSED_THD = "ep-overlap", "fused-thd-2.6"
BUSY = "busy"
FACTS = (DYNAMIC, GRAPHS, CP, EP_OVERLAP, FUSED_THD)
_LITERALS = MappingProxyType(
    {
        DYNAMIC: (b"context_parallel", b"context-parallel"),
        GRAPHS: (b"cuda_graph", b"cuda-graph", b"CUDA Graph"),
        CP: (b"context_parallel", b"context-parallel"),
        EP_OVERLAP: (b"overlap_moe_expert", b"overlap-moe-expert"),
        FUSED_THD: (b"FusedAttention",),
    }
)
_ASKED_WITH = MappingProxyType({EP_OVERLAP: GRAPHS})
"""A fact that no entry needs without another one, which saves a search."""
_ON = r"(?: \.{2,} |[\"']?\s*[=:]\s*[\"']?)"
_SHOWN = MappingProxyType(
    {
        DYNAMIC: re.compile(
            rb"(?:dynamic|hybrid)_context_parallel" + _ON.encode() + rb"[Tt]rue"
            rb"|--(?:dynamic|hybrid)-context-parallel\b"
        ),
        GRAPHS: re.compile(
            rb"cuda_graph_impl" + _ON.encode() + rb"(?!none|None)\w"
            rb"|--cuda-graph-impl[ =](?!none)\w|(?:enable|external)[_-]cuda[_-]graph(?:"
            + _ON.encode()
            + rb"[Tt]rue|\s(?!\.))|CUDA Graphs? (?:capture|warmup)|\(e\.g\., CUDA Graphs\)"
        ),
        EP_OVERLAP: re.compile(
            rb"overlap_moe_expert_parallel_comm" + _ON.encode() + rb"[Tt]rue"
            rb"|--overlap-moe-expert-parallel-comm\b"
        ),
        FUSED_THD: re.compile(
            rb"'transformer_engine_version': '(?:1\.|2\.[0-6]\b)[^\n]*'qkv_layout': 'thd_[^\n]*\n"
            rb"(?:[^\n]*\n){0,50}?[^\n]*Selected backend = FusedAttention"
        ),
        CP: re.compile(rb"context[_-]parallel[_-]size(?:" + _ON.encode() + rb"| )(?:[2-9]|1\d)"),
    }
)
_FUNCTIONS = MappingProxyType(
    {
        GRAPHS: re.compile(
            r"make_graphed_callables|create_cudagraphs|capture_begin|cuda_?graph|^replay$", re.I
        ),
        DYNAMIC: re.compile(
            r"next_hdp_group|(?:hybrid|dynamic)_(?:cp|context|data_context)|dcp_gpus"
        ),
        CP: re.compile(r"_cp\b|cp_rank|context_parallel|_for_cp|AttnFuncWithCP", re.I),
    }
)
_MESSAGES = MappingProxyType(
    {
        GRAPHS: re.compile(r"private pools \(e\.g\., CUDA Graphs\)|captur", re.I),
    }
)
_DYNAMIC_GROUP = re.compile(r"(?:DYNAMIC|HYBRID)_DP_CP_GROUP")
_BUSY = re.compile(
    rb"(Packing|Map|Filter|Tokeniz\w+|Grouping|Generating|Running tokenizer|Preprocess\w*|"
    rb"Loading checkpoint shards|Converting|Saving)\b[^|\r\n]{0,80}: +(\d{1,2})%\|"
)


class ShownFacts:
    """Facts of a run, from any of its lines.

    Attributes:
        shown: Those that are known to hold.
        busy: What a progress bar that did not reach its end shows; empty for none.
    """

    def __init__(self) -> None:
        self.shown: set[str] = set()
        self.busy = ""

    def noted(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the blocks of a log, and take the facts that they show."""
        for block in blocks:
            present = lru_cache(block.__contains__)
            for fact in FACTS:
                if fact in self.shown or _ASKED_WITH.get(fact, fact) not in {fact, *self.shown}:
                    continue
                if any(map(present, _LITERALS[fact])):
                    self.shown |= {fact} if _SHOWN[fact].search(block) else set()
            if b"%|" in block:
                bars = list(_BUSY.finditer(block))
                self.busy = (
                    f"while {bars[-1][1].decode()} at {bars[-1][2].decode()}%" if bars else ""
                )
            yield block

    def note_error(self, message: str, functions: Sequence[str]) -> None:
        """Take the facts that an error shows."""
        self.shown |= {
            fact
            for fact, pattern in _FUNCTIONS.items()
            if any(pattern.search(function) for function in functions)
        }
        self.shown |= {fact for fact, pattern in _MESSAGES.items() if pattern.search(message)}

    def note_group(self, name: str) -> None:
        """Take the facts that the description of a group shows in which a rank waits."""
        self.shown |= {DYNAMIC} if _DYNAMIC_GROUP.search(name) else set()
        self.shown |= {CP} if "CONTEXT_PARALLEL_GROUP" in name else set()

    def note_setup(self, setup: RunSetup) -> None:
        """Take the facts that the configuration and the lines of attention show."""
        if setup.dynamic:
            self.shown.add(DYNAMIC)
        if (setup.configuration.context_parallel_size or 0) > 1:
            self.shown.add(CP)
        if any(line.context_parallel for line, _ in setup.engine):
            self.shown.add(CP)

    def allow(self, needs: Iterable[str]) -> bool:
        """Whether the run is known to be what an entry needs; ``!cp`` needs the opposite."""
        shown = {*self.shown, BUSY} if self.busy else self.shown
        return all(
            need[1:] not in shown if need.startswith("!") else need in shown for need in needs
        )
