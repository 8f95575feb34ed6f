"""Tables of pages, made from the records of benchmarks: ``python -m benchmarks.tables``.

A page has a table between ``<!-- table: NAME -->`` and ``<!-- end -->``. A check compares the
pages with the records, so that neither can change alone.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.rehearsal.steps import launches
from ringproof.cli.plan_memory import MeasuredMemory, memory_of
from ringproof.cli.plan_options import PlanOptions
from ringproof.files import write_atomically

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
_BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_LONGEST = 140
"""Characters of a message that a table shows."""

_MESSAGE = 240
STATIC_CLUSTER = "p2p, 64 GPUs"
"""Static CP on the GPUs on which budgets are measured."""
BANKS = ("qwen3-tiny, planned on 4, layer", "moonlight-tiny, CP 1, 2, 4, 8, attn")
"""Rows of the record of trainings by graphs whose banks a table shows by CP size."""
_DIFFERENCES = ("largest_relative_difference", "grad_norm")
_SHRUNK = (
    "context_parallel_size", "tensor_model_parallel_size", "pipeline_model_parallel_size",
    "expert_model_parallel_size", "num_layers", "hidden_size", "num_moe_experts", "seq_length",
    "data-parallel size", "ppo_max_token_len_per_gpu", "max_token_len_per_gpu", "train_batch_size",
)  # fmt: skip
"""Settings of which a table says how they were shrunk."""

_SKILL = "../skills/{}/references/{}.md"
COMM_TYPES = _SKILL.format("hierarchical-context-parallel", "choosing-comm-type")
BUDGETS = _SKILL.format("dynamic-context-parallel", "choosing")
CAPACITY = _SKILL.format("dynamic-cp-cuda-graphs", "capacity")

Record = Mapping[str, Any]


def parity_table(record: Record) -> str:
    """Each training by graphs against the same without."""
    head = (
        *("model", "layout", "scope", "ranks", "largest difference"),
        *("microbatches replayed, by CP size", "eager", "seconds eager", "seconds replayed"),
        "against unpadded packs",
    )
    return _table(head, map(_parity_cells, record["rows"]))


def _parity_cells(row: Record) -> tuple[str, ...]:
    never = [size for size in row["sizes"] if not row["replays"].get(str(size))]
    replays = ", ".join(f"{size}: {count:,}" for size, count in row["replays"].items())
    return (
        row["preset"],
        _layout(row),
        row["scope"],
        str(row["ranks"]),
        "0" if row["bitwise"] and row["finite"] else f"**{_difference(row['difference'])}**",
        f"{replays}; **never {', '.join(map(str, never))}**" if never else replays,
        f"**{row['eager']}**" if row["eager"] else "0",
        f"{row['seconds']['static']:.0f}",
        f"{row['seconds']['bank']:.0f}",
        f"{row['off_difference']:.0e}",
    )


def control_table(record: Record) -> str:
    """What the same comparison says where a replay is broken."""
    head = ("what is broken", "largest difference", "first in step", "loss, first to last step")
    rows = (
        (
            control["broken"],
            _difference(control["difference"]),
            str(control["first_step"]) if control["seen"] else "**not seen**",
            " to ".join(f"{loss:.2f}" for loss in control["losses"]),
        )
        for control in record["controls"]
    )
    return _table(head, rows)


def memory_table(record: Record) -> str:
    """What was captured, and the memory that it holds."""
    head = (
        *("model", "layout", "scope", "slots", "entries a rank", "captured in"),
        *("MiB of an entry, by CP size", "MiB of a rank"),
    )
    return _table(head, map(_memory_cells, record["rows"]))


def _memory_cells(row: Record) -> tuple[str, ...]:
    graphs = row["graphs"]
    held = (f"{size}: {_mebibytes(of['per_entry'])}" for size, of in graphs["memory"].items())
    return (
        row["preset"],
        _layout(row),
        row["scope"],
        str(graphs["slots"]),
        str(graphs["entries_of_rank"]),
        f"{graphs['capture_seconds']:.1f} s",
        ", ".join(held),
        _mebibytes(graphs["total"]),
    )


def matrix_table(record: Record) -> str:
    """Largest relative difference of every layout, a column for each model."""
    rows = record["rows"]
    models = list(dict.fromkeys((row["preset"], row["mtp"]) for row in rows))
    names = [f"{preset}{f' +MTP {mtp}' if mtp else ''}" for preset, mtp in models]
    cells = {(row["spread"], row["preset"], row["mtp"]): row for row in rows}
    ranks = {row["spread"]: str(row["ranks"]) for row in rows}

    def cell(row: Record) -> str:
        found = row["difference"]
        if found is None:
            return f"**{row['error'] or 'not a number'}**"
        text = f"{found:.0e}" if found else "0"
        return text if found <= record["tolerance"] else f"**{text}**"

    return _table(
        ("layout", "ranks", *names),
        ((name, ranks[name], *(cell(cells[(name, *model)]) for model in models)) for name in ranks),
    )


def schedule_table(record: Record) -> str:
    """What each schedule costs."""
    head = ("schedule", "tokens/s", "rounds from to", "padding share", "mean CP size")
    rows = (
        (
            name,
            f"{record['speed'][name]['tokens_per_second']:,.0f}",
            f"{record['speed'][name]['slowest']:,.0f} to {record['speed'][name]['fastest']:,.0f}",
            f"{curve['padding_fraction']:.1%}",
            f"{curve['mean_cp_size']:.2f}",
            f"{curve['microbatches']:.1f}",
        )
        for name, curve in record["curves"].items()
    )
    return _table((*head, "microbatches"), rows)


def rate_table(record: Record) -> str:
    """How many faults each check sees, the weakest first; the first four look at a training."""
    faults = record["faults"]
    trained = [row for row in faults if row["falls"] is not None]
    steps, loose = record["steps"], f"{record['loose']:.0e}".replace("e-0", "e-")
    checks: tuple[tuple[str, Sequence[Record], Callable[[Record], bool]], ...] = (
        (f"the loss is a number and falls within {steps} steps", trained, lambda r: not r["falls"]),
        (f"the loss is that of one rank within {loose}", trained, lambda r: not r["close"]),
        ("the loss is that of one rank within 1e-9", trained, lambda r: bool(r["loss"])),
        (
            "loss and gradient norm are those of one rank within 1e-9",
            trained,
            lambda r: bool(r["loss"] or r["grad_norm"]),
        ),
        ("all proofs", faults, lambda r: r["detected"]),
    )
    rows = []
    for name, met, sees in checks:
        missed = [row["id"] for row in met if not sees(row)]
        shown = ", ".join(f"`{name}`" for name in missed) if len(missed) <= 4 else str(len(missed))
        rows.append((name, str(len(met)), str(len(met) - len(missed)), shown or "none"))
    return _table(("check", "faults", "seen", "missed"), rows)


def fault_table(record: Record) -> str:
    """Every fault: what is broken, what it looks like, what sees it."""
    head = (
        *("fault", "what is broken", "stands for", "proof that turns red", "what it looks like"),
        "loss falls anyway",
    )
    rows = (
        (
            f"`{row['id']}`",
            row["broken"],
            row["stands_for"],
            row["proof"] if row["detected"] else f"**{row['proof']}: missed**",
            _symptom(row),
            {None: "", True: "yes", False: "no"}[row["falls"]],
        )
        for row in record["faults"]
    )
    return _table(head, rows)


def _symptom(row: Record) -> str:
    """What a fault looks like, in a few words."""
    if row["said"]:
        text = row["said"].split("; every")[0].split(" (got")[0]
        return f"stops: {text[:_LONGEST]}{'…' if len(text) > _LONGEST else ''}"
    if row["problem"]:
        return str(row["problem"])
    if row["proof"] == "evaluation":
        return f"evaluation {row['evaluation']:.0e} off, training as it should be"
    if row["proof"] == "checkpoint":
        return f"the resumed loss is up to {row['resumed']:.0e} off"
    both = (("loss", row["loss"]), ("norm", row["grad_norm"]))
    return "; ".join(f"{name} {_course(found)}" for name, found in both if found)


def _course(found: Record) -> str:
    """How a quantity goes off, and how far."""
    if found["there"] is None:
        return f"is NaN from step {found['first']}"
    kind = {"jump": " (jump)", "drift": " (drift)"}.get(found["kind"], "")
    then = "then NaN" if found["largest"] is None else f"at most {found['largest']:.0e}"
    return f"{found['there']:.0e} off in step {found['first']}{kind}, {then}"


def setup_table(record: Record) -> str:
    """The same runs without a fault."""
    rows = []
    for name, clean in record["clean"].items():
        count = sum(row["setup"] == name for row in record["faults"])
        difference = "only planned" if name.startswith("plans") else f"{clean['largest']:.0e}"
        said = f"**red: {', '.join(clean['red'])}**" if clean["red"] else difference
        rows.append((name, str(count), said))
    return _table(("run", "faults", "largest difference without a fault"), rows)


def _layout(row: Record) -> str:
    """The name of a layout, with the CP sizes where the name does not have them."""
    sizes = ", ".join(map(str, row["sizes"]))
    return row["name"] if "CP" in row["name"] else f"{row['name']}, CP {sizes}"


def _difference(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.0e}"


def _mebibytes(count: float) -> str:
    return f"{count / 2**20:.2f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def gpu_attention_table(record: Record) -> str:
    """Errors of CP attention over NCCL, by communication type and precision."""
    head = "type", "precision", "out", "LSE", "dq", "dk", "dv"
    rows = (
        (
            " ".join([one["comm_type"], "x".join(map(str, one["hierarchical_sizes"]))]).strip(),
            one["dtype"] if one["pass"] else f"**{one['dtype']}: beyond its limit**",
            *(
                f"{one['max_abs_error'][name]:.0e}".replace("0e+00", "0")
                for name in ("out", "lse", "dq", "dk", "dv")
            ),
        )
        for one in sorted(record["attention"], key=lambda one: str(one["dtype"]), reverse=True)
    )
    return _table(head, rows)


def cuda_table(record: Record) -> str:
    """A layer on a GPU: as it is, at capacity, and replayed."""
    head = (
        *("width", "rows", "plain", "eager", "replay", "load"),
        *("plain over replay", "eager over replay", "private memory of a graph"),
    )
    return _table(head, map(_cuda_cells, record["layers"]))


def _cuda_cells(layer: Record) -> tuple[str, ...]:
    times = [
        layer["milliseconds"][way]["device"][1] for way in ("plain", "eager", "replay", "load")
    ]
    private = sum(entry["private"] for entry in layer["memory"])
    return (
        f"{layer['hidden']:,}",
        f"{layer['rows']:,}",
        *(f"{time:.1f}" for time in times),
        f"{layer['plain / replay']:.2f}",
        f"{layer['eager / replay']:.2f}" + ("" if layer["same bits"] else " **other bits**"),
        f"{private / 1e6:,.0f} MB",
    )


def located_table(record: Record) -> str:
    """What a rehearsal names first for each planted defect."""
    head = "planted", "program", "phase planted", "phase and module named", "line", "verdict"
    return _table(head, map(_located_cells, record["rows"]))


def _located_cells(row: Record) -> tuple[str, ...]:
    module = f" `{row['module']}`" if row["module"] else ""
    file = row["computed_at"].rpartition("/")[2]
    right = row["verdict"] in ("exact", "phase", "control")
    verdict = row["verdict"] if right else f"**{row['verdict']}**"
    name, _, release = row["name"].partition("@")
    version = row["megatron"].partition("#")[0].removeprefix("pip:").replace("==", " ")
    training = f"{row['training']}, {version}" if release else row["training"]
    named = f"{row['phase']}{module}" or "-"
    return f"`{name}`", training, row["planted"], named, f"`{file}`" if file else "", verdict


def located_counts(record: Record) -> str:
    """How many planted defects are located."""
    meaning = {
        "exact": "the phase and the module in which it is planted",
        "phase": "the phase of one that is in no module of its own",
        "near": "only one of the two",
        "other": "neither",
        "none": "nothing is named",
        "not run": "",
    }
    counts = record["summary"] | {"not run": len(record["not_run"])}
    rows = ((name, said, str(counts.get(name, 0))) for name, said in meaning.items())
    return _table(("verdict", "what is named", "defects"), rows)


def published_table(record: Record) -> str:
    """What `ringproof fit` says of configurations that others published for 80 GB."""
    head = "configuration", "known", "verdict", "peak", "recorded there", "seconds"
    return _table(head, map(_published_cells, record["rows"].items()))


def _published_cells(entry: tuple[str, Record]) -> tuple[str, ...]:
    name, row = entry
    there = f"{row['peak_gb']} GB ({row['error']:+.1%})" if "peak_gb" in row else ""
    verdict = "fits" if row["fits"] else "does not fit"
    return (
        name,
        row["outcome"],
        verdict,
        f"{row['peak'] / 1e9:.1f} GB",
        there,
        f"{row['seconds']:.0f}",
    )


def frameworks_table(record: Record) -> str:
    """What a rehearsal says of launch scripts that verl and Megatron-Bridge publish."""
    head = "script", "ranks", "verdict", "loss", "gradient norm", "seconds", "shrunk"
    return _table(head, map(_framework_cells, record["launches"].items()))


def _framework_cells(entry: tuple[str, Record]) -> tuple[str, ...]:
    path, row = entry
    given = f", `{' '.join(row['set'])}`" if row["set"] else ""
    said = row.get("headline") or row["message"].partition("error: ")[2]
    said = f"{said[:_MESSAGE]}…" if len(said) > _MESSAGE else said
    before, after = row.get("ranks", (None, None))
    found = map(row.get, _DIFFERENCES)
    numbers = (f"{name.rpartition('.')[2]} {one}" for name, one in row.get("shrunk", {}).items())
    return (
        f"{row['of']}: `{path}`{given}",
        f"{before} to {after}" if after else "",
        said.replace("|", "/"),
        *("" if one is None else f"{one:.0e}".replace("0e+00", "0") for one in found),
        f"{row['seconds']:.0f}",
        ", ".join(one for one in dict.fromkeys(numbers) if one.startswith(_SHRUNK)),
    )


def steps_table(record: Record) -> str:
    """What a rehearsal says of the training steps of frameworks."""
    head = "framework", "training", "ranks", "verdict", "loss", "gradient norm", "seconds", "memory"
    left = [name for name in launches() if name not in record["rows"]]
    said = f"\nNot recorded: {'; '.join(left)}.\n" if left else ""
    return _table(head, map(_step_cells, record["rows"].items())) + said


def _step_cells(entry: tuple[str, Record]) -> tuple[str, ...]:
    name, row = entry
    framework, _, training = name.partition(": ")
    first, memory = row.get("first"), row.get("memory_bytes")
    verdict = row.get("headline") or row.get("message", "")
    if row.get("agrees"):
        verdict = "agrees"
    elif first and first["value"] is not None:
        values = f"{first['value']:.4g} against {first['reference']:.4g}"
        verdict = f"**differs**: {first['name']} of step {first['iteration']} {values}"
    found = map(row.get, _DIFFERENCES)
    return (
        framework,
        training,
        str(row["ranks"]),
        verdict[:_MESSAGE].replace("|", "/"),
        *("" if one is None else f"{one:.0e}".replace("0e+00", "0") for one in found),
        f"{row['seconds']:.0f}",
        f"{memory / (1 << 30):.1f} GiB" if memory else "",
    )


def degrees_table(record: Record) -> str:
    """What each type of CP communication costs on the same launch."""
    rows, layers = record["rows"], record["layers"]
    least = rows["p2p"]["peak"]

    def cells(entry: tuple[str, Record]) -> tuple[str, ...]:
        name, row = entry
        more = (row["peak"] - least) / layers / (1 << 20)
        sent = (f"{row[one] / 1e9:.1f}" for one in ("exchanged", "other"))
        return f"`{name}`", f"{row['peak'] / 1e9:.2f}", f"{more:+.1f}", *sent

    head = (
        "type",
        "peak, GB",
        "against `p2p`, MiB a layer",
        "leaving by all-to-alls, GB",
        "otherwise, GB",
    )
    shown = ((name, row) for name, row in rows.items() if name != STATIC_CLUSTER)
    return _table(head, map(cells, shown))


def planned_from_others(budgets: Record, budget: str) -> tuple[MeasuredMemory, int]:
    """Return what a plan knows from all budgets but one, and the peak that it says of that one."""
    others = [{"fit": row["fit"]} for at, row in budgets.items() if at != budget]
    memory = memory_of({"choices": others}, PlanOptions(memory_from="fit", tp=2, ranks=32))
    context = budgets[budget]["fit"]["estimates"]["context"]["bytes"]
    return memory, memory.needed(budgets[budget]["tokens"]) - context


def budgets_table(record: Record) -> str:
    """What Dynamic CP's budget costs, and what `plan` says of it from the other budgets."""
    static = record["rows"][STATIC_CLUSTER]
    rows = [("static CP 32", f"{static['tokens']:,}", f"{static['peak'] / 1e9:.2f}", "", "")]
    for budget, row in record["budgets"].items():
        memory, planned = planned_from_others(record["budgets"], budget)
        said = f"{planned / 1e9:.2f} ({planned / row['peak'] - 1:+.2%})"
        cells = f"{row['tokens']:,}", f"{row['peak'] / 1e9:.2f}", said, f"{memory.budget:,}"
        rows.append((f"{int(budget):,}", *cells))
    head = "budget", "fullest microbatch, tokens", "peak, GB", "planned from the others, GB"
    return _table((*head, "planned largest budget on an H100"), rows)


