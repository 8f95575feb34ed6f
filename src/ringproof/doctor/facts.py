"""What follows from settings on a line of upstream: sizes, and which features are on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from dataclasses import field as dataclass_field
from types import MappingProxyType

from packaging.version import Version

from ringproof.doctor.settings import Settings

V1, V2 = "dynamic-v1", "dynamic-v2"
OLD = ("hybrid-0.16", "hybrid-broken", "main-packing")
NEW = (V1, V2)
"""Lines of Megatron-LM on which Dynamic CP has its first name, and its present one."""


class _Number:
    """A property that is the value of a setting as a whole number."""

    def __init__(self, name: str, default: int = 0) -> None:
        self._name, self._default = name, default

    def __get__(self, facts: Facts, _: object) -> int:
        return facts.number(self._name, self._default)


class _Switch:
    """A property that says whether one of these switches is on."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __get__(self, facts: Facts, _: object) -> bool:
        return any(map(facts.on, self._names))


@dataclass(frozen=True)
class Facts(Settings):
    """Settings on one line of upstream.

    Args:
        lines: Ids of the lines of the skills that the code is on.
        options: Options that the parser of the code knows; empty if that is not known.
        versions: Versions of the products, by repository.
    """

    lines: frozenset[str] = frozenset()
    options: frozenset[str] = frozenset()
    versions: Mapping[str, str] = dataclass_field(default_factory=dict)

    def before(self, repo: str, version: str) -> bool:
        """Whether the code is older than a version, or may be: its own version is not known."""
        known = self.versions.get(repo, "")
        return not known or Version(known) < Version(version)

    def since(self, repo: str, version: str) -> bool:
        """Whether the code has a version or a later one, or may have: it is not known."""
        known = self.versions.get(repo, "")
        return not known or Version(known) >= Version(version)

    def at(self, *lines: str) -> bool:
        """Whether the code is on one of these lines."""
        return not self.lines.isdisjoint(lines)

    def has(self, *names: str) -> bool:
        """Whether one of these settings is there, with or without a value."""
        return not self.values.keys().isdisjoint(names)

    @property
    def megatron(self) -> bool:
        """Whether one of Megatron-LM's own training scripts reads the settings."""
        return self.program == "megatron"

    # -- sizes ----------------------------------------------------------------------------------

    tp = _Number("tensor_model_parallel_size", 1)
    pp = _Number("pipeline_model_parallel_size", 1)
    cp = _Number("context_parallel_size", 1)
    length = _Number("seq_length")
    heads = _Number("num_attention_heads")
    experts = _Number("num_experts")

    @property
    def model_size(self) -> int:
        """Ranks that hold one copy of the model."""
        return max(self.tp * self.pp * self.cp, 1)

    @property
    def expert_size(self) -> int:
        """Ranks that hold one copy of the experts; CP has no part in them."""
        split = self.number("expert_tensor_parallel_size", self.tp)
        return max(split * self.number("expert_model_parallel_size", 1) * self.pp, 1)

    @property
    def dp(self) -> int | None:
        """Data-parallel size; ``None`` if the world size is unknown or not divisible."""
        if self.ranks is None or self.ranks % self.model_size:
            return None
        return self.ranks // self.model_size

    @property
    def domain(self) -> int | None:
        """Ranks among which Dynamic CP chooses: DP times CP."""
        return None if self.dp is None else self.dp * self.cp

    @property
    def key_value_heads(self) -> int:
        """Key-value heads; 0 if not known."""
        if not self.megatron:
            return self.number("num_query_groups", self.heads)
        grouped = self.on("group_query_attention")
        return self.number("num_query_groups", 1) if grouped else self.heads

    @property
    def split(self) -> int:
        """Ranks between which sequence parallelism divides the tokens of a rank."""
        return self.tp if self.on("sequence_parallel") else 1

    @property
    def virtual(self) -> bool:
        """Whether there are virtual pipeline stages."""
        names = (
            "num_layers_per_virtual_pipeline_stage",
            "num_virtual_stages_per_pipeline_rank",
            "virtual_pipeline_model_parallel_size",
        )
        return any(map(self.given, names))

    # -- hierarchical CP ------------------------------------------------------------------------

    @property
    def types(self) -> tuple[str, ...]:
        """Communication types of CP, as many as are given."""
        return tuple(re.sub(r"[],\['\"]", " ", self.text("cp_comm_type", "p2p")).split())

    @property
    def levels(self) -> tuple[int, ...] | None:
        """Sizes of the levels of hierarchical CP."""
        return self.numbers("hierarchical_context_parallel_sizes")

    @property
    def two_levels(self) -> tuple[int, ...]:
        """The all-to-all's size and the ring's under ``a2a+p2p``; empty if there are not two."""
        levels = self.levels or ()
        return levels if self.hierarchical and len(levels) == 2 else ()

    @property
    def hierarchical(self) -> bool:
        """Whether some layer runs ``a2a+p2p``."""
        return "a2a+p2p" in self.types

    # -- Dynamic CP -----------------------------------------------------------------------------

    old_name = _Switch("hybrid_context_parallel")
    new_name = _Switch("dynamic_context_parallel")
    packed_data = _Switch("sft", "use_varlen_dataset")
    smallest = _Number("min_dynamic_context_parallel_size", 1)

    @property
    def dynamic(self) -> bool:
        """Whether Dynamic CP is asked for by a name that this line has."""
        only_old = self.at(*OLD) and not self.at(*NEW)
        return self.old_name or (self.new_name and not only_old)

    @property
    def checked_as_dynamic(self) -> bool:
        """Whether the argument checks of this line see Dynamic CP."""
        if self.at(*NEW):
            return self.new_name
        return self.old_name and self.at(*OLD)

    @property
    def scheduler(self) -> str:
        """Scheduler of packing; empty if there is none."""
        given = self.text("sequence_packing_scheduler")
        if given or not self.at(*NEW):
            return given
        if self.new_name:
            return "default_dynamic_cp"
        varlen = self.on("use_varlen_dataset")
        return "dp_balanced" if varlen and not self.on("varlen_sbhd_validation") else ""

    @property
    def budget(self) -> int | None:
        """Tokens of a rank in a microbatch."""
        name = "max_seqlen_per_dp_cp_rank"
        return self.number(name, 0) if self.given(name) else None

    @property
    def packs(self) -> bool:
        """Whether a scheduler packs sequences, or Dynamic CP does."""
        return bool(self.scheduler) or self.dynamic

    @property
    def per_token_loss(self) -> bool:
        """Whether the loss is summed over tokens; verl turns it on for Dynamic CP itself."""
        return self.on("calculate_per_token_loss") or self.program == "verl"

    # -- graphs ---------------------------------------------------------------------------------

    @property
    def graphs(self) -> str:
        """Kind of CUDA graphs: ``none``, ``local``, ``transformer_engine``, ``full_iteration``."""
        given = self.text("cuda_graph_impl", "none")
        if given != "none":
            return given
        if self.on("enable_cuda_graph"):
            return "local"
        return "transformer_engine" if self.on("external_cuda_graph") else "none"


def power_below(number: int) -> int:
    """Return the largest power of two that is not above a number, as upstream rounds a domain."""
    return 1 << (number.bit_length() - 1)


def is_power_of_two(number: int) -> bool:
    """Whether a number is 1, 2, 4 and so on."""
    return number > 0 and number == power_below(number)


def facts_of(
    settings: Settings,
    lines: frozenset[str] = frozenset(),
    options: frozenset[str] = frozenset(),
    versions: Mapping[str, str] = MappingProxyType({}),
) -> Facts:
    """Return what follows from settings; see `Facts`."""
    given = {field.name: getattr(settings, field.name) for field in fields(Settings)}
    return Facts(**given, lines=lines, options=options, versions=versions)
