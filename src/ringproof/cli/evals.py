"""``ringproof evals``: how much do the skills help an assistant?"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console

from ringproof.cards import find_cards
from ringproof.cli.options import JsonOption, KnowingFolderOption, seconds
from ringproof.cli.output import write_result
from ringproof.errors import InputError
from ringproof.evals.cases import EvalCase, load_cases
from ringproof.evals.running import Answer, Arm, ask_all, mean_scores
from ringproof.findings.printable import showable

app = typer.Typer(help="Ask an assistant the evals of the skills.", no_args_is_help=True)

_Skills = Annotated[
    list[str] | None,
    typer.Option(
        "--skill", metavar="NAME", help="Only the cases of this skill. Can be given several times."
    ),
]
_Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="ID", help="Only this case. Can be given several times."),
]


@app.command("list")
def list_command(
    *,
    skills: _Skills = None,
    folder: KnowingFolderOption = Path("skills"),
    json_path: JsonOption = "",
) -> None:
    """List the cases: skill, id, and the number of expectations and files.

    Example: ringproof evals list
    """
    cases = [case for case, _ in _cases(folder, skills, None)]
    data = {"version": 1, "cases": [_row(case) for case in cases]}
    write_result(data, map(_listed, cases), json_path)


def _listed(case: EvalCase) -> str:
    files = f"  with {', '.join(case.files)}" if case.files else ""
    return f"{case.skill:<31}{case.id:<34}{len(case.expectations):>2}{files}"


def _row(case: EvalCase) -> dict[str, Any]:
    return {
        "skill": case.skill,
        "id": case.id,
        "negative": case.negative,
        "prompt": case.prompt,
        "expected": case.expected,
        "expectations": [one.text for one in case.expectations],
        "files": list(case.files),
    }


@app.command()
def run(
    *,
    command: Annotated[
        str,
        typer.Option(
            "--cmd",
            metavar="COMMAND",
            help="Command line of an assistant. {prompt} in it is replaced by the prompt; without "
            "{prompt}, the prompt is its standard input. It is not run by a shell.",
        ),
    ],
    skills: _Skills = None,
    only: _Only = None,
    without: Annotated[
        bool, typer.Option("--without", help="Ask everything a second time without the skill.")
    ] = False,
    repeat: Annotated[int, typer.Option(min=1, help="Number of times to ask everything.")] = 1,
    timeout: Annotated[float, seconds("Longest time of an answer, in s.")] = 600,
    folder: KnowingFolderOption = Path("skills"),
    json_path: JsonOption = "",
) -> None:
    """Ask an assistant every prompt, in an empty folder with the skill, and score its answers.

    The skill lies below .claude/skills and .agents/skills, without its evals; files that a prompt
    speaks of lie beside it. An answer is the standard output. A score is the share of expectations
    that the answer meets, by patterns; an answer that says nothing of what is expected has 0.

    Exit code 1: the command failed or ran too long for some prompts.
    Example: ringproof evals run --cmd 'claude -p {prompt}' --without
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(
            "--cmd", command, f"cannot be split: {error}", "close the quote"
        ) from error
    if not words:
        raise InputError("--cmd", command, "names no program", "give a command line")
    arms = [
        Arm(case, skill)
        for _ in range(repeat)
        for case, place in _cases(folder, skills, only)
        for skill in ((place, None) if without else (place,))
    ]
    answers = tuple(ask_all(arms, words, timeout, Console(stderr=True)))
    data = {"version": 1, "command": command, **_data(answers)}
    good = all(answer.state == "answered" for answer in answers)
    write_result(data, _lines(answers), json_path, good=good)


def _cases(
    folder: Path, skills: Sequence[str] | None, only: Sequence[str] | None
) -> list[tuple[EvalCase, Path]]:
    """The chosen cases, each with the folder of its skill."""
    found = [
        (case, folder / name)
        for name, card in find_cards(folder, tuple(skills or ())).items()
        for case in load_cases(folder / name, card)
    ]
    known = {case.id for case, _ in found}
    for name in only or ():
        if name not in known:
            raise InputError("--only", name, "is not a case", "see `ringproof evals list`")
    return [pair for pair in found if not only or pair[0].id in only]


def _data(answers: Sequence[Answer]) -> dict[str, Any]:
    rows = [
        {
            "skill": answer.arm.case.skill,
            "id": answer.arm.case.id,
            "arm": answer.arm.name,
            "state": answer.state,
            "score": answer.score,
            "seconds": round(answer.seconds, 3),
            "expectations": [
                {"text": one.text, "passed": met}  # as in the ecosystem's grading.json
                for one, met in zip(answer.arm.case.expectations, answer.met, strict=True)
            ],
            "answer": answer.text,
            "errors": answer.errors,
        }
        for answer in answers
    ]
    means = [
        {"skill": skill, "arm": arm, "score": score}
        for (skill, arm), score in mean_scores(answers).items()
    ]
    return {"answers": rows, "means": means}


def _lines(answers: Sequence[Answer]) -> list[str]:
    """One line for each answer, then one for each skill and arm."""
    made = [f"{'skill':<31}{'case':<34}{'skill there':<13}{'met':>5}{'seconds':>9}"]
    for answer in answers:
        case = answer.arm.case
        met = f"{sum(answer.met)}/{len(answer.met)}"
        state = "" if answer.state == "answered" else f"  {answer.state}"
        if state and answer.errors:
            state += f": {showable(answer.errors.strip().splitlines()[-1], 80)}"
        there = "yes" if answer.arm.skill else "no"
        made.append(
            f"{case.skill:<31}{case.id:<34}{there:<13}{met:>5}{answer.seconds:>9.1f}{state}"
        )
    for (skill, arm), score in mean_scores(answers).items():
        own = [a for a in answers if (a.arm.case.skill, a.arm.name) == (skill, arm)]
        whole = sum(all(answer.met) for answer in own)
        seconds = median(answer.seconds for answer in own)
        made.append(
            f"{skill}, {arm} the skill: {score:.0%} of the expectations, {whole} of {len(own)} "
            f"answers meet all; median {seconds:.1f} s"
        )
    return made
