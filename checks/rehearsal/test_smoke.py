"""The smoke run of upstream's program: its commands, the files of schedulers, and its judgement.

The checkout is made up. ``smoke/test_smoke_command.py`` runs upstream's own.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import jsonschema
import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from ringproof.budget import Machine
from ringproof.cli.main import app
from ringproof.errors import InputError
from ringproof.files import claimed
from ringproof.launch.flags import Flags
from ringproof.launch.reading import read_command
from ringproof.reference.topology.census_line import CensusLine
from ringproof.rehearsal.protocol.program import Upstream
from ringproof.rehearsal.protocol.trace import HEAD
from ringproof.rehearsal.smoke import launcher, pair
from ringproof.rehearsal.smoke.launcher import LAUNCHER_LOG, estimate, failure, run_pair
from ringproof.rehearsal.smoke.pair import PairSetting, make_pair

OPTIONS = """--kv-channels --make-vocab-size-divisible-by --num-workers --bf16 --attention-backend
--logging-level --hierarchical-context-parallel-sizes --dynamic-context-parallel
--cuda-graph-dynamic-microbatches"""
CUDA = ("--ranks-per-node", "4", "--offline")


@pytest.fixture(scope="module", autouse=True)
def cards() -> Iterator[None]:
    """Read each card once: that takes nine tenths of a command's time here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair, "load_card", functools.cache(pair.load_card))
        yield


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "Megatron-LM"
    (root / "megatron" / "core").mkdir(parents=True)
    (root / "megatron" / "training").mkdir()
    (root / "megatron" / "core" / "__init__.py").touch()
    (root / "pretrain_gpt.py").touch()
    options = "".join(f"group.add_argument('{option}')\n" for option in OPTIONS.split())
    (root / "megatron" / "training" / "arguments.py").write_text(options)
    return root


def smoke(checkout: Path, *words: str, feature: str = "hcp") -> tuple[int, str]:
    arguments = ["smoke", "megatron", "--upstream", str(checkout), "--feature", feature, *words]
    done = CliRunner().invoke(app, arguments)
    if isinstance(done.exception, InputError):
        return 2, str(done.exception)
    return done.exit_code, done.output


def launches(text: str) -> list[Flags]:
    """Read printed commands as the rehearsal reads a launch."""
    return [Flags(read_command(shlex.split(line)).arguments) for line in text.splitlines()]


def differing(on: Flags, off: Flags) -> set[str]:
    return {name for name in (*on.names(), *off.names()) if on.get(name) != off.get(name)}


