"""Training lines of other frameworks are read by their shape, by ``logs parity`` and ``diagnose``.

The lines are made up in the form that the code of each framework prints.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from checks.logs.diagnose_run import traceback
from checks.logs.test_diagnose import UNKNOWN, cause, diagnose
from ringproof.logs.diagnosis.output import headline
from ringproof.logs.training.compare import Comparison, compare_logs
from ringproof.logs.training.output import readings
from ringproof.logs.training.quantities import JUDGED, Columns
from ringproof.logs.training.ratios import ratio_meaning
from ringproof.logs.training.read import read_log

Line = Callable[[int, float, float], str]


def torchtitan(step: int, loss: float, norm: float) -> str:
    colours = f"\x1b[31mstep: {step:2}  \x1b[32mloss: {loss:8.5f}  \x1b[38;2;180;60;0mgrad_norm: "
    return f"[rank0]:[titan] 2026-01-02 11:50:01,918 - root - INFO - {colours}{norm:7.4f}\x1b[39m"


def automodel(step: int, loss: float, norm: float) -> str:
    return (
        f"2026-01-02 14:43:56 | INFO | root | step {step} | epoch 0 | loss {loss:.4f} | grad_norm "
        f"{norm:.4f} | lr 1.00e-05 | mem 12.73 GiB | tps 6570.48(821.31/gpu) | num_label_tokens 16"
    )


def verl(step: int, loss: float, norm: float) -> str:
    return (
        f"\x1b[36m(TaskRunner pid=15)\x1b[0m step:{step} - global_seqlen/min:1309 - "
        f"actor/entropy_loss:0.3 - actor/kl_loss:0.001 - actor/pg_loss:{loss} - "
        f"actor/grad_norm:{norm} - critic/vf_loss:0.5 - timing_s/step:212.1"
    )


def verl_sft(step: int, loss: float, norm: float) -> str:
    return f"step:{step} - train/loss:{loss} - train/grad_norm:{norm} - train/lr(1e-3):0.01"


def verl_file(step: int, loss: float, norm: float) -> str:
    return json.dumps({"step": step, "data": {"train/loss": loss, "train/grad_norm": norm}})


def swift(step: int, loss: float, norm: float) -> str:
    return (
        f"{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': 1e-05, 'memory(GiB)': 61.2, "
        f"'elapsed_time': '12s', 'iteration': '{step}/100', 'remaining_time': '19m'}}"
    )


def swift_file(step: int, loss: float, norm: float) -> str:
    return json.dumps({"loss": loss, "grad_norm": norm, "iteration": f"{step}/100", "epoch": 0.1})


def swift_steps(step: int, loss: float, norm: float) -> str:
    return json.dumps({"loss": loss, "grad_norm": norm, "global_step/max_steps": f"{step}/100"})


def transformers(_: int, loss: float, norm: float) -> str:
    return f"{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': 1e-05, 'epoch': 0.1}}"


def factory_file(step: int, loss: float, norm: float) -> str:
    return json.dumps({"current_steps": step, "total_steps": 9, "loss": loss, "grad_norm": norm})


def slime(step: int, loss: float, norm: float) -> str:
    return (
        f"(TrainRayActor pid=77) [2026-01-02 11:50:01] model.py:400 - step {step}: "
        f"{{'train/loss': {loss}, 'train/pg_clipfrac': 0.0, 'train/grad_norm': {norm}, "
        f"'train/step': {step}}}"
    )


def nemo_rl(step: int, loss: float, norm: float) -> str:
    title = "=" * 25
    return f"{title} Step {step}/100 {title}\n  • Loss: {loss:.4f}\n  • Grad Norm: {norm:.4f}"


def bridge(step: int, loss: float, norm: float) -> str:
    return (
        f" [2026-01-02 11:18:01.0] iteration {step:8d}/     100 | consumed samples:            8 | "
        f"elapsed time per iteration (ms): 370.3 | learning rate: 1.000000E-05 | lm loss: "
        f"{loss:.6E} | loss scale: 1.0 | grad norm: {norm:.3f} | number of skipped iterations:   "
        f"0 | number of nan iterations:   0 |"
    )


def nemo(step: int, loss: float, norm: float) -> str:
    return (
        f"Training epoch 0, iteration {step}/99 | lr: 1.499e-07 | global_batch_size: 8 | "
        f"global_step: {step} | reduced_train_loss: {loss:.4g} | grad_norm: {norm:.4g} | "
        "train_step_timing in s: 7.12 | consumed_samples: 8"
    )


def lightning(step: int, loss: float, norm: float) -> str:
    bar = f"Epoch 0:  10%|#         | {step}/100 [00:10<01:30,  1.00it/s, v_num=0, "
    return f"{bar}train_loss={loss:.3f}, grad_norm={norm:.3f}]"


def deepspeed(step: int, loss: float, norm: float) -> str:
    return f"steps: {step} loss: {loss:.4f} grad_norm: {norm:.4f} iter time (s): 0.5 lr: 1e-05"


def transformers_numbered(step: int, loss: float, norm: float) -> str:
    return f"[{1700 + step}] {transformers(step, loss, norm)}"


def factory_console(step: int, loss: float, norm: float) -> str:
    logger = "[INFO|2026-01-02 10:00:00] llamafactory.train.callbacks:143 >> "
    return f"{logger}{{'loss': {loss}, 'learning_rate': 2e-06, 'epoch': 0.1, 'grad_norm': {norm}}}"


def openrlhf(step: int, loss: float, norm: float) -> str:
    bar = f"Train step of epoch 0:  10%|#  | {step}/100 [00:10<01:30,  1.36s/it, "
    return f"{bar}gpt_loss={loss:.4f}, lr=1e-6, grad_norm={norm:.4f}]"


def torchtune(step: int, loss: float, norm: float) -> str:
    bar = f"10%|#  | {step}/100 [00:10<01:30,  1.36s/it]"
    return f"1|{step}|Loss: {loss:.6f}: grad_norm={norm:.6f} {bar}"


def lightning_evaluated(step: int, loss: float, norm: float) -> str:
    return lightning(step, loss, norm).replace("v_num=0", "v_num=0, val_loss=9.500")


def fairseq(step: int, loss: float, norm: float) -> str:
    return (
        f"2026-01-02 02:51:05 | INFO | train_inner | epoch 002:    {step} / 1975 loss={loss:.4f}, "
        f"nll_loss={loss - 1:.4f}, ups=2.1, num_updates={step}, lr=10, gnorm={norm:.4f}, clip=0"
    )


def smoothed(step: int, loss: float, norm: float) -> str:
    return (
        f"[01:58:53.220553] Epoch: [0]  [{step:4}/1504]  eta: 1:00:00  lr: 0.000030  closs: "
        f"{loss:.4f} ({loss:.4f})  grad_norm: {norm:.4f} ({norm:.4f})  time: 4.5784  data: 0.0002"
    )


SHAPES: tuple[Line, ...] = (
    transformers_numbered, factory_console, openrlhf, torchtune, lightning_evaluated, fairseq,
    smoothed,
    torchtitan, automodel, verl, verl_sft, verl_file, swift, swift_file, swift_steps, transformers,
    factory_file, slime, nemo_rl, bridge, nemo, lightning, deepspeed,
)  # fmt: skip


def written(path: Path, line: Line, factor: float = 1.0, nan_from: int = 99) -> Path:
    """Write a training of 30 steps between other lines."""
    lines = [] if line(1, 1.0, 1.0).startswith('{"') else ["INFO: loading 3 shards", "NCCL 2.27"]
    for step in range(1, 31):
        loss = math.nan if step >= nan_from else 3.0 - step / 50 + (step % 3) / 100
        lines.append(line(step, loss, math.nan if step >= nan_from else factor * (2.5 - loss / 10)))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def compared(one: Path, other: Path) -> Comparison:
    a, b = (read_log(str(path), role, Columns()) for path, role in ((one, "A"), (other, "B")))
    return compare_logs(a, b, JUDGED, 1e-9)


@pytest.mark.parametrize("line", SHAPES, ids=lambda line: line.__name__)
def test_both_curves_of_each_shape_are_read(tmp_path: Path, line: Line) -> None:
    result = compared(written(tmp_path / "a", line), written(tmp_path / "b", line, factor=2.0))
    assert {one.name: list(one.steps) for one in result.series} == {
        "loss": list(range(1, 31)), "grad_norm": list(range(1, 31)),
    }  # fmt: skip
    loss, norm = result.named("loss"), result.named("grad_norm")
    assert loss is not None
    assert loss.within
    assert norm is not None
    assert norm.judgement.ratio is not None
    assert norm.judgement.ratio.ratio == pytest.approx(2, rel=1e-2)
    assert any("2 can be the number of ranks" in text for text in readings(result))


@pytest.mark.parametrize("line", SHAPES, ids=lambda line: line.__name__)
def test_a_loss_that_is_not_a_number_is_found_in_each_shape(tmp_path: Path, line: Line) -> None:
    report = diagnose([str(written(tmp_path / "run.log", line, nan_from=12))])
    assert report.found
    assert "12" in next(str(one.step) for one in report.curves if one.kind == "loss-not-finite")
    assert not diagnose([str(written(tmp_path / "run.log", line))]).found


@pytest.mark.parametrize("line", [torchtitan, verl, automodel], ids=lambda line: line.__name__)
def test_an_error_that_training_survived_is_past_in_other_shapes(
    tmp_path: Path, line: Line
) -> None:
    whole = written(tmp_path / "run.log", line).read_text().splitlines()
    (tmp_path / "run.log").write_text("\n".join([*whole[:9], *traceback(UNKNOWN), *whole[9:]]))
    report = diagnose([str(tmp_path / "run.log")])
    assert cause(report)[0] == "nothing"
    assert len(report.earlier) == 1
    (tmp_path / "run.log").write_text("\n".join([*whole, *traceback(UNKNOWN)]))
    assert cause(diagnose([str(tmp_path / "run.log")]))[0] == UNKNOWN.error


def test_other_lines_are_no_training(tmp_path: Path) -> None:
    lines = [
        "step 1 of 3: downloading",
        "validation loss 2.5 at step 7",
        "eval step:7 - val/loss:2.5",
        "loss_fn: cross_entropy, steps: many",
        "iteration time 7",
    ]
    path = tmp_path / "run.log"
    path.write_text("\n".join(lines))
    assert not diagnose([str(path)]).curves
    with pytest.raises(Exception, match="no training steps"):
        read_log(str(path), "A", Columns())


def test_gradients_that_were_never_divided_are_named(tmp_path: Path) -> None:
    whole = written(tmp_path / "a", bridge)
    tokens = tmp_path / "b"
    lines = [bridge(step, 2.6, 5000.0 + 700 * (step % 7)) for step in range(1, 31)]
    tokens.write_text("\n".join(lines) + "\n")
    text = "\n".join(readings(compared(whole, tokens)))
    assert "sums over tokens that are not divided" in text
    report = diagnose([str(tokens)])
    assert [one.kind for one in report.curves] == ["grad-norm-undivided"]
    assert "calculate_per_token_loss" in headline(report)
    assert not diagnose([str(whole)]).found


@pytest.mark.parametrize(
    ("ratio", "said"),
    [(8123.0, "number of tokens"), (4.0, "; 4 can"), (1.0, ""), (1.4, ""), (math.nan, "")],
)
def test_what_a_ratio_means(ratio: float, said: str) -> None:
    assert said in ratio_meaning(ratio)
    assert bool(said) == bool(ratio_meaning(ratio))
