"""How `ringproof doctor` reads the launches of programs that use Megatron-LM as a library."""

from __future__ import annotations

import shlex

import pytest

from checks.doctor.test_corpus import found
from checks.doctor.upstream_lines import stack_at
from ringproof.doctor.examine import examine
from ringproof.doctor.reading import of_command, read_settings
from ringproof.errors import InputError

ACTOR = "actor_rollout_ref.actor.megatron."
CP = f"{ACTOR}context_parallel_size=2"
ULYSSES = "ulysses_sequence_parallel_size=4"
BUDGET = "ppo_max_token_len_per_gpu=8192"
RECIPES = """
def _common():
    cfg.model.tensor_model_parallel_size = 1
    cfg.model.context_parallel_size = 1
    cfg.optimizer.lr = 1.0
def small_8gpu_config():
    cfg = _common()
    cfg.model.num_attention_heads = 16
    cfg.model.context_parallel_size = 2
    cfg.model.vision_config.num_layers = 3
def long_16gpu_config():
    cfg = small_8gpu_config()
    cfg.model.cp_comm_type = "a2a"
    cfg.model.seq_length = size()
    cfg.model.context_parallel_size = 8
"""


def read(path, text, **sets):
    path.write_text(text, encoding="utf-8")
    return read_settings([str(path)], sets)


def test_a_script_of_verl(tmp_path):
    script = f"""CP=4
ACTOR=(
  {ACTOR}context_parallel_size=${{CP}}
  ++{ACTOR}override_transformer_config.cp_comm_type=a2a
  actor_rollout_ref.ref.megatron.context_parallel_size=2
)
python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer.yaml \\
  {ACTOR}tensor_model_parallel_size=$TP "${{ACTOR[@]}}" trainer.nnodes=2 trainer.n_gpus_per_node=8
"""
    settings = read(tmp_path / "run.sh", script)
    assert settings.program == "verl"
    assert (settings.ranks, settings.ranks_per_node) == (16, 8)
    assert settings.number("context_parallel_size", 1) == 4, "the actor's, not the reference's"
    assert settings.text("cp_comm_type") == "a2a"
    assert not settings.given("tensor_model_parallel_size")
    assert "tensor_model_parallel_size is not known" in settings.notes[0]
    assert read(tmp_path / "run.sh", script, TP="2").number("tensor_model_parallel_size", 1) == 2


def test_a_script_of_bridge_and_of_supervised_verl(tmp_path):
    command = "torchrun --nnodes 3 --nproc-per-node=8 {} model.context_parallel_size=3 {}\n"
    bridge = read(tmp_path / "b.sh", command.format("run_recipe.py --recipe x", "train.a=1"))
    assert (bridge.program, bridge.ranks) == ("bridge", 24)
    words = "torchrun --nproc-per-node=4 -m verl.trainer.sft_trainer engine.context_parallel_size=2"
    verl = read_settings([*words.split(), "engine.dynamic_context_parallel=True"], {})
    assert (verl.program, verl.ranks) == ("verl", 4)
    assert verl.on("dynamic_context_parallel")
    assert of_command(["python", "train.py", "a.lr=1", "a.bf16=1"], {}, "x") is None, "unknown"


def test_a_script_of_slime(tmp_path):
    script = """MODEL=(--num-layers 47 --hidden-size 2048)
JSON="{ \\"env_vars\\": { \\"CUDA_DEVICE_MAX_CONNECTIONS\\": \\"1\\" } }"
ray job submit --address=http://127.0.0.1:8265 --runtime-env-json="${JSON}" \\
  -- python3 train.py --actor-num-nodes 2 --actor-num-gpus-per-node 8 ${MODEL[@]} \\
  --pipeline-model-parallel-size 2
"""
    settings = read(tmp_path / "run.sh", script)
    assert (settings.program, settings.ranks, settings.ranks_per_node) == ("megatron", 16, 8)
    assert settings.number("num_layers", 0) == 47
    assert settings.environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    odd = script.replace("{ \\", "[ \\").replace("2048", "2048 --actor-num-nodes two")
    settings = read(tmp_path / "run.sh", odd)
    assert (settings.ranks, settings.environment) == (None, None), (
        "what is not known is not guessed"
    )


def test_a_program_that_hides_its_sizes(tmp_path):
    settings = read(tmp_path / "run.sh", "torchrun --nproc-per-node 8 finetune.py --recipe llama\n")
    assert settings.notes == (
        "finetune.py gets none of Megatron-LM's sizes: its own were not examined",
    )
    own = read(tmp_path / "run.sh", "torchrun --nproc-per-node 8 finetune.py --num-layers 2\n")
    assert own.notes == ()


