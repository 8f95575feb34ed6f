"""Launches are read from scripts, commands and test cases with their ranks and environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.rehearsal.test_launch_shell import written
from ringproof.errors import InputError
from ringproof.launch.flags import Flags
from ringproof.launch.reading import read_command, read_launch, read_script, read_test_case

COMMANDS = [
    ("torchrun --nproc_per_node 8 --nnodes=2 pretrain_gpt.py --a 1", 2, 8),
    ("torchrun --standalone --nproc-per-node=4 ./pretrain_gpt.py --a 1", 1, 4),
    ("python -m torch.distributed.run --nproc-per-node 2 pretrain_gpt.py --a 1", 1, 2),
    ("python3 -u pretrain_gpt.py --a 1", 1, 1),
    ("WORLD_SIZE=4 python pretrain_gpt.py --a 1", 1, 4),
    ("srun -N 4 --ntasks-per-node=8 python -u pretrain_gpt.py --a 1", 4, 8),
    ("srun --nodes 2 --ntasks 16 python pretrain_gpt.py --a 1", 2, 8),
    ("srun -N 4 torchrun --nnodes 4 --nproc-per-node 8 pretrain_gpt.py --a 1", 4, 8),
    ("uv run nsys profile -o x torchrun --nproc-per-node 8 pretrain_gpt.py --a 1", 1, 8),
    ("numactl -N 0 python -m torch.distributed.launch --nproc_per_node 8 pretrain_gpt.py --a 1",
     1, 8),
]  # fmt: skip


@pytest.mark.parametrize(("command", "nodes", "each"), COMMANDS)
def test_launchers(command: str, nodes: int, each: int) -> None:
    launch = read_command(command.split())
    assert (launch.nodes, launch.ranks_per_node, launch.ranks) == (nodes, each, nodes * each)
    assert launch.script.endswith("pretrain_gpt.py") and launch.arguments == ("--a", "1")


def test_a_command_within_a_command() -> None:
    line = "NCCL_ALGO=Ring torchrun --nproc-per-node 8 pretrain_gpt.py --a 'b c'"
    launch = read_command(["srun", "-N", "2", "bash", "-c", line])
    assert launch.ranks == 8 and launch.arguments == ("--a", "b c")
    assert launch.environment["NCCL_ALGO"] == "Ring"


@pytest.mark.parametrize("command", ["ls -l", "accelerate launch train.py", "srun python train.py"])
def test_what_is_no_launch_is_refused(command: str) -> None:
    with pytest.raises(InputError):
        read_command(command.split())


def test_slurm_sizes_come_from_the_header(tmp_path: Path) -> None:
    header = "#SBATCH --nodes=4 --ntasks-per-node=8 # comment\n"
    line = 'srun --label bash -c "python pretrain_gpt.py --a $SLURM_NNODES"'
    script = written(tmp_path, header + line)
    launch = read_script(script)
    assert launch.ranks == 32 and launch.arguments == ("--a", "4")
    assert read_script(script, {"SLURM_NNODES": "2"}).ranks == 16


def test_the_environment_is_what_the_script_exports(tmp_path: Path) -> None:
    text = (
        "export CUDA_DEVICE_MAX_CONNECTIONS=1 GONE=2 HOST=$(hostname)\nPRIVATE=3\nunset GONE\n"
        "NVTE_FUSED_ATTN=1 torchrun --nproc-per-node 2 x.py"
    )
    found = dict(read_script(written(tmp_path, text)).environment)
    assert found == {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NVTE_FUSED_ATTN": "1"}


def test_one_of_several_launches_is_chosen(tmp_path: Path) -> None:
    script = written(tmp_path, "run() { torchrun x.py $1; }\nrun --a\nrun --b")
    assert read_script(script, {"RINGPROOF_LAUNCH": "2"}).arguments == ("--b",)
    with pytest.raises(InputError, match="is not the number of a launch"):
        read_script(script, {"RINGPROOF_LAUNCH": "3"})


CASE = """
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  --num-layers: 12
  --bf16: true
  --lr: 1.0e-5
  --save: ${CHECKPOINT_SAVE_PATH}
  --seed: ${REPEAT}
  --spec: "[some.module spec]"
  --moe-layer-freq: ([0]*1+[1]*11)
  --hierarchical-context-parallel-sizes: "[2 2]"
  --quoted: 2 2
  --json: '\\''{\\"a\\":1}\\'''
  --nothing: ""
