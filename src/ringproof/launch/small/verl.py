"""A launch of verl or Megatron-Bridge made small, by overrides that are appended to its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from types import MappingProxyType
from typing import Any

from ringproof.errors import InputError, shown
from ringproof.launch.overrides import BRIDGE, CRITIC, PPO, REFERENCE, SFT, as_value
from ringproof.launch.small.draft import Change
from ringproof.launch.small.layout import (
    HIDES_DATA,
    HIDES_EXPERT,
    HIDES_PIPELINE,
    HIDES_TENSOR,
    Layout,
)

LONGEST = 96  # tokens of the longest made-up sequence
BATCH = 8  # made-up sequences of one step
LIMIT = 128  # tokens of a microbatch on one rank of CP
DOMAIN = 4  # ranks among which Dynamic CP shares a sequence
FEW_RANKS = 8  # which a laptop runs in half a minute
RATE = 1e-3

DATA = "The data: its lengths, its tokens, and where they come from."
LENGTHS = "Lengths themselves; limits of tokens keep their ratio to the longest sequence."
MODEL = "The model's own sizes, weights and vocabulary; its family and where it has experts stay."
STEPS = "Everything after the first steps."
OPTIMIZER = "The learning rate's own schedule; with this rate a wrong gradient shows in the losses."
FILES = "Files, services and logs that the launch reads and writes."
OFFLOAD = "Where the CPU keeps state of the GPU, which has no effect on what is computed."
KERNELS = "A kernel that needs Triton, flash-attn or DeepEP; the same is computed in another way."
STAGES = "An uneven division of layers over pipeline stages."
OFF = "Nothing: this is what the rehearsal is compared with."


@dataclass(frozen=True)
class Places:
    """Where a program of verl has its settings.

    Attributes:
        engine: Prefix of the settings of Megatron.
        actor: Prefix of the settings that limit microbatches.
        limit: Setting that limits the tokens of a microbatch on a rank.
        dynamic: Setting of Megatron that turns Dynamic CP on.
        kinds: Setting of Megatron with the types of communication of CP.
    """

    engine: str
    actor: str
    optimizer: str
    model: str
    limit: str
    micro: str
    dynamic: str = "dynamic_context_parallel"
    kinds: str = "override_transformer_config.cp_comm_type"


_ACTOR = Places("actor_rollout_ref.actor.megatron", "actor_rollout_ref.actor",
                "actor_rollout_ref.actor.optim", "actor_rollout_ref.model",
                "ppo_max_token_len_per_gpu", "ppo_micro_batch_size_per_gpu")  # fmt: skip
PLACES: Mapping[str, Places] = MappingProxyType({
    SFT: Places("engine", "data", "optim", "model", "max_token_len_per_gpu",
                "micro_batch_size_per_gpu"),
    PPO: _ACTOR,
    CRITIC: Places("critic.megatron", "critic", "critic.optim", "critic.model",
                   "ppo_max_token_len_per_gpu", "ppo_micro_batch_size_per_gpu"),
    REFERENCE: _ACTOR,  # whose settings are those of the actor unless it has its own
    BRIDGE: Places("model", "train", "optimizer", "model", "", "micro_batch_size",
                   "hybrid_context_parallel", "cp_comm_type"),
})  # fmt: skip


@dataclass
class OverrideDraft:
    """Overrides in change, with a record of what was changed.

    Attributes:
        config: The composed configuration of the launch, with what was put.
    """

    config: dict[str, Any]
    words: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a setting by its dotted name."""
        found: Any = self.config
        for part in key.split("."):
            if not isinstance(found, Mapping) or part not in found:
                return default
            found = found[part]
        return found

    def integer(self, key: str, default: int = 1) -> int:
        """Return a setting that is a positive integer.

        Raises:
            InputError: It is something else.
        """
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(key, f"{shown(value)} is not a positive integer; give one")
        return value

    def put(self, key: str, value: object, hides: str) -> None:
        """Append an override, and record it, where it changes something."""
        before = self.get(key)
        if before == value and type(before) is type(value):
            return
        self.words.append(f"++{key}={as_value(value)}")
        *parents, last = key.split(".")
        place = self.config
        for part in parents:
            inner = place.get(part)
            place[part] = dict(inner) if isinstance(inner, Mapping) else {}
            place = place[part]
        place[last] = value
        was = "" if before is None else as_value(before)
        self.changes.append(Change(key, was, as_value(value), hides))

    def put_known(self, key: str, value: object, hides: str) -> None:
        """Append an override where the configuration has the setting, with whatever value."""
        *parents, last = key.split(".")
        place = self.get(".".join(parents)) if parents else self.config
        if isinstance(place, Mapping) and last in place:
            self.put(key, value, hides)

    def put_given(self, key: str, value: object, hides: str) -> None:
        """Append an override where the configuration has the setting and it asks for something."""
        if self.get(key) not in (None, False, value):
            self.put(key, value, hides)