@pytest.mark.parametrize(
    ("feature", "changed"),
    [
        ("hcp", "--cp-comm-type --hierarchical-context-parallel-sizes"),
        ("dynamic-cp", "--dynamic-context-parallel --min-dynamic-context-parallel-size "
         "--sequence-packing-scheduler"),
        ("graphs", "--cuda-graph-impl"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("nproc", "nodes"), [(4, 1), (8, 1), (8, 2), (8, 8)])
def test_a_pair_differs_in_the_feature_only(checkout, feature, changed, nproc, nodes) -> None:
    size = ("--ranks-per-node", str(nproc), "--nodes", str(nodes), "--rendezvous", "node-0:29500")
    code, text = smoke(checkout, *size, "--dry-run", feature=feature)
    assert code == 0, text
    on, off = launches(text)
    assert differing(on, off) == set(changed.split())
    for line in text.splitlines():
        assert "CUDA_DEVICE_MAX_CONNECTIONS=1" in line and "NVTE_DEBUG=1" in line
        assert f"--nproc-per-node {nproc} " in line
        assert ("--rdzv-endpoint node-0:29500" in line) == (nodes > 1)
        assert f" {checkout}/pretrain_gpt.py " in line
    ranks, domain = nproc * nodes, on.integer("--context-parallel-size", 1)
    assert on.integer("--global-batch-size", 0) % (ranks // domain) == 0
    if feature == "hcp":
        inner, outer = map(int, on.get("--hierarchical-context-parallel-sizes") or ())
        assert inner * outer == domain == ranks
        assert inner == (nproc if nodes > 1 else 2)
    else:  # the longest sequence fits
        budget = on.integer("--max-seqlen-per-dp-cp-rank", 0)
        shared = domain if feature == "dynamic-cp" else ranks
        assert budget * shared >= on.integer("--seq-length", 0)


IN_PODS = (
    "--kubernetes", "-", "--image", "i", "--claim", "a:/shared",
    "--upstream-on-nodes", "/shared/Megatron-LM",
)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ranks-per-node", "6"), "power of two"),
        (("--ranks-per-node", "2"), "power of two"),
        (("--ranks-per-node", "8", "--nodes", "16"), "power of two"),
        (("--feature", "cp"), "one of hcp, dynamic-cp, graphs"),
        (("--device", "tpu"), "one of cuda, cpu"),
        (("--nodes", "2", "--dry-run"), "HOST:PORT"),
        (("--nodes", "2", "--dry-run", "--rendezvous", "a;b"), "HOST:PORT"),
        (("--nodes", "2"), "only one node is started here"),
        (
            ("--trace", "t", "--feature", "graphs", "--steps", "3"),
            "--steps: graphs are replayed from step 4 on; give --trace as many steps",
        ),
        (("--kubernetes", "-"), "--image"),
        (("--kubernetes", "-", "--image", "i"), "NAME:PATH"),
        (("--kubernetes", "-", "--image", "i", "--claim", "a:b"), "NAME:PATH"),
        (("--skills", "nowhere"), "no such folder"),
        (("--slurm", "no/such/folder/job.sh"), "--slurm"),
        (("--slurm", "-", "--sbatch", "--uid=0\ntouch x"), "--sbatch: "),
        (("--slurm", "-", "--sbatch", "account=a"), "write it as --account=team"),
        (("--slurm", "-", "--setup", "true\nfalse"), "--setup: "),
        (("--slurm", "-", "--env", "a b"), "--env: "),
        (("--slurm", "-", "--upstream-on-nodes", "here"), "--upstream-on-nodes: "),
        (("--slurm", "-", "--image", "i", "--out", "a:b"), "divide mounts"),
        (("--slurm", "-", "--memory", "1Gi"), "--memory needs --kubernetes"),
        (("--dry-run", "--sbatch", "--account=a"), "--sbatch needs --slurm"),
        (("--dry-run", "--upstream-on-nodes", "/x"), "needs --slurm or --kubernetes"),
        *(
            (("--dry-run", option, value), f"{option} needs --slurm or --kubernetes")
            for option, value in (
                ("--env", "A=b"),
                ("--setup", "true"),
                ("--cpus", "8"),
                ("--image", "i"),
                ("--minutes", "5"),
            )
        ),
        (("--slurm", "-", "--claim", "a:/b"), "--claim needs --kubernetes"),
        ((*IN_PODS, "--out", "/other"), "--out: '/other' is not below /shared"),
        ((*IN_PODS, "--out", "/shared/../x"), "--out: "),
        ((*IN_PODS, "--out", "/shared/x", "--record", "evidence"), "--record: 'evidence' is not"),
        ((*IN_PODS, "--out", "/shared/x", "--device", "cpu", "--te", "x"), "--te"),
        ((*IN_PODS[:-2], "--out", "/shared/x"), "--upstream-on-nodes: "),
        ((*IN_PODS, "--memory", "a lot"), "--memory: "),
        ((*IN_PODS, "--memory", "512K"), "--memory: "),
        ((*IN_PODS, "--rdma", "rdma/a"), "--rdma: "),
        ((*IN_PODS, "--rdma", "nvidia.com/gpu=1"), "--rdma: "),
        ((*IN_PODS, "--rdma", "memory=1"), "--rdma: "),
        ((*IN_PODS, "--toleration", "a b"), "--toleration: "),
        ((*IN_PODS, "--queue", "A"), "--queue: "),
    ],
)
def test_bad_input_is_refused(checkout, words, said) -> None:
    code, text = smoke(checkout, *words)
    assert code == 2 and said in text and "\n" not in text


@pytest.mark.parametrize("words", [("--dry-run",), ("--slurm", "-")])
def test_traces_are_not_mixed_with_those_that_are_there(
    checkout: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "traces" / "on").mkdir(parents=True)
    code, text = smoke(checkout, *words, "--trace", str(tmp_path / "traces"))
    assert code == 2 and "--trace: " in text and "is not empty; name a new folder" in text


def test_with_traces_a_third_program_runs_with_disturbed_weights(
    checkout: Path, tmp_path: Path
) -> None:
    code, text = smoke(checkout, "--dry-run", "--trace", str(tmp_path / "traces"))
    found = [Flags(tuple(shlex.split(line))) for line in text.splitlines()]
    folders = [str(tmp_path / "traces" / name) for name in ("on", "off", "disturbed")]
    assert code == 0 and [flags.one("--trace") for flags in found] == folders
    assert [flags.has("--disturbed") for flags in found] == [False, False, True]
    assert {flags.one("--traced-steps") for flags in found} == {"1,2"}
    assert not any(flags.has("--engine") for flags in found), "nothing stands in for a GPU"
    job = script(checkout, tmp_path, "--trace", str(tmp_path / "traces"))
    assert job.count("srun ") == 3
    assert f"--trace {tmp_path / 'traces'}" in job.splitlines()[-1]
    code, text = smoke(checkout, "--dry-run", "--trace", "new", "--feature", "graphs")
    assert code == 0 and text.count("--traced-steps 3,4 ") == 3, "where replays begin"


@pytest.mark.parametrize(
    ("feature", "option", "remedy"),
    [
        ("hcp", "--hierarchical-context-parallel-sizes", "main or dev"),
        ("dynamic-cp", "--dynamic-context-parallel", "dev"),
        ("graphs", "--cuda-graph-dynamic-microbatches", "pull request 6479"),
    ],
)
def test_a_checkout_without_the_feature_is_refused(checkout, feature, option, remedy) -> None:
    path = checkout / "megatron" / "training" / "arguments.py"
    path.write_text(path.read_text().replace(option, "--other"))
    code, text = smoke(checkout, "--dry-run", feature=feature)
    assert code == 2 and f"no option {option};" in text and text.endswith(f"a checkout of {remedy}")
    (checkout / "pretrain_gpt.py").unlink()
    code, text = smoke(checkout)
    assert code == 2 and "has no pretrain_gpt.py" in text


def test_missing_packages_are_named(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == "torch" else find(name, *more),
    )
    for device in ("cpu", "cuda"):
        code, text = smoke(checkout, "--device", device)
        assert code == 2
        assert "--device: torch cannot be imported; without a GPU run first: pip install" in text
    assert smoke(checkout, "--dry-run")[0] == 0


def test_a_machine_without_gpus_is_refused(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = ModuleType("torch")  # a few names, since the real one takes seconds to import
    torch.__spec__ = ModuleSpec("torch", None)
    torch.cuda = SimpleNamespace(is_available=lambda: False)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    out = tmp_path / "logs"
    code, text = smoke(checkout, *CUDA, "--out", str(out))
    assert "--ranks-per-node: 4 ranks need as many GPUs, and 0 are here" in text
    assert code == 2 and not list(out.glob("*"))


def test_a_second_run_in_one_folder_is_refused_and_removes_nothing(
    checkout: Path, tmp_path: Path
) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    log = tmp_path / "logs/on/torchrun.log"
    log.parent.mkdir(parents=True)
    log.write_text("of the first run")
    engine = tmp_path / "engine"
    (engine / "transformer_engine/pytorch").mkdir(parents=True)
    (engine / "transformer_engine/pytorch/__init__.py").touch()
    (engine / "build_tools").mkdir()
    (engine / "build_tools/VERSION.txt").write_text("2.9.0")
    words = ("--device", "cpu", "--te", str(engine), "--force", "--out", str(tmp_path / "logs"))
    with claimed(tmp_path / "logs", field="--out"):
        code, text = smoke(checkout, *CUDA, *words)
    assert code == 2 and "another run writes into" in text
    assert log.read_text() == "of the first run"


# --- files of schedulers ---


def script(checkout: Path, tmp_path: Path, *words: str) -> str:
    place = tmp_path / "it's a job.sh"
    code, text = smoke(checkout, "--slurm", str(place), "--out", str(tmp_path / "it's"), *words)
    assert code == 0, text
    return place.read_text()


@pytest.mark.parametrize("nodes", ["1", "4"])
def test_the_sbatch_file_is_a_script(checkout: Path, tmp_path: Path, nodes: str) -> None:
    text = script(checkout, tmp_path, "--nodes", nodes)
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    assert f"#SBATCH --nodes={nodes}\n" in text and "#SBATCH --gpus-per-node=8\n" in text
    assert text.count("srun ") == 2
    assert "--judge" in text.splitlines()[-1]


def test_the_sbatch_file_starts_the_printed_commands(checkout: Path, tmp_path: Path) -> None:
    """With stand-ins for Slurm's programs and for the ranks, which print what they are given."""
    text = script(checkout, tmp_path, "--nodes", "2", "--ranks-per-node", "4")
    printed = smoke(
        checkout, "--nodes", "2", "--ranks-per-node", "4", "--dry-run", "--rendezvous", "one:20369",
        "--out", str(tmp_path / "it's"),
    )[1]  # fmt: skip
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, body in (
        ("scontrol", "printf 'one\\ntwo\\n'"),
        ("srun", 'shift; exec "$@"'),
        ("python", 'printf "%s\\0" "$@"; echo'),
    ):
        (bin_folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (bin_folder / name).chmod(0o755)
    interpreter = shlex.split(printed.splitlines()[0])
    python = next(word for word in interpreter if "=" not in word)
    done = subprocess.run(
        ["bash", "-c", text.replace(python, str(bin_folder / "python"))],
        env={"PATH": f"{bin_folder}:/bin:/usr/bin", "SLURM_JOB_NODELIST": "x",
             "SLURM_JOB_ID": "123", "SLURM_CPUS_ON_NODE": "4"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    started = [line.split("\0")[:-1] for line in done.stdout.splitlines() if "\0" in line]
    for number, line in enumerate(printed.splitlines()):
        words = [word for word in shlex.split(line) if not re.match(r"[A-Z_]+=", word)][1:]
        words = [word.replace("one:20369", f"one:{20369 + number}") for word in words]
        assert started[number] == words
    assert len(started) == 3 and "--judge" in started[2]


IN_A_CONTAINER = (
    "--image", "registry.example#train:1", "--upstream-on-nodes", "/shared/Megatron-LM",
    "--cpus", "96", "--sbatch", "--account=team", "--sbatch", "--constraint=(a100|h100)&ib",
    "--env", "NCCL_SOCKET_IFNAME=eth0", "--setup", "module load cuda",
)  # fmt: skip


@pytest.mark.parametrize("words", [(), IN_A_CONTAINER], ids=["plain", "container"])
def test_shellcheck_finds_nothing(checkout: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    places = (os.defpath, os.environ.get("PATH", ""), str(Path(sys.executable).parent))
    shellcheck = shutil.which("shellcheck", path=os.pathsep.join(places))
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(
        [shellcheck, "-"], input=script(checkout, tmp_path, *words), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "" and done.returncode == 0


def test_the_sbatch_file_asks_for_whole_nodes_or_for_cores(checkout: Path, tmp_path: Path) -> None:
    text = script(checkout, tmp_path)
    assert "#SBATCH --exclusive\n" in text and "--cpus-per-task" not in text
    assert '\nexport SRUN_CPUS_PER_TASK="$SLURM_CPUS_ON_NODE"\n' in text
    assert "#SBATCH --output=%x-%j.out\n" in text
    text = script(checkout, tmp_path, "--cpus", "96")
    assert "#SBATCH --cpus-per-task=96\n" in text and "--exclusive" not in text
    assert "\nexport SRUN_CPUS_PER_TASK=96\n" in text


def test_the_sbatch_file_of_a_container(checkout: Path, tmp_path: Path) -> None:
    """Its programs and its verdict run in the image, which has the folders that they use."""
    more = [tmp_path / "new" / "evidence", tmp_path / "new" / "traces"]
    words = ("--record", str(more[0]), "--trace", str(more[1]))
    text = script(checkout, tmp_path, *IN_A_CONTAINER, *words)
    head, _, rest = text.partition("set -uo pipefail\n")
    assert head.endswith("#SBATCH --account=team\n#SBATCH --constraint=(a100|h100)&ib\n")
    assert rest.startswith("export NCCL_SOCKET_IFNAME=eth0\nmodule load cuda\n")
    out = (tmp_path / "it's").resolve()
    started = [shlex.split(line) for line in text.splitlines() if line.startswith("srun")]
    assert len(started) == 4
    written = [str(path) for path in (out, *more)]
    (made,) = [shlex.split(line) for line in text.splitlines() if line.startswith("mkdir")]
    assert made == ["mkdir", "-p", *written], "what is mounted has to be there"
    for words in started:
        options = words[: words.index("python")]
        assert options[options.index("--container-image") + 1] == "registry.example#train:1"
        mounts = options[options.index("--container-mounts") + 1]
        assert mounts == ",".join(f"{path}:{path}" for path in (*written, "/shared/Megatron-LM"))
    assert str(checkout) not in text and sys.executable not in text
    assert started[3][1:3] == ["--nodes=1", "--ntasks=1"] and "--judge" in started[3]


PODS = (
    "--claim", "training:/shared", "--upstream-on-nodes", "/shared/Megatron-LM",
)  # fmt: skip
"""Where pods have what this machine has elsewhere."""

HOSTILE = (
    "a\n#SBATCH --uid=0\ntouch PLANTED\n", "$(touch PLANTED)", "`touch PLANTED`",
    "'; touch PLANTED #",
    '"\n        privileged: true\n', "$HOME", "\x1b]0;x\x07\x85\u2028", "{{ job }}", "a: b # c",
)  # fmt: skip
"""Names of folders that a scheduler, YAML or a shell would obey."""


def words_of_bash(script: str, folder: Path) -> list[str]:
    """Run the last line of a job's script with a stand-in for Python; return what it is given."""
    interpreter = folder / "python"
    interpreter.write_text("#!/bin/bash\nprintf '%s\\0' \"$@\"\n")
    interpreter.chmod(0o755)
    line = script.strip().splitlines()[-1]
    line = re.sub(r"^.*?(?=-m ringproof)", f"{interpreter} ", line).removesuffix("; fi")
    done = subprocess.run(["bash", "-c", line], capture_output=True, cwd=folder, check=True)
    return os.fsdecode(done.stdout).split("\0")[:-1]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", ["slurm", "kubernetes"])
def test_no_value_becomes_a_part_of_a_job(
    checkout: Path, tmp_path: Path, name: str, kind: str
) -> None:
    pods = kind == "kubernetes"
    out, engine = (Path("/shared") if pods else tmp_path) / name, f"$(touch PLANTED){name}"
    folder = (*PODS, "--image") if pods else ("--te",)
    words = ("--env", f"A={name}", *folder)
    code, text = smoke(
        checkout, f"--{kind}", "-", "--out", str(out), *words, (name if pods else engine)
    )
    assert code == 0, text
    plain = smoke(checkout, f"--{kind}", "-", "--out", "/shared/o", "--env", "A=b", *folder, "i")[1]
    assert len(text.splitlines()) == len(plain.splitlines())
    if kind == "kubernetes":
        data = YAML(typ="safe").load(text)
        jsonschema.validate(data, JOBSET)
        (job,) = data["spec"]["replicatedJobs"]
        (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
        assert container["image"] == name
        (text,) = container["args"]
    given = words_of_bash(text, tmp_path)
    assert given[given.index("--out") + 1] == str(out)
    assert pods or given[given.index("--te") + 1] == engine
    (line,) = [line for line in text.splitlines() if line.startswith("export A=")]
    printed = subprocess.run(
        ["bash", "-c", f'{line}; printf %s "$A"'], capture_output=True, cwd=tmp_path, check=True
    )
    assert os.fsdecode(printed.stdout) == name
    assert not list(tmp_path.rglob("PLANTED"))


JOBSET = json.loads(Path(__file__).with_name("jobset.schema.json").read_text())


def manifest(checkout: Path, *words: str, feature: str = "hcp") -> tuple[str, dict]:
    more = ("--image", "registry.example/train:1", *PODS, "--out", "/shared/smoke", *words)
    code, text = smoke(checkout, "--kubernetes", "-", *more, feature=feature)
    assert code == 0, text
    assert str(checkout) not in text and sys.executable not in text and str(Path.cwd()) not in text
    return text, YAML(typ="safe").load(text)


@pytest.mark.parametrize("feature", ["hcp", "dynamic-cp", "graphs"])
@pytest.mark.parametrize("nodes", [1, 4])
def test_the_manifest_is_a_jobset(checkout: Path, feature: str, nodes: int) -> None:
    _, data = manifest(checkout, "--nodes", str(nodes), feature=feature)
    jsonschema.validate(data, JOBSET)
    (job,) = data["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    assert spec["parallelism"] == spec["completions"] == nodes
    (container,) = spec["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    (text,) = container["args"]
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    name, head = data["metadata"]["name"], text.splitlines()[0]
    assert head == f"head={name}-{job['name']}-0-0.{name}"
    assert text.count("torch.distributed.run") == 2 and text.count("--judge") == 1


def test_what_a_pod_gets(checkout: Path) -> None:
    words = ("--memory", "512Gi", "--cpus", "96", "--rdma", "rdma/shared_a=1", "--namespace", "n")
    more = ("--queue", "team", "--toleration", "nvidia.com/gpu", "--toleration", "pool=train")
    _, data = manifest(checkout, *words, *more, "--env", "A=b c", "--setup", "ulimit -l unlimited")
    jsonschema.validate(data, JOBSET)
    assert data["metadata"]["namespace"] == "n"
    assert data["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team"}
    (job,) = data["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": "pool", "operator": "Equal", "value": "train"},
    ]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {
        "nvidia.com/gpu": 8, "cpu": 96, "memory": "512Gi", "rdma/shared_a": 1,
    }  # fmt: skip
    assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    assert container["args"][0].startswith("export A='b c'\nulimit -l unlimited\nhead=")


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("nvidia.com/gpu: 8", "nvidia.com/gpu: eight"),
        ("completionMode: Indexed", "completionMode: Index"),
        ("replicatedJobs:", "replicatedJob:"),
        ("restartPolicy: Never", "restartPolicy: Always"),
        ("v1alpha2", "v1alpha1"),
        ('claimName: "training"', 'claim: "training"'),
    ],
)
def test_the_schema_can_fail(checkout: Path, right: str, wrong: str) -> None:
    text, _ = manifest(checkout)
    assert right in text
    data = YAML(typ="safe").load(text.replace(right, wrong))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, JOBSET)


# --- the judgement ---

ENGINE = (
    "[DEBUG    | DotProductAttention]: Running with config={'transformer_engine_version': "
    "'2.20.2', 'context_parallel': True, 'cp_comm_type': '%s', 'cp_size': 4}\n"
)
LEVEL = "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L"
FLAT = (("CONTEXT_PARALLEL_GROUP", (0, 1, 2, 3)),)
LEVELS = (
    (f"{LEVEL}0", (0, 1)),
    (f"{LEVEL}0", (2, 3)),
    (f"{LEVEL}1", (0, 2)),
    (f"{LEVEL}1", (1, 3)),
)


def step(number: int, loss: float) -> str:
    return (
        f" iteration {number:8d}/       3 | consumed samples: {number:8d} | "
        f"lm loss: {loss:.6E} | grad norm: 0.700 | number of nan iterations:   0 |\n"
    )


def census(half: str, rank: int) -> list[str]:
    """The census lines of one rank."""
    return [
        CensusLine(rank, 4, name, "gloo", ranks, ranks.index(rank)).format() + "\n"
        for name, ranks in (FLAT if half == "off" else FLAT + LEVELS)
        if rank in ranks
    ]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Logs of a run in which all is well: four ranks, the last of which logs losses."""
    for half, kind in (("on", "a2a+p2p"), ("off", "p2p")):
        for rank in range(4):
            folder = tmp_path / "logs" / half / "run_x" / "attempt_0" / str(rank)
            folder.mkdir(parents=True)
            steps = [step(number, 6 - number / 10) for number in (1, 2, 3)] if rank == 3 else []
            lines = [ENGINE % kind, *census(half, rank), *steps]
            (folder / "stdout.log").write_text("".join(lines))
            (folder / "stderr.log").write_text("")
    return tmp_path / "logs"


def judged(checkout: Path, logs: Path, *words: str) -> tuple[int, str]:
    return smoke(checkout, *CUDA, "--judge", "--out", str(logs), *words)


def test_logs_of_a_good_run_pass(checkout: Path, logs: Path, tmp_path: Path) -> None:
    code, text = judged(checkout, logs, "--record", str(tmp_path / "evidence"))
    assert code == 0, text
    (path,) = (tmp_path / "evidence").glob("*/smoke-hcp.json")
    record = json.loads(path.read_text())
    assert record["passed"]
    assert [one["verdict"] for one in record["programs"]] == ["hierarchical", "flat"]
    assert [one["within"] for one in record["losses"]] == [True, True]
    assert str(tmp_path) not in path.read_text(), "no folder of this machine in a record"
    a, b = (tmp_path / "it's" / name for name in ("on", "off"))
    for folder in (a, b):
        code, text = judged(checkout, logs, "--trace", str(a.parent))
        assert code == 0 and "compare: " not in text, "one program has no trace"
        folder.mkdir(parents=True)
        (folder / HEAD).touch()
    code, text = judged(checkout, logs, "--trace", str(a.parent))
    assert f"compare: ringproof trace compare {shlex.join((str(a), str(b)))}\n" in text


def test_a_record_names_the_commit_of_a_checkout(checkout: Path, logs: Path, tmp_path) -> None:
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(checkout))
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "one")):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    code, text = judged(checkout, logs, "--json", str(tmp_path / "found.json"))
    assert code == 0, text
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["megatron"] == f"dir:Megatron-LM#commit={commit.stdout.strip()}"


def damaged(logs: Path, half: str, old: str, new: str) -> None:
    files = [path for path in (logs / half).rglob("stdout.log") if old in path.read_text()]
    assert files
    for path in files:
        path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("half", "old", "new", "said"),
    [
        ("on", "a2a+p2p", "p2p", "feature on: expected hierarchical, found flat"),
        ("off", "'p2p'", "'a2a+p2p'", "feature off: "),
        ("on", f"{LEVEL}1", "OTHER", "feature on: "),
        ("on", "5.800000E+00", "5.900000E+00", "loss differs by 1.7e-02 at most"),
        ("on", "grad norm: 0.700", "grad norm: 0.800", "grad_norm differs by"),
        ("off", "lm loss", "loss", "no rank logged a loss"),
    ],
)
def test_a_bad_run_fails(checkout: Path, logs: Path, half, old, new, said) -> None:
    damaged(logs, half, old, new)
    code, text = judged(checkout, logs)
    assert code == 1 and said in text and "failed" in text.splitlines()


def test_logs_that_are_missing_fail(checkout: Path, logs: Path) -> None:
    shutil.rmtree(logs / "off")
    code, text = judged(checkout, logs)
    assert code == 1 and "feature off: there are logs of 0 of the ranks" in text


def test_the_rank_that_failed_first_is_named(tmp_path: Path) -> None:
    for rank, message in ((0, "ValueError: follows"), (1, "AssertionError: the cause")):
        folder = tmp_path / "run" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(f"Traceback:\n{message}\n[rank{rank}] bye\n")
    (tmp_path / LAUNCHER_LOG).write_text(
        "Root Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)\n"
    )
    assert failure(tmp_path) == "rank 1 ended with: AssertionError: the cause"


# --- running ---


@pytest.fixture
def launched(checkout: Path, tmp_path: Path) -> Callable[[str, float], list[str]]:
    """Run a pair whose ``PYTHON -m torch.distributed.run`` is a script; return its problems."""

    def run(body: str, timeout: float) -> list[str]:
        python = tmp_path / "python"
        python.write_text(f"#!/bin/bash\n{body}\n")
        python.chmod(0o755)
        upstream = Upstream(checkout, "git:main", Path(), "", None)
        setting = PairSetting(4, 1, upstream, True, tmp_path / "logs", str(python))
        both = make_pair("hcp", setting, skills=Path("skills"), steps=2)
        return run_pair(both, timeout=timeout, progress=lambda *_: None)

    return run


@pytest.mark.slow
def test_both_programs_run_even_if_one_fails(launched) -> None:
    assert launched("exit 0", 60) == []
    first, second = launched('echo "x.py: error: no such option"; exit 1', 60)
    assert first == "feature on: x.py: error: no such option"
    assert second == "feature off: x.py: error: no such option"


def test_a_program_that_takes_too_long_is_ended(launched, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(launcher, "POLL_SECONDS", 0.1)
    pid, made = tmp_path / "pid", tmp_path / "made"
    problems = launched(f"echo $$ >> {pid}; mktemp -d >> {made}; exec sleep 600", 0.5)
    assert problems == [f"feature {name}: not finished after 0.5 s" for name in ("on", "off")]
    for number in pid.read_text().split():
        assert not Path(f"/proc/{number}").exists()
    assert not any(Path(folder).exists() for folder in made.read_text().split())


def test_too_many_ranks_for_the_machine_are_refused() -> None:
    estimate(8).check(Machine(cores=2, free=4 << 30))
    for machine in (Machine(cores=2, free=1 << 30), Machine(cores=0.25, free=1 << 40)):
        with pytest.raises(InputError, match="--ranks-per-node"):
            estimate(8).check(machine)
