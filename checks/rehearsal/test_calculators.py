"""Public calculators are asked for the launches of the record, and errors follow from answers."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.rehearsal.calculators import SCRIPT, analysis_words, answers, cookbook_words
from benchmarks.rehearsal.theory import summary
from benchmarks.tables import read_record
from ringproof.launch.reading import Launch
from ringproof.rehearsal.fit.gpus import GIB

OPTIONS = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --swiglu "
    "--group-query-attention --num-query-groups 8 --seq-length 8192 --micro-batch-size 2 "
    "--tensor-model-parallel-size 2 --context-parallel-size 4 --sequence-parallel "
    "--use-distributed-optimizer --recompute-granularity full"
)
LAUNCH = Launch("pretrain_gpt.py", tuple(OPTIONS.split()), {}, 2, 8, "a.sh:1")


def test_a_calculator_gets_the_launch_and_the_part_of_a_sequence_that_a_rank_has() -> None:
    words = " ".join(cookbook_words(LAUNCH))
    assert words.startswith("--num-gpus 16 -tp 2 -pp 1 -z 1 -s 2048 -b 2 ")
    assert words.endswith("-ff 3.5 -nl 3 -kv 0.25 --partition-activations --checkpoint-activations")
    words = " ".join(analysis_words(LAUNCH, Path("m")))
    assert "--seq_len=2048 --ds_zero=1 --tp_size=2 --pp_size=1 --dp_size=8 --sp_size=2 " in words
    assert words.endswith("--activation_recomputation=4 --flash_attn=True")


def test_an_answer_is_read_and_none_is_left_out(tmp_path: Path) -> None:
    script = tmp_path / SCRIPT
    script.parent.mkdir()
    script.write_text("print('Per-GPU Memory Required for Training: 2.50 GiB')")
    package = tmp_path / "llm_analysis"
    package.mkdir()
    (package / "__init__.py").touch()
    module = package / "analysis.py"
    module.write_text(
        "import json, sys\n"
        "model = json.load(open(sys.argv[2].partition('=')[2]))\n"
        "print('a warning', json.dumps({'estimated_peak_memory_per_gpu': model['n_head']}))\n"
    )
    given = argparse.Namespace(cookbook=tmp_path, llm_analysis=tmp_path, python=sys.executable)
    assert answers(given, LAUNCH) == {"cookbook": 2.5 * GIB, "llm_analysis": 32}
    module.write_text("raise SystemExit(1)")
    assert answers(given, LAUNCH) == {"cookbook": 2.5 * GIB}


def test_the_errors_of_the_record_follow_from_its_rows() -> None:
    record = read_record("rehearsal/results/theory.json")
    assert json.loads(json.dumps(summary(record["rows"]))) == record["summary"]
    found = record["summary"]["all"]
    assert all(found[name]["rows"] > 50 for name in (*record["calculators"], "megatron"))
    row = next(iter(record["rows"].values()))
    changed = {**record["rows"], "another": {**row, "megatron": 100 * row["recorded_peak"]}}
    assert summary(changed)["all"]["megatron"]["largest"] == 99