def banks_table(record: Record) -> str:
    """What each CP size of a bank of graphs holds on a rank, in MiB."""
    head = "model", "layout", "rows of all sizes", "CP size", "microbatches' tensors"
    cells = (
        (
            *(row["preset"], _layout(row), _mebibytes(row["graphs"]["rows"]), size),
            *(_mebibytes(held[one]) for one in ("inputs", "gradients", "private")),
        )
        for row in record["rows"]
        if row["id"] in BANKS
        for size, held in row["graphs"]["memory"].items()
    )
    return _table((*head, "output gradients", "pool, without reuse"), cells)


def fit_costs_table(record: Record) -> str:
    """What `ringproof fit` takes of this machine."""
    head = (
        *("launch", "processor, s", "wall clock, s", "load before", "cores that others took"),
        *("memory here, GB", "ranks measured"),
    )
    rows = (
        (
            name,
            f"{row['processor']:.0f}",
            f"{row['seconds']:.0f}",
            f"{row['load']:.0f}",
            f"{row['others']:.1f} of {record['environment']['cores']}",
            f"{row['memory'] / 1e9:.1f}",
            str(sum(row["measured"])) if row["measured"] else row["said"],
        )
        for name, row in record["rows"].items()
    )
    return _table(head, rows)


def theory_table(record: Record) -> str:
    """How far formulas are off on the recorded launches."""
    names = {
        "megatron": "Megatron-LM's `report_theoretical_memory`, executed",
        "scores": "model states of ZeRO with activations of Korthikanti et al., scores kept",
        "no_scores": "the same without the scores of attention",
        "cookbook": "EleutherAI's `calc_transformer_mem.py`, executed",
        "llm_analysis": "llm-analysis, executed",
    }
    found = record["summary"]["all"]
    rows = (
        (
            said,
            str(found[name]["rows"]),
            *(f"{found[name][one]:.0%}" for one in ("median", "p95", "largest")),
        )
        for name, said in names.items()
    )
    return _table(("formula", "launches", "median", "95%", "largest"), rows)