TEST_TYPE: regular
"""


def test_a_test_case_becomes_what_upstreams_runner_makes_of_it(tmp_path: Path) -> None:
    path = tmp_path / "moe" / "some_case" / "model_config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(CASE, encoding="utf-8")
    launch = read_launch(path)
    flags = Flags(launch.arguments)
    assert (launch.script, launch.ranks) == ("pretrain_gpt.py", 8)
    assert flags.get("--bf16") == () and flags.get("--lr") == ("1.0e-5",)
    assert flags.get("--spec") == ("some.module", "spec")
    assert flags.get("--hierarchical-context-parallel-sizes") == ("2", "2")
    assert flags.get("--quoted") == ("2 2",)
    assert flags.get("--json") == ('{"a":1}',)
    assert flags.get("--seed") == ("1",) and not flags.has("--nothing")
    assert flags.get("--moe-layer-freq") == ("([0]*1+[1]*11)",)
    assert launch.environment == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    with pytest.raises(InputError, match=r"GPUS_PER_NODE: '.*' is not a number"):
        read_launch(path, {"GPUS_PER_NODE": "all"})


@pytest.mark.parametrize("text", [
    "- 1", "MODE: inference\nMODEL_ARGS: {--a: 1}", "a: [", "MODEL_ARGS: {--x: $Y}",
    "MODEL_ARGS: {a.b: 1}", "MODEL_ARGS: {<<: text}", "ENV_VARS: text\nMODEL_ARGS: {--a: 1}",
    "A: &a {--x: 1}\nMODEL_ARGS: {<<: [*a]}",
])  # fmt: skip
def test_what_is_no_test_case_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "model_config.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError):
        read_test_case(path)


def test_merged_mappings_count_as_their_own(tmp_path: Path) -> None:
    path = tmp_path / "model_config.yaml"
    merged = "A: &a {SEEN: 1}\nENV_VARS: {<<: *a}\nB: &b {--x: 1}\nMODEL_ARGS: {<<: *b, --y: 2}\n"
    path.write_text(merged, encoding="utf-8")
    launch = read_test_case(path)
    assert launch.environment == {"SEEN": "1"}
    assert Flags(launch.arguments).get("--x") == ("1",)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "b.sh").write_bytes(b"\xff\xfe\x00")
    for name in ("missing.sh", "b.sh", "missing.yaml", "."):
        with pytest.raises(InputError):
            read_launch(tmp_path / name)


def test_flags() -> None:
    flags = Flags(_words("x --a 1 --b=2 --c --d -1 -.5 --a 3 4 --e -- --a 9"))
    assert flags.get("--a") == ("3", "4") and flags.get("--b") == ("2",)
    assert flags.get("--c") == () and flags.get("--d") == ("-1", "-.5")
    assert flags.get("--none") is None and not flags.has("-1")
    assert flags.integer("--b", 7) == 2 and flags.integer("--none", 7) == 7
    expected = _words("x --a 5 --b=2 --c --d -1 -.5 --e -- --a 9")
    assert flags.with_("--a", "5").words == expected
    assert flags.with_("--f").words[-4:] == ("--f", "--", "--a", "9")
    assert flags.without("--a", "--d").words == _words("x --b=2 --c --e -- --a 9")
    with pytest.raises(InputError, match="not an integer"):
        flags.integer("--a", 0)


def _words(line: str) -> tuple[str, ...]:
    return tuple(line.split())