def test_files_of_nemo_rl_inherit(tmp_path):
    (tmp_path / "base.yaml").write_text(
        "policy:\n  megatron_cfg: {enabled: false, context_parallel_size: 1}\n"
        "  generation: {colocated: {enabled: true, resources: {num_nodes: null}}}\n"
        "cluster: {num_nodes: 1, gpus_per_node: 8}\n"
    )
    child = (
        "defaults: base.yaml\nsize: 4\npolicy:\n  megatron_cfg:\n    enabled: true\n"
        "    context_parallel_size: ${size}\n"
    )
    settings = read(tmp_path / "child.yaml", child)
    assert (settings.ranks, settings.number("context_parallel_size", 1)) == (8, 4)
    apart = child + "  generation: {colocated: {enabled: false, resources: {num_nodes: 2}}}\n"
    assert read(tmp_path / "child.yaml", apart + "cluster: {num_nodes: 6}\n").ranks == 32
    assert read(tmp_path / "child.yaml", apart + "env: {gym: {num_gpu_nodes: 1}}\n").ranks is None
    base = read_settings([str(tmp_path / "base.yaml")], {})
    assert not base.values
    assert "not enabled" in base.notes[0]
    circle = read(tmp_path / "child.yaml", child.replace("base.yaml", "[child.yaml, child.yaml]"))
    assert "child.yaml, from which it inherits, was not read" in circle.notes
    alone = read(tmp_path / "child.yaml", child.replace("base.yaml", "missing.yaml"))
    assert "missing.yaml, from which it inherits, was not read" in alone.notes


def test_one_recipe_of_a_file(tmp_path):
    path = tmp_path / "recipes.py"
    with pytest.raises(InputError, match=r"holds 2 recipes.*RINGPROOF_RECIPE=NAME"):
        read(path, RECIPES)
    small = read(path, RECIPES, RINGPROOF_RECIPE="small_8gpu_config")
    assert (small.ranks, small.number("context_parallel_size", 1)) == (8, 2)
    assert not small.given("cp_comm_type")
    assert not small.given("num_layers"), "of another model"
    long = read(path, RECIPES, RINGPROOF_RECIPE="long_16gpu_config")
    assert (long.ranks, long.number("context_parallel_size", 1)) == (16, 8)
    assert long.text("cp_comm_type") == "a2a"
    assert long.number("num_attention_heads", 0) == 16, "from the recipe on which it builds"
    assert long.number("tensor_model_parallel_size", 0) == 1, "from a function of this file"
    assert long.notes == ("cfg.model.seq_length is computed and was not read",)
    with pytest.raises(InputError, match="holds 2 recipes"):
        read(path, RECIPES, RINGPROOF_RECIPE="none")


@pytest.mark.parametrize(
    ("more", "sets", "ranks"),
    [
        ("", {}, 8),
        ("  --expert-model-parallel-size: 8\n", {}, None),
        ("  --expert-model-parallel-size: 8\n", {"NUM_NODES": "4"}, 32),
        ("  --context-parallel-size: 8\n", {}, None),
        ("  --global-batch-size: 6\n", {}, None),
    ],
)
def test_ranks_that_a_functional_test_does_not_name(tmp_path, more, sets, ranks):
    path = tmp_path / "model_config.yaml"
    text = "MODEL_ARGS:\n  --pipeline-model-parallel-size: 2\n  --micro-batch-size: 1\n"
    settings = read(path, text + "  --num-layers: 8\n" + more, **sets)
    assert settings.ranks == ranks
    assert bool(settings.notes) == (not sets)
    assert read_settings([str(path)], sets, ranks=16).ranks == 16


def names(settings, line="main"):
    """Names of the statements that doctor says are broken."""
    return {statement for _, statement in found(examine(settings, stack_at(line)))}


@pytest.mark.parametrize(
    ("section", "words", "broken"),
    [
        ("actor", f"use_dynamic_bsz=True {BUDGET} {ULYSSES}", False),
        ("actor", f"use_dynamic_bsz=True {BUDGET} fsdp_config.{ULYSSES}", False),
        ("actor", f"use_dynamic_bsz=True {BUDGET} ulysses_sequence_parallel_size=2", True),
        ("critic", "use_dynamic_bsz=True", False),
    ],
)
def test_the_budget_of_verl_is_that_of_the_ranks_of_a_sequence(section, words, broken):
    prefix = "actor_rollout_ref.actor." if section == "actor" else "critic."
    lengths = ["data.max_prompt_length=2048", "data.max_response_length=20480"]
    given = [f"{prefix}{word}" for word in words.split()]
    given += [f"actor_rollout_ref.actor.{BUDGET}"] if section == "critic" else []
    assert ("launch/verl-budget" in names(read_settings([*lengths, *given], {}))) == broken


def test_ulysses_of_verl_is_no_size_of_megatron():
    words = ["data.max_token_len_per_gpu=8192", "data.max_length=32768", f"engine.{ULYSSES}"]
    one = examine(read_settings([*words, "data.use_dynamic_bsz=True"], {}), stack_at("main"))
    assert one.not_examined.startswith("no parallel size")