def kinds_table(record: Record) -> str:
    """What is named for defects of other kinds."""
    head = "planted", "what is wrong", "phase planted", "phase and module named", "line", "verdict"
    return _table(head, map(_kind_cells, record["rows"]))


def _kind_cells(row: Record) -> tuple[str, ...]:
    name, _, _, named, line, verdict = _located_cells(row)
    reported = f" ({row['reported']})" if row["reported"] else ""
    race = ", a race or chance" if row["said"].startswith("a race") else ""
    named = (
        f"nothing is {'named' if row['planted'] else 'wrong'}" if not row["phase"] else named + race
    )
    return name, row["breaks"] + reported, row["planted"] or "none", named, line, verdict


def agreeing_table(record: Record) -> str:
    """In how many trainings without a defect something is named, by section and seed."""
    head = (
        *("section", "seed", "no culprit", "false alarms", "differs", "not compared"),
        "compared without some tensors",
    )
    groups: dict[tuple[str, str], list[Record]] = {}
    for row in record["rows"]:
        groups.setdefault((row["group"], row["name"].rpartition(" ")[2]), []).append(row)

    def cells(rows: Sequence[Record]) -> tuple[str, ...]:
        count = Counter(row["verdict"] for row in rows)
        kinds = (count[kind] for kind in ("agrees", "alarm", "differs", "not run"))
        return tuple(map(str, (*kinds, sum(bool(row["left_out"]) for row in rows))))

    ordered = sorted(groups.items(), key=lambda one: one[0][1])
    table = [(*place, *cells(rows)) for place, rows in ordered]
    return _table(head, (*table, ("all", "", *cells(record["rows"]))))


