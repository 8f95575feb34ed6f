"""``ringproof logs diagnose``: each symptom is found in the logs of eight ranks."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from checks.logs.diagnose_run import CASES, Case, files, mixed, progress, traceback, watchdog
from ringproof.harness.cards.loading import find_cards, load_card
from ringproof.harness.logs.diagnosis.index import KINDS, load_index
from ringproof.harness.logs.diagnosis.report import names
from ringproof.harness.logs.diagnosis.verdict import Diagnosis, diagnose

INDEX = load_index()
ROOT = Path(__file__).parents[2]
LAYOUTS = ("torch", "srun", "files", "stamped")
ELSEWHERE = {"graph-options", "killed", "crashed", "nan-line", "usage"}  # test_diagnose_lines.py
OF_OTHER_KINDS = {"hang", "follow-up", "silent"}
NO_MESSAGE = {
    "zero-loss", "misaligned-group", "config-accepts-anything", "padding-for-low-precision",
}  # fmt: skip


def found(report: Diagnosis) -> tuple[str, str]:
    """Symptom and ranks of the first cause."""
    cause = report.cause
    if cause is None:
        return "nothing", ""
    return cause.symptom.id if cause.symptom else "unknown", names(cause.who)


def test_the_index_names_statements_that_exist() -> None:
    known = set()
    for skill, path in find_cards(ROOT / "skills").items():
        card = load_card(path)
        for part in (card.pitfalls, card.constraints, card.claims):
            known |= {f"{skill}/{item.id}" for item in part}
    symptoms = INDEX.symptoms
    assert {name for one in symptoms for name in one.statements} <= known
    assert {one.kind for one in symptoms} == set(KINDS)
    assert len({one.id for one in symptoms}) == len(symptoms)
    assert all(one.cause.endswith((".", "CP.")) and one.remedy.endswith(".") for one in symptoms)


def test_each_symptom_has_a_case() -> None:
    expected = {one.id for one in INDEX.symptoms if one.kind not in OF_OTHER_KINDS}
    assert {case.symptom for case in CASES} == expected - ELSEWHERE


def test_each_message_of_a_pitfall_is_in_the_index() -> None:
    """A pitfall whose symptom is an exception has an entry."""
    named = {name for one in INDEX.symptoms for name in one.statements}
    missing = set()
    for skill, path in find_cards(ROOT / "skills").items():
        for pitfall in load_card(path).pitfalls:
            printed = re.search(r"\b[A-Z]\w+(Error|Exception)\b", pitfall.symptom)
            if printed and f"{skill}/{pitfall.id}" not in named:
                missing.add(pitfall.id)
    assert missing <= NO_MESSAGE


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES, ids=[f"{case.symptom}-{n}" for n, case in enumerate(CASES)])
def test_a_symptom_of_one_rank_is_found(tmp_path: Path, case: Case, layout: str) -> None:
    report = diagnose(files(tmp_path, case, layout), index=INDEX)
    assert found(report) == (case.symptom, "rank 3")
    cause = report.cause
    assert cause is not None and cause.symptom is not None
    assert next(iter(cause.symptom.statements), "") == case.statement
    assert case.error in cause.first.text
    assert not report.others
    waiting = {one.symptom.id for one in report.follow_ups if one.symptom}
    assert waiting == {"hang-dynamic", "lost-peer"}


@pytest.mark.parametrize("case", CASES, ids=[f"{case.symptom}-{n}" for n, case in enumerate(CASES)])
def test_a_mention_is_no_symptom(tmp_path: Path, case: Case) -> None:
    """The words in prose, in arguments and in an exception that training survived count as none."""
    said = f"{case.error}: {case.message}"
    lines = [
        *progress(1, 3),
        f"- `{said}` is what one sees", f"| {said} | use dev |", f"# {said}", f"note={said!r}",
        f"  remark ............... {said}", f"WARNING: ignored {said}", f"> {said}",
        "print('Traceback (most recent call last):')",
        said,
        *traceback(case),
        *progress(4, 20),
    ]  # fmt: skip
    path = tmp_path / "run.log"
    path.write_text("\n".join(lines) + "\n")
    report = diagnose([str(path)], index=INDEX)
    assert found(report) == ("nothing", "")
    assert not report.found
    assert [one.symptom.id for one in report.earlier if one.symptom] == [case.symptom]


def mutated(lines: list[str], choice: random.Random) -> list[str]:
    """Damage a log as pipes, terminals and truncation do."""
    out = list(lines)
    for _ in range(choice.randint(1, 6)):
        at = choice.randrange(len(out))
        kind = choice.randrange(8)
        line = out[at]
        if kind == 0:
            del out[at]
        elif kind == 1:
            out.insert(at, line)
        elif kind == 2:
            out[at] = line[: choice.randrange(len(line) + 1)]
        elif kind == 3:
            out[at] = f"\x1b[3{choice.randrange(8)}m{line}\x1b[0m"
        elif kind == 4:
            place = choice.randrange(len(line) + 1)
            out[at] = f"{line[:place]}{chr(choice.randrange(0x3000))}{line[place:]}"
        elif kind == 5:
            out[at] = f"{line}\r"
        elif kind == 6:
            out.insert(at, choice.choice(("", "INFO: saving", "x" * 3000, "\x00\x00", "Error: ")))
        else:
            other = choice.randrange(len(out))
            out[at], out[other] = out[other], out[at]
        out = out or [""]
    return out


def damaged(folder: Path, seed: int) -> tuple[str, str]:
    """Diagnose a damaged log; return the symptom that it had and the one that was found."""
    choice = random.Random(seed)
    case = choice.choice(CASES)
    lines: dict[int, list[str]] = {3: traceback(case), 7: progress(1, 3)}
    lines |= {rank: [watchdog(rank)] for rank in (0, 1, 2, 4, 5)}
    text = "\n".join(mutated(list(mixed(lines, "[rank{}]: ")), choice)) + "\n"
    path = folder / "damaged.log"
    path.write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
    return case.symptom, found(diagnose([str(path)], index=INDEX))[0]


STATEMENTS = {one.id: set(one.statements) for one in INDEX.symptoms}


def wrong(pair: tuple[str, str]) -> bool:
    """Whether another fault's statements are named; a fault that lost its words may be general."""
    case, other = pair
    named = STATEMENTS.get(other, set())
    hang = other.startswith("hang")  # the timeouts are there, even where the exception is not
    return case != other and bool(named) and not hang and named.isdisjoint(STATEMENTS[case])


def test_damaged_logs_mislead_rarely(tmp_path: Path) -> None:
    pairs = [damaged(tmp_path, seed) for seed in range(400)]
    assert sum(map(wrong, pairs)) <= 4
    assert sum(one == other for one, other in pairs) >= 280
