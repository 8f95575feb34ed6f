"""List what the command line accepts and what it can answer, one feature a line.

``python -m checks.house.features > checks/house/features.txt`` writes the list. A line of the file
that the code does not give is a lost or renamed feature; the other way round, it is a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

import typer

from ringproof.anchors import check as anchors
from ringproof.anchors import drift, fences
from ringproof.cli.main import app
from ringproof.findings.finding import Rule
from ringproof.lint.rules import RULES

ALL_RULES: tuple[Rule, ...] = (*RULES, *anchors.RULES, *fences.RULES, *drift.RULES)
"""Every rule of every command."""


def features() -> Iterator[str]:
    """All features, as lines."""
    root = typer.main.get_command(app)
    yield from command_features(root, typer.Context(root, info_name="ringproof"))
    for topic, values in (*rules(), *verdicts(), *choices()):
        yield from (f"{topic}: {value}" for value in values)


def command_features(command: Any, context: Any) -> Iterator[str]:
    """The command itself, its arguments and options, and its subcommands."""
    path = context.command_path
    yield f"command {path}"
    hints = get_type_hints(command.callback) if command.callback else {}
    for parameter in command.params:
        if parameter.name != "help":
            kind = hints.get(parameter.name, bool)
            yield f"{parameter.param_type_name} {path} {parameter_text(parameter, kind)}"
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        inner = command.get_command(context, name)
        yield from command_features(inner, typer.Context(inner, parent=context, info_name=name))


def parameter_text(parameter: Any, annotation: Any) -> str:
    """Spellings, kind and default of an argument or option."""
    if parameter.param_type_name == "argument":
        spelling = parameter.name
    else:
        spelling = "/".join((*parameter.opts, *parameter.secondary_opts))
    kind = " ".join(kind_text(part) for part in parts(annotation))
    if parameter.required:
        return f"{spelling} ({kind}, required)"
    default = parameter.default
    default = default.value if isinstance(default, Enum) else default
    return f"{spelling} ({kind}, default {'none' if default in (None, '') else default})"


def parts(annotation: Any) -> list[Any]:
    """``list`` and ``str`` for ``list[str] | None``."""
    inner = [part for part in get_args(annotation) if part is not type(None)]
    if get_origin(annotation) is list:
        return [list, *inner]
    return [leaf for part in inner for leaf in parts(part)] if inner else [annotation]


def kind_text(kind: Any) -> str:
    """The values of an enumeration, or the name of a type."""
    return "|".join(values(kind)) if issubclass(kind, Enum) else kind.__name__


def rules() -> Iterator[tuple[str, Iterable[str]]]:
    """Rules whose findings are reported."""
    yield "rule", [f"{rule.id} {rule.name} {rule.level}" for rule in ALL_RULES]


def verdicts() -> Iterator[tuple[str, Iterable[str]]]:
    """Statuses and verdicts, by what they are given to."""
    from ringproof.anchors import mentions, quotes
    from ringproof.anchors.drift import DriftKind
    from ringproof.anchors.resolve import AnchorStatus
    from ringproof.cards.proof import ProofKind
    from ringproof.cards.statements import StatementKind
    from ringproof.logs.groups import decision, observed
    from ringproof.logs.training.kind import Kind
    from ringproof.prove import judging
    from ringproof.prove import results as proofs
    from ringproof.rehearsal.conform.record import Status

    yield "status of an anchor", values(AnchorStatus)
    yield "change of an anchor between versions", values(DriftKind)
    yield "status of a mention of code", get_args(quotes.Status)
    yield "kind of a mention of code", get_args(mentions.Kind)
    yield "kind of a statement", values(StatementKind)
    yield "kind of a proof", values(ProofKind)
    yield "verdict on a statement", values(proofs.Verdict)
    yield "state of a proof", values(proofs.ProofState)
    yield "state of a test", values(judging.TEST_STATES)
    yield "verdict on a run's groups", values(decision.ParallelKind)
    yield "kind of evidence on a run's groups", values(decision.Basis)
    yield "evidence on one group", [strength.name.lower() for strength in observed.Strength]
    yield "kind of a difference of two trainings", values(Kind)
    yield "status of a conformance case", values(Status)


def choices() -> Iterator[tuple[str, Iterable[str]]]:
    """Names that an option of free text accepts, and the cases and blocks that have a name."""
    from checks.faults.trials import FAULTS
    from ringproof.logs.training.formats import FORMATS
    from ringproof.reference.attention.names import COMM_TYPES, KERNEL_NAMES
    from ringproof.reference.graphs.names import NAMES, OVERFLOWS, SCOPES
    from ringproof.reference.model.config import PRESETS
    from ringproof.reference.packing.partition import PARTITIONS
    from ringproof.reference.planning import hardware, shapes
    from ringproof.reference.training.options import GRAPHS, SCHEDULES
    from ringproof.rehearsal.conform.cases import CASES, VERL_CASES
    from ringproof.render.kinds import KINDS

    yield "format of a training log", FORMATS
    yield "generated block", KINDS
    yield "CP communication", COMM_TYPES
    yield "attention kernel", KERNEL_NAMES
    yield "backend of graphs", NAMES
    yield "overflow of graphs", OVERFLOWS
    yield "scope of graphs", SCOPES
    yield "use of graphs", GRAPHS
    yield "preset of a model", PRESETS
    yield "shape of a model to plan for", [shape.name for shape in shapes.SHAPES]
    yield "hardware to plan for", [preset.name for preset in hardware.PRESETS]
    yield "partition", PARTITIONS
    yield "schedule", SCHEDULES
    yield "conformance case", [case.id for case in (*CASES, *VERL_CASES)]
    yield "fault planted in upstream", [fault.name for fault in FAULTS]


def values(kinds: Iterable[Enum]) -> list[str]:
    """The values of an enumeration."""
    return [kind.value for kind in kinds]


if __name__ == "__main__":
    print("\n".join(sorted(features())))