def cost_table(record: Record) -> str:
    """How long a run with its reference takes, with and without the search, and what it writes."""
    head = (
        *("planted", "program", "ranks", "seconds without the search", "with it", "times"),
        "MB of traces",
    )
    rows = (
        (
            *(f"`{row['name']}`", row["training"], str(row["ranks"])),
            f"{row['plain_seconds']:.0f}",
            f"{row['located_seconds']:.0f}",
            f"{row['located_seconds'] / row['plain_seconds']:.1f}",
            f"{row['trace_bytes'] / 1e6:.0f}",
        )
        for row in record["rows"]
    )
    return _table(head, rows)


def traced_table(record: Record) -> str:
    """What is named in launches and cases of verl and Megatron-Bridge."""

    def cells(row: Record) -> tuple[str, ...]:
        named = f"{row['phase']} `{row['module']}`" if row["module"] else row["phase"]
        lines = (row["computed_at"], row["applied_at"].partition(" ")[0])
        at = ", ".join(f"`{line.rpartition('/')[2]}`" for line in lines if line)
        agrees = f"nothing, of {row['compared']:,} tensors"
        right = row["verdict"] in ("exact", "phase", "agrees")
        verdict = row["verdict"] if right else f"**{row['verdict']}**"
        wrong = row["breaks"] or "nothing"
        return f"`{row['name']}`", wrong, row["planted"], named or agrees, at, verdict

    head = "launch or case", "what is wrong", "phase", "phase and module named", "line", "verdict"
    return _table(head, map(cells, record["rows"]))