def test_a_critic_of_verl_does_not_speak_for_the_actor():
    words = ["critic.model.use_remove_padding=False", CP]
    assert names(read_settings([*words, "actor_rollout_ref.model.path=m"], {})) == set()
    words[0] = "actor_rollout_ref.model.use_remove_padding=False"
    assert names(read_settings(words, {})) == {"launch/verl-padding"}


@pytest.mark.parametrize(
    "words",
    [
        f"{CP} actor_rollout_ref.model.path=Qwen3-8B reward_model.model.path=gpt-oss-20b",
        f"{CP} custom_reward_function.path=/data/gpt-oss-judge/reward.py",
        "policy.megatron_cfg.enabled=true policy.megatron_cfg.context_parallel_size=2 "
        "policy.model_name=Qwen3-8B teacher.model_name=gpt-oss-120b",
    ],
)
def test_only_the_model_that_trains_brings_settings(words):
    assert not read_settings(words.split(), {}).given("window_size")


def test_the_model_that_trains_is_known_by_its_field():
    words = [CP, "actor_rollout_ref.model.path=openai/gpt-oss-20b"]
    assert read_settings(words, {}).given("window_size")


def test_many_files_and_fields_of_a_few_lines_are_bounded(tmp_path):
    policy = "policy:\n  model_name: x\n"
    for at in range(8):
        text = f"defaults: [{', '.join([f'd{at + 1}.yaml'] * 6)}, gone.yaml]\n{policy}"
        (tmp_path / f"d{at}.yaml").write_text(text)
    (tmp_path / "d8.yaml").write_text(policy)
    settings = read_settings([str(tmp_path / "d0.yaml")], {})
    assert [note for note in settings.notes if "gone.yaml" in note] == [
        "gone.yaml, from which it inherits, was not read"
    ]
    for inner in ("{{x: {}}}", "[{}]"):
        lines = [f"a0: &a0 {inner.format(1)}"]
        for at in range(1, 9):
            items = [f"k{i}: *a{at - 1}" if "{" in inner else f"*a{at - 1}" for i in range(10)]
            whole = ", ".join(items)
            lines.append(f"a{at}: &a{at} " + ("{%s}" if "{{" in inner else "[%s]") % whole)
        with pytest.raises(InputError, match=r"more than (100,000 steps|1,000,000 values)"):
            read(tmp_path / "laugh.yaml", "\n".join(lines) + f"\n{policy}")


def test_digits_that_are_no_numbers_are_not_read(tmp_path):
    text = "policy: {megatron_cfg: {enabled: true, context_parallel_size: 2}}\n"
    settings = read(tmp_path / "a.yaml", f'{text}cluster: {{num_nodes: "²", gpus_per_node: "²"}}\n')
    assert settings.ranks is None
    words = ["policy.megatron_cfg.enabled=true", "policy.make_sequence_length_divisible_by=²"]
    assert (
        names(read_settings([*words, "policy.megatron_cfg.context_parallel_size=2"], {})) == set()
    )


def test_fp8_that_is_off_and_routers_without_an_auxiliary_loss():
    words = ["model.seq_length=4100", "model.context_parallel_size=2", "model.fp8=false"]
    assert names(read_settings(words, {})) == set()
    assert names(read_settings([*words, "model.fp8=hybrid"], {})) == {"launch/fp8-rows"}
    train = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --num-experts 8"
    train += " --context-parallel-size 4 --moe-aux-loss-coeff 1e-2 --calculate-per-token-loss"
    none = read_settings([*train.split(), "--moe-router-load-balancing-type", "none"], {})
    assert "launch/auxiliary-loss" not in names(none, "release")
    assert "launch/auxiliary-loss" in names(read_settings(train.split(), {}), "release")


def test_commands_of_ms_swift_and_llama_factory(tmp_path):
    script = "export NNODES=2\nNPROC_PER_NODE=8 \\\nmegatron sft --model openai/gpt-oss-20b \\\n"
    script += "  --tensor_model_parallel_size 2 --context_parallel_size $CP --packing true\n"
    settings = read(tmp_path / "run.sh", script, CP="4")
    assert (settings.program, settings.ranks) == ("ms-swift", 16)
    assert settings.number("context_parallel_size", 1) == 4
    assert settings.given("window_size"), "from the model"
    assert "context_parallel_size is not known" in read(tmp_path / "run.sh", script).notes[-1]
    with pytest.raises(InputError, match="is read from its YAML file"):
        read(tmp_path / "run.sh", "llamafactory-cli train sft.yaml\n")


def test_slime_without_ray_has_the_ranks_of_its_actors():
    command = "python3 train.py --actor-num-nodes 2 --actor-num-gpus-per-node 8 --num-layers 4"
    words = shlex.split(command)
    settings = read_settings([*words, "--context-parallel-size", "2"], {})
    assert (settings.ranks, settings.ranks_per_node) == (16, 8)
    assert settings.environment is None
    unknown = read_settings([*words, "--actor-num-gpus-per-node", "many"], {})
    assert unknown.ranks is None