def read_layout(draft: OverrideDraft, module: str, world: int) -> Layout:
    """Return the layout of ranks that a configuration asks for.

    Raises:
        InputError: A size is not a positive integer.
    """
    at = PLACES[module].engine
    tensor = draft.integer(f"{at}.tensor_model_parallel_size")
    return Layout(
        world=world,
        tensor=tensor,
        pipeline=draft.integer(f"{at}.pipeline_model_parallel_size"),
        context=draft.integer(f"{at}.context_parallel_size"),
        expert=draft.integer(f"{at}.expert_model_parallel_size"),
        expert_tensor=draft.integer(f"{at}.expert_tensor_parallel_size", tensor),
        dynamic=bool(draft.get(f"{at}.{PLACES[module].dynamic}")),
        sequence_parallel=tensor > 1 and bool(draft.get(f"{at}.sequence_parallel")),
    )


def shrink_ranks(draft: OverrideDraft, module: str, before: Layout, max_ranks: int) -> Layout:
    """Choose a smaller layout and put it; one that verl refuses stays one.

    Raises:
        InputError: No smaller layout fits.
    """
    if not before.divides or not before.experts_fit:
        world = before.world if before.world <= max_ranks else before.model + 1
        if world > max_ranks:
            raise _too_many(before, max_ranks)
        return replace(before, world=world)
    fitting = [one for one in _candidates(before) if one.experts_fit and one.world <= max_ranks]
    few = [one for one in fitting if one.world <= FEW_RANKS]
    for after in (few or fitting)[:1]:
        _put_layout(draft, module, before, after)
        return after
    raise _too_many(before, max_ranks)


def _too_many(before: Layout, max_ranks: int) -> InputError:
    sentence = f"CP {before.context} needs more than {max_ranks} ranks; give a larger --max-ranks"
    return InputError("--max-ranks", sentence)