def traced_cost_table(record: Record) -> str:
    """What a rehearsal of a framework costs with traces and without."""
    head = "launch", "CPU seconds without traces", "with them", "times", "MB of traces"
    rows = (
        (
            f"`{row['name']}`",
            f"{row['plain_cpu_seconds']:.0f}",
            f"{row['traced_cpu_seconds']:.0f}",
            f"{row['traced_cpu_seconds'] / row['plain_cpu_seconds']:.1f}",
            f"{row['trace_bytes'] / 1e6:.0f}",
        )
        for row in record["rows"]
        if "trace_bytes" in row
    )
    return _table(head, rows)


def forks_table(record: Record) -> str:
    """What a rehearsal of each fork said, and how long it took."""
    head = (
        *("fork", "what is wrong", "seconds", "exit code", "headline of the launch"),
        *("located", "what was located", "verdict"),
    )
    rows = (
        (
            f"`{row['name']}`",
            row["breaks"],
            f"{row['seconds']:.0f}",
            str(row["exit"]),
            row["headline"],
            "by `--against` alone" if row["against"] else "in the launch",
            row["said"],
            row["verdict"],
        )
        for row in record["rows"]
    )
    return _table(head, rows)


def strangers_table(record: Record) -> str:
    """What a rehearsal said of forks that others made, before and after it was mended by them."""

    def named(one: Record) -> str:
        place = f" `{one['module']}`" if one["module"] else ""
        lines = (one["computed_at"], one["applied_at"].partition(" ")[0])
        at = ", ".join(f"`{line.rpartition('/')[2]}`" for line in lines if line)
        found = f"{one['phase']}{place}" + (f", {at}" if at else "")
        return found or ("seen, not located" if "not right" in one["headline"] else "not known")

    head = (
        *("fork", "what is wrong", "phase planted", "minutes with the tool"),
        *("named then", "verdict then", "named now", "verdict now"),
    )
    rows = (
        (
            *(f"`{row['name']}`", row["breaks"], row["planted"]),
            str(row["minutes_with_the_tool"]),
            *(named(row["before"]), row["before"]["verdict"]),
            *(named(row["after"]), row["after"]["verdict"]),
        )
        for row in record["strangers"]
    )
    return _table(head, rows)


