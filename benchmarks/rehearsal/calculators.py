"""What two public calculators of memory say of the launches in the record of `theory`.

They are EleutherAI's ``calc_transformer_mem.py`` (https://github.com/EleutherAI/cookbook) and
llm-analysis (https://github.com/cli99/llm-analysis), which run here as they are, from a clone each.
Both know TP, PP and the distributed optimizer, and neither knows CP: they get the part of a
sequence that a rank has. Asked are dense launches of GPT.

    python -m benchmarks.rehearsal.calculators --upstream git:PATH@REF --cookbook PATH
        --llm-analysis PATH --python PYTHON --json FILE

PYTHON has the package ``fire``, which llm-analysis needs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.rehearsal.memory import TESTS
from benchmarks.rehearsal.theory import VOCABULARY, summary
from ringproof.cache import default_cache
from ringproof.files import write_atomically
from ringproof.launch.flags import Flags
from ringproof.launch.reading import Launch, read_test_case
from ringproof.launch.small.layout import layout
from ringproof.programs import run, variables
from ringproof.rehearsal.fit.gpus import GIB
from ringproof.rehearsal.runs.upstreams import open_megatron

SCRIPT = "calc/calc_transformer_mem.py"
ANSWER = re.compile(r"Per-GPU Memory Required for Training: ([\d.]+) GiB")
PEAK = "estimated_peak_memory_per_gpu"
FULL, ATTENTION = "4", "1"
"""What llm-analysis calls recomputation of whole layers, and of attention's products."""
SECONDS = 60.0


def model_of(launch: Launch) -> dict[str, Any]:
    """Return a model as llm-analysis reads it from a file."""
    flags = Flags(launch.arguments)
    hidden, heads = flags.integer("--hidden-size", 0), flags.integer("--num-attention-heads", 1)
    groups = flags.has("--group-query-attention")
    return {
        "name": "model", "num_layers": flags.integer("--num-layers", 0), "n_head": heads,
        "hidden_dim": hidden, "vocab_size": VOCABULARY,
        "max_seq_len": flags.integer("--seq-length", 0),
        "num_key_value_heads": flags.integer("--num-query-groups", 1) if groups else heads,
        "ffn_embed_dim": flags.integer("--ffn-hidden-size", 4 * hidden),
        "mlp_gated_linear_units": flags.has("--swiglu"),
    }  # fmt: skip


def sizes_of(launch: Launch) -> dict[str, Any]:
    """Return what both calculators ask of a launch."""
    flags = Flags(launch.arguments)
    sizes = layout(flags, launch.ranks)
    return {
        "tokens": flags.integer("--seq-length", 0) // sizes.context,
        "batch": flags.integer("--micro-batch-size", 1),
        "stage": int(flags.has("--use-distributed-optimizer")),
        "recompute": flags.one("--recompute-granularity") or "",
        "flash": flags.one("--attention-backend") != "unfused",
        "layout": sizes,
    }


def cookbook_words(launch: Launch) -> list[str]:
    """Return the options of EleutherAI's calculator."""
    model, given = model_of(launch), sizes_of(launch)
    sizes = given["layout"]
    options = {
        "--num-gpus": sizes.world, "-tp": sizes.tensor, "-pp": sizes.pipeline,
        "-z": given["stage"], "-s": given["tokens"], "-b": given["batch"], "-v": VOCABULARY,
        "-hs": model["hidden_dim"], "-a": model["n_head"], "-l": model["num_layers"],
        "-ff": model["ffn_embed_dim"] / model["hidden_dim"],
        "-nl": 3 if model["mlp_gated_linear_units"] else 2,
        "-kv": model["num_key_value_heads"] / model["n_head"],
    }  # fmt: skip
    words = [str(word) for pair in options.items() for word in pair]
    words += ["--partition-activations"] * (sizes.tensor > 1)
    return words + ["--checkpoint-activations"] * (given["recompute"] == "full")


def analysis_words(launch: Launch, model: Path) -> list[str]:
    """Return the options of llm-analysis; ``model`` is a file."""
    given = sizes_of(launch)
    sizes = given["layout"]
    options = {
        "model_name": model, "gpu_name": "h100-sxm-80gb", "log_level": "ERROR",
        "batch_size_per_gpu": given["batch"], "gradient_accumulation_steps": 1,
        "seq_len": given["tokens"], "ds_zero": given["stage"], "tp_size": sizes.tensor,
        "pp_size": sizes.pipeline, "dp_size": sizes.data * sizes.context,
        "sp_size": sizes.tensor if sizes.sequence_parallel else 1,
        "activation_recomputation": {"full": FULL, "selective": ATTENTION}.get(
            given["recompute"], "0"
        ),
        "flash_attn": given["flash"],
    }  # fmt: skip
    return [f"--{name}={value}" for name, value in options.items()]


def answers(given: argparse.Namespace, launch: Launch) -> dict[str, float]:
    """Return the bytes that each calculator says; one that gives none is left out."""
    found: dict[str, float] = {}
    said = _said([sys.executable, str(given.cookbook / SCRIPT), *cookbook_words(launch)], None)
    number = ANSWER.search(said)
    if number is not None:
        found["cookbook"] = float(number[1]) * GIB
    with tempfile.TemporaryDirectory(prefix="calculators-") as folder:
        model = Path(folder) / "model.json"
        model.write_text(json.dumps(model_of(launch)))
        module = [given.python, "-m", "llm_analysis.analysis", "train"]
        said = _said([*module, *analysis_words(launch, model)], given.llm_analysis)
    if "{" in said:
        found["llm_analysis"] = json.loads(said[said.index("{") :])[PEAK]
    return found


def _said(command: Sequence[str], path: Path | None) -> str:
    own = {**variables(), **({"PYTHONPATH": str(path)} if path else {})}
    ended = run(command, seconds=SECONDS, environment=own)
    if ended.code != 0:
        sys.stderr.write(f"{ended.log[-300:]}\n")
    return ended.out


def commit_of(clone: Path) -> str:
    """Return the commit of a clone."""
    ended = run(["git", "-C", str(clone), "rev-parse", "HEAD"], seconds=SECONDS)
    return ended.out.strip()


def main() -> None:
    """Ask both of each dense launch in a record of `theory`, and write them into it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--cookbook", type=Path, required=True)
    parser.add_argument("--llm-analysis", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    record = json.loads(given.json.read_text())
    root, _ = open_megatron(given.upstream, cache=default_cache())
    for name, row in record["rows"].items():
        if row["kind"].startswith("dense"):
            row |= answers(given, read_test_case(root / TESTS / name / "model_config.yaml"))
            sys.stderr.write(f"{name} {row}\n")
    record["calculators"] = {
        "cookbook": commit_of(given.cookbook), "llm_analysis": commit_of(given.llm_analysis)
    }  # fmt: skip
    record["summary"] = summary(record["rows"])
    write_atomically(given.json, json.dumps(record, indent=1) + "\n", field="--json")


if __name__ == "__main__":
    main()