def _candidates(before: Layout) -> Iterator[Layout]:
    """Yield layouts in the order of how little they change besides DP."""
    data = before.data
    if before.dynamic:
        domain = before.context * data
        while domain > max(DOMAIN, before.context) and domain % 2 == 0:
            domain //= 2
        replicas = [max(domain // before.context, 1)]
    else:
        replicas = [2, 1] if data > 1 else [1]
    for dp, stages, tensor in product(replicas, *map(_sizes, (before.pipeline, before.tensor))):
        expert_tensor = max(before.expert_tensor * tensor // before.tensor, 1)
        for expert in _sizes(before.expert):
            small = replace(before, tensor=tensor, pipeline=stages, expert=expert)
            yield replace(small, expert_tensor=expert_tensor).of(dp)


def _sizes(size: int) -> list[int]:
    """Return a size and its halves, down to 2 where the size is larger."""
    found = [size]
    while found[-1] > 2 and found[-1] % 2 == 0:
        found.append(found[-1] // 2)
    return [*found, 1] if size > 1 else found


def _put_layout(draft: OverrideDraft, module: str, before: Layout, after: Layout) -> None:
    at = PLACES[module].engine
    if after.data != before.data:
        draft.changes.append(
            Change("data-parallel size", str(before.data), str(after.data), HIDES_DATA)
        )
    draft.put(f"{at}.tensor_model_parallel_size", after.tensor, HIDES_TENSOR)
    draft.put(f"{at}.pipeline_model_parallel_size", after.pipeline, HIDES_PIPELINE)
    draft.put(f"{at}.expert_model_parallel_size", after.expert, HIDES_EXPERT)
    draft.put_given(f"{at}.expert_tensor_parallel_size", after.expert_tensor, HIDES_TENSOR)
    if after.pipeline == 1:
        draft.put_given(f"{at}.virtual_pipeline_model_parallel_size", None, HIDES_PIPELINE)


def shrink_settings(
    draft: OverrideDraft, module: str, before: Layout, after: Layout, steps: int
) -> None:
    """Put everything that makes a step small, besides the ranks and the model."""
    places = PLACES[module]
    _shrink_lengths(draft, module, before, after)
    _leave_out(draft, places)
    at = places.optimizer
    for name, value in (("lr", RATE), ("min_lr", RATE), ("lr_decay_style", "constant"),
                        ("lr_warmup_steps", 0), ("lr_warmup_steps_ratio", 0.0)):  # fmt: skip
        draft.put(f"{at}.{name}", value, OPTIMIZER)
    if module == SFT:
        _shrink_sft(draft, steps)
    else:
        draft.put(f"{at}.total_training_steps", 100 * steps, STEPS)
        draft.put("actor_rollout_ref.actor.ppo_mini_batch_size", BATCH, DATA)
        draft.put("actor_rollout_ref.rollout.n", 1, DATA)


def _shrink_lengths(draft: OverrideDraft, module: str, before: Layout, after: Layout) -> None:
    """Scale the limits of tokens as the longest sequence is scaled."""
    places = PLACES[module]
    longest = draft.integer("data.max_length", 1024)
    if module != SFT:
        longest = sum(draft.integer(f"data.max_{part}_length", 512) for part in
                      ("prompt", "response"))  # fmt: skip
    limit, cap = f"{places.actor}.{places.limit}", f"{places.engine}.max_seqlen_per_dp_cp_rank"
    dynamic_batches = draft.get(f"{places.actor}.use_dynamic_bsz")
    if dynamic_batches and draft.get(limit) is not None:
        scaled = -(-draft.integer(limit) * LONGEST // longest)
        draft.put(limit, min(scaled, LIMIT), LENGTHS)
    elif not dynamic_batches and draft.get(f"{places.actor}.{places.micro}") is not None:
        micro = draft.integer(f"{places.actor}.{places.micro}")
        draft.put(f"{places.actor}.{places.micro}", min(micro, 2), DATA)
    if after.dynamic and isinstance(draft.get(cap), int):
        needed = -(-longest // draft.integer(cap))  # ranks that share the longest sequence
        if needed > before.domain:
            needed = after.domain + 1
        elif needed > after.domain:
            needed = after.domain
        draft.put(cap, -(-LONGEST // needed), LENGTHS)


def _shrink_sft(draft: OverrideDraft, steps: int) -> None:
    draft.put("data.train_batch_size", BATCH, DATA)
    draft.put("data.train_files", "made-up", DATA)
    draft.put("data.val_files", None, DATA)
    draft.put("data.num_workers", 0, FILES)
    draft.put("trainer.total_training_steps", steps, STEPS)
    draft.put("trainer.total_epochs", 1, STEPS)
    draft.put("trainer.logger", ["console"], FILES)
    draft.put("trainer.resume_mode", "disable", FILES)
    draft.put("trainer.save_freq", -1, FILES)
    draft.put("trainer.test_freq", -1, FILES)
    draft.put("trainer.profile_interval", [-1, -1], FILES)


def _leave_out(draft: OverrideDraft, places: Places) -> None:
    """Turn off what has no effect on the path, and what needs kernels that are not here."""
    engine, transformer = places.engine, f"{places.engine}.override_transformer_config"
    for name in ("param_offload", "optimizer_offload", "grad_offload"):
        draft.put_given(f"{engine}.{name}", False, OFFLOAD)
    for name in ("optimizer_cpu_offload", "overlap_cpu_optimizer_d2h_h2d",
                 "use_precision_aware_optimizer"):  # fmt: skip
        draft.put_given(f"{places.optimizer}.override_optimizer_config.{name}", False, OFFLOAD)
    draft.put_given(f"{places.optimizer}.override_optimizer_config.optimizer_offload_fraction", 0,
                    OFFLOAD)  # fmt: skip
    if draft.get(f"{transformer}.attention_backend") in ("flash", "auto", None):
        draft.put(f"{transformer}.attention_backend", "fused", KERNELS)
    draft.put(f"{transformer}.moe_permute_fusion", False, KERNELS)
    draft.put_given(f"{transformer}.moe_router_fusion", False, KERNELS)
    draft.put_given(f"{transformer}.moe_enable_deepep", False, KERNELS)
    if draft.get(f"{transformer}.moe_token_dispatcher_type") == "flex":
        draft.put(f"{transformer}.moe_token_dispatcher_type", "alltoall", KERNELS)
    draft.put_given(f"{places.model}.use_fused_kernels", False, KERNELS)
    draft.put_given(f"{places.model}.use_shm", False, FILES)
    for name in ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"):
        draft.put_given(f"{transformer}.{name}", None, STAGES)
    for name in ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"):
        draft.put_given(f"{transformer}.{name}", False, STAGES)
    draft.put_given(f"{engine}.use_dist_checkpointing", False, FILES)


def put_model(draft: OverrideDraft, module: str, folder: str, left_out: Sequence[str] = ()) -> None:
    """Put the tiny model's folder in the place of the model.

    Args:
        left_out: Fields of the model's own configuration that the tiny one does not have.
    """
    at = PLACES[module].model
    hides = f"{MODEL} It also has no {', '.join(left_out)}." if left_out else MODEL
    for name, value in (("path", folder), ("hf_config_path", None), ("tokenizer_path", None),
                        ("custom_chat_template", None), ("external_lib", None)):  # fmt: skip
        if value is not None or draft.get(f"{at}.{name}") is not None:
            draft.put(f"{at}.{name}", value, hides if name == "path" else MODEL)
    draft.put(f"{at}.override_config.attn_implementation", "eager", KERNELS)


def put_reference(draft: OverrideDraft, module: str, small: Layout) -> Layout:
    """Turn context parallelism off, and return the layout that is left.

    The data, TP, PP and, for static CP, DP stay. EP shrinks where its groups no longer fit. A
    limit of tokens that a sequence exceeds without CP is multiplied by CP.
    """
    places = PLACES[module]
    at = places.engine
    world = small.model // small.context * (1 if small.dynamic else small.data)
    after = replace(small, world=world, context=1, dynamic=False)
    draft.put(f"{at}.context_parallel_size", 1, OFF)
    draft.put_given(f"{at}.{places.dynamic}", False, OFF)
    draft.put_given(f"{at}.{places.kinds}", None, OFF)
    draft.put_given(f"{at}.hierarchical_context_parallel_sizes", None, OFF)
    limit = f"{places.actor}.{places.limit}"
    if draft.get(f"{places.actor}.use_dynamic_bsz") and draft.integer(limit, LONGEST) < LONGEST:
        draft.put(limit, LONGEST, OFF)
    while not after.experts_fit and after.expert > 1:
        after = replace(after, expert=after.expert // 2)
        draft.put(f"{at}.expert_model_parallel_size", after.expert, OFF)
    return after


def unsupported(config: Mapping[str, Any], module: str) -> str:
    """Return why a launch does not train with Megatron; empty where it does."""
    draft = OverrideDraft(dict(config))
    engine = PLACES[module].engine
    strategy = draft.get("engine.strategy", "") if module == SFT else draft.get(
        "actor_rollout_ref.actor.strategy", "")  # fmt: skip
    if draft.get(f"{engine}.tensor_model_parallel_size") is not None:
        return ""
    kind = f" ({shown(strategy)})" if strategy else ""
    remedy = "engine=megatron optim=megatron" if module == SFT else "model_engine=megatron"
    return f"the launch does not train with Megatron{kind}; add {remedy}"


def requested(draft: OverrideDraft, module: str) -> tuple[bool, int, tuple[str, ...]]:
    """Return whether Dynamic CP is asked for, the CP size, and the types of communication."""
    at = PLACES[module].engine
    kinds: Any = draft.get(f"{at}.{PLACES[module].kinds}") or "p2p"
    names: Sequence[str] = kinds if isinstance(kinds, list) else [kinds]
    dynamic = bool(draft.get(f"{at}.{PLACES[module].dynamic}"))
    return dynamic, draft.integer(f"{at}.context_parallel_size"), tuple(map(str, names))