TABLES: Mapping[str, tuple[str, str, Callable[[Record], str]]] = MappingProxyType(
    {
        "parity": ("graphs.md", "graphs/results/parity.json", parity_table),
        "controls": ("graphs.md", "graphs/results/parity.json", control_table),
        "memory": ("graphs.md", "graphs/results/parity.json", memory_table),
        "gpu_attention": ("gpu.md", "gpu/results/h200.json", gpu_attention_table),
        "cuda": ("gpu.md", "graphs/results/cuda.json", cuda_table),
        "matrix": ("training.md", "training/results/matrix.json", matrix_table),
        "schedules": ("training.md", "training/results/convergence.json", schedule_table),
        "located_counts": ("locate.md", "rehearsal/results/located.json", located_counts),
        "located": ("locate.md", "rehearsal/results/located.json", located_table),
        "kinds": ("locate.md", "rehearsal/results/kinds.json", kinds_table),
        "agreeing": ("locate.md", "rehearsal/results/agreeing.json", agreeing_table),
        "cost": ("locate.md", "rehearsal/results/cost.json", cost_table),
        "traced": ("locate.md", "rehearsal/results/traced.json", traced_table),
        "traced_cost": ("locate.md", "rehearsal/results/traced.json", traced_cost_table),
        "forks": ("locate.md", "rehearsal/results/forks.json", forks_table),
        "strangers": ("locate.md", "rehearsal/results/forks.json", strangers_table),
        "degrees": (COMM_TYPES, "rehearsal/results/degrees.json", degrees_table),
        "budgets": (BUDGETS, "rehearsal/results/degrees.json", budgets_table),
        "banks": (CAPACITY, "graphs/results/parity.json", banks_table),
        "published": ("fit.md", "rehearsal/results/published.json", published_table),
        "fit_costs": ("fit.md", "rehearsal/results/fit-costs.json", fit_costs_table),
        "frameworks": ("rehearsal-verl.md", "rehearsal/results/frameworks.json", frameworks_table),
        "steps": ("rehearsal.md", "rehearsal/results/steps.json", steps_table),
        "theory": ("fit.md", "rehearsal/results/theory.json", theory_table),
        "rates": ("faults.md", "training/results/faults.json", rate_table),
        "faults": ("faults.md", "training/results/faults.json", fault_table),
        "setups": ("faults.md", "training/results/faults.json", setup_table),
    }
)
"""Page, seen from ``docs``, record, and what makes the table, by its name."""
PAGES = tuple(dict.fromkeys(page for page, _, _ in TABLES.values()))


def read_record(path: str) -> dict[str, Any]:
    """Read a record of a benchmark by its path below ``benchmarks``."""
    content: dict[str, Any] = json.loads((BENCHMARKS / path).read_text(encoding="utf-8"))
    return content


def filled(text: str, read: Callable[[str], Record] = read_record) -> str:
    """Return a page with every table as the records have it."""

    def block(found: re.Match[str]) -> str:
        _, path, make = TABLES[found[2]]
        return f"{found[1]}\n{make(read(path))}\n{found[3]}"

    return _BLOCK.sub(block, text)


def main() -> int:
    """Rewrite the pages."""
    for page in PAGES:
        path = ROOT / "docs" / page
        write_atomically(path, filled(path.read_text(encoding="utf-8")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
