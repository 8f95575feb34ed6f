"""The conformance matrix: its data, its verdicts, and the page and results that ship with it."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from rich.console import Console
from typer.testing import CliRunner

from docs.making import conformance as page
from ringproof.cli.main import app
from ringproof.errors import InputError
from ringproof.rehearsal.conform import cases, matrix, table
from ringproof.rehearsal.conform import record as records
from ringproof.rehearsal.conform.cases import DATA, MODELS
from ringproof.rehearsal.conform.matrix import LIBRARY, judge, training
from ringproof.rehearsal.conform.record import Status
from ringproof.rehearsal.locate.result import Culprit, WrongPlace
from ringproof.rehearsal.protocol.program import Program, Upstream
from ringproof.rehearsal.protocol.reports import (
    AttentionCall,
    Failure,
    Iteration,
    RankReport,
    SendRace,
)
from ringproof.rehearsal.runs.outcome import Outcome
from ringproof.rehearsal.verdict.agreement import TOLERANCES

ROOT = Path(__file__).parents[2]
(CASE,) = cases.chosen(["static-p2p-cp2"])
STEPS = 2
CULPRIT = Culprit(
    "forward", "decoder.layers.0", "output", 1, (0,), (1,), ((0, 3),), (0,), 0.5, 1e-5, "te/a.py:7",
    "", "", (),
)  # fmt: skip
RECORD = records.ConformanceRecord("dev", "dev", "2.20.2", "2", "0", "float32", STEPS, 1.0, ())
UPSTREAM = Upstream(Path(), "dev", Path(), "2.20.2", None)


def _outcome(
    folder: Path, *, loss: float = 5.0, norm: float = 1.0, comm: str = "p2p",
    failure: Failure | None = None,
) -> Outcome:  # fmt: skip
    steps = tuple(Iteration(n, {"lm loss": loss}, norm, 0.1) for n in range(1, STEPS + 1))
    call = AttentionCall(1, "train", 1, 0, comm, (2,), ((0, 1),), "sbhd", 64)
    return Outcome((RankReport(0, None, steps, (), (call,)),), failure, 1.0, 0, folder)


def _verdict(folder: Path, **changed: Any) -> records.CaseResult:
    return judge(CASE, _outcome(folder, **changed), _outcome(folder, comm="none"), STEPS)


@pytest.mark.parametrize("changed", [
    {"loss": 5.0 * (1 + 1e-5)}, {"norm": 1.0 + 1e-5}, {"loss": float("nan")},
    {"norm": float("nan")},
])  # fmt: skip
def test_a_difference_is_seen_in_each_quantity(tmp_path: Path, changed: dict[str, float]) -> None:
    found = _verdict(tmp_path, **changed)
    assert (found.status, found.since) == (Status.DIFFERS, 1)


def test_equal_runs_agree_and_norms_may_differ_by_more_than_losses(tmp_path: Path) -> None:
    assert _verdict(tmp_path).status is Status.AGREES
    allowed = TOLERANCES["float32"]
    within = (1 + 0.9 * allowed.loss, 1 + 0.9 * allowed.grad_norm)
    assert _verdict(tmp_path, loss=5.0 * within[0], norm=within[1]).status is Status.AGREES
    beyond = _verdict(tmp_path, loss=5.0 * within[1])
    assert (beyond.status, beyond.since) == (Status.DIFFERS, 1)


@pytest.mark.parametrize("locates", [True, False])
def test_a_case_that_differs_is_located_in_its_own_layout(tmp_path: Path, locates: bool) -> None:
    (case,) = cases.chosen(["static-p2p-tp2-sp"])
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "pretrain_gpt.py").write_text("")
    upstream = replace(UPSTREAM, megatron=tmp_path / "m")
    place = WrongPlace(CULPRIT, "")

    def run(program: Program, preload: str, folder: Path) -> Outcome:
        return _outcome(folder, loss=5.0 if program.ranks == 1 else 6.0)

    with mock.patch.object(matrix, "locate", return_value=place) as locate:
        whole = matrix.Matrix(upstream, tmp_path / "out", run, STEPS, locates=locates)
        found = whole.run(case, faults=("planted:fault",))
    assert found.status is Status.DIFFERS and locate.called is locates
    if not locates:
        assert (found.located, found.culprit) == ("", None)
        return
    _, program, reference, step, _ = locate.call_args.args
    assert (program.ranks, reference.ranks, step) == (4, 2, 1)
    assert program.faults == ("planted:fault",) and reference.faults == ()
    kept, gone = "--tensor-model-parallel-size 2 --sequence-parallel", "--cp-comm-type p2p"
    texts = " ".join(program.arguments), " ".join(reference.arguments)
    assert [kept in text for text in texts] == [True, True]
    assert [gone in text for text in texts] == [True, False]
    assert "--context-parallel-size 1" in texts[1]
    assert found.located.startswith("decoder.layers.0 is wrong in the forward in step 1")
    assert found.located.endswith("; computed at te/a.py:7")
    known = records.from_json(json.loads(json.dumps({**asdict(RECORD), "cases": [asdict(found)]})))
    assert known.cases[0].culprit == CULPRIT
    stream = io.StringIO()
    table.print_record(known, (), Console(file=stream, width=200))
    assert f"{case.id}: decoder.layers.0 is wrong in the forward" in stream.getvalue()


def test_another_path_is_no_agreement(tmp_path: Path) -> None:
    found = _verdict(tmp_path, comm="a2a")
    assert found.status is Status.OTHER_PATH
    assert "p2p:2" in found.message and "a2a:2" in found.message


def test_a_race_is_no_agreement(tmp_path: Path) -> None:
    outcome = _outcome(tmp_path)
    race = SendRace("released", "a.py:1", "b.py:2", 3)
    raced = replace(outcome, ranks=(replace(outcome.ranks[0], races=(race,)),))
    found = judge(CASE, raced, _outcome(tmp_path, comm="none"), STEPS)
    assert (found.status, found.message) == (Status.RACES, str(race))


@pytest.mark.parametrize(("failure", "status"), [
    (Failure("raised", 0, "AssertionError: no", "megatron/a.py:3"), Status.REFUSED),
    (Failure("raised", 0, "RuntimeError: no stand-in", symbol="x.y"), Status.CANNOT_RUN),
    (Failure("raised", 0, "ModuleNotFoundError: No module named 'z'"), Status.CANNOT_RUN),
    (Failure("hung", 1, "all_reduce in dp"), Status.HUNG),
    (Failure("timeout", 1, "not finished"), Status.HUNG),
])  # fmt: skip
def test_failures_are_told_apart(tmp_path: Path, failure: Failure, status: Status) -> None:
    assert _verdict(tmp_path, failure=failure).status is status


def test_an_unknown_option_is_not_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "rank-0.log").write_text(
        "    self.exit(2, _('%(prog)s: error: %(message)s') % args)\n"
        "pretrain_gpt.py: error: unrecognized arguments: --dynamic-context-parallel\n"
    )
    found = _verdict(tmp_path, failure=Failure("raised", 0, "SystemExit: 2"))
    assert found.status is Status.NOT_OFFERED
    assert "--dynamic-context-parallel" in found.message


def test_without_a_reference_nothing_agrees(tmp_path: Path) -> None:
    assert judge(CASE, _outcome(tmp_path), None, STEPS).status is Status.STARTS
    failed = _outcome(tmp_path, failure=Failure("raised", 0, "ValueError: no"))
    assert judge(CASE, _outcome(tmp_path), failed, STEPS).status is Status.STARTS


def test_the_matrix_is_sound() -> None:
    ids = [case.id for case in cases.CASES]
    assert len(set(ids)) == len(ids) > 60
    for case in cases.CASES:
        assert case.model in MODELS and case.data in DATA and case.ranks > 1, case.id
        assert case.path, f"{case.id} says nothing of the path that it asks for"


def test_the_reference_lacks_only_what_the_case_adds(tmp_path: Path) -> None:
    case_run = training(UPSTREAM, CASE, "pretrain_gpt.py", 5, tmp_path)
    reference = training(UPSTREAM, CASE, "pretrain_gpt.py", 5, tmp_path, reference=True)
    assert reference.ranks == 1
    added = list(case_run.arguments)
    for word in reference.arguments:
        added.remove(word)
    assert added == ["--context-parallel-size", "2", "--cp-comm-type", "p2p"]


def test_json_reaches_a_program_whole(tmp_path: Path) -> None:
    (case,) = cases.chosen(["dynamic-cp-2"])
    words = training(UPSTREAM, case, "x.py", 5, tmp_path).arguments
    found = [word for word in words if word[0] == "{"]
    assert [json.loads(word)["mode"] for word in found] == ["distribution"]


def test_our_own_script_reads_conversations_itself(tmp_path: Path) -> None:
    (case,) = cases.chosen(["sft-p2p-cp2"])
    assert training(UPSTREAM, case, "pretrain_gpt.py", 5, tmp_path).faults
    assert not training(UPSTREAM, case, LIBRARY, 5, tmp_path).faults


@pytest.mark.parametrize(
    ("ids", "groups", "remedy"),
    [(["nothing"], [], "see"), ([], ["nothing"], "see"),
     (["static-p2p-qga"], [], "take static-p2p-gqa, or see")],
)  # fmt: skip
def test_unknown_names_are_refused(ids: list[str], groups: list[str], remedy: str) -> None:
    with pytest.raises(InputError, match=f"does not exist; {remedy} ringproof conform --list$"):
        cases.chosen(ids, groups)


@pytest.mark.parametrize(("words", "said"), [
    (("--json", "/nowhere/a.json"), "'/nowhere/a.json' cannot be written"),
    (("--against", "nothing"), "is not a known upstream"),
    (("--case", "nothing"), "does not exist"),
    ((), "has no megatron/core"),
])  # fmt: skip
def test_bad_input_is_refused_before_anything_runs(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = CliRunner().invoke(app, ["conform", "--upstream", str(tmp_path), *words])
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)


def test_records_keep_everything() -> None:
    known = {case.id for case in (*cases.CASES, *cases.VERL_CASES)}
    for path in sorted((ROOT / page.RECORDS).glob("conform-*.json")):
        record = records.read(path, str(path))
        assert records.from_json(json.loads(json.dumps(records.as_json(record)))) == record
        assert {case.id for case in record.cases} <= known


def test_a_record_is_added_to_case_by_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["static-p2p-cp2", "static-p2p-cp4", "static-a2a-cp2"]
    ran: list[str] = []

    def run(_: matrix.Matrix, case: cases.Case) -> records.CaseResult:
        if len(ran) == 2:
            raise KeyboardInterrupt  # somebody ends it
        ran.append(case.id)
        return records.CaseResult(case.id, Status.AGREES)

    opened = mock.Mock(return_value=replace(UPSTREAM, megatron_name="git:a@b#commit=1"))
    monkeypatch.setattr(matrix.Matrix, "run", run)
    monkeypatch.setattr("ringproof.rehearsal.runs.upstreams.open_upstream", opened)
    path = tmp_path / "record.json"

    def conform(*wanted: str, more: tuple[str, ...] = ("--append", "--name", "mine")) -> Any:
        words = [word for name in wanted for word in ("--case", name)]
        given = ["--upstream", "x", "--force", "--json", str(path), *words, *more]
        return CliRunner().invoke(app, ["conform", *given])

    assert conform(names[0]).exit_code == 0
    opened.return_value = replace(UPSTREAM, megatron_name="fetched:c@d#commit=1")
    assert conform(*names, more=("--append",)).exit_code != 0
    kept = records.read(path, "--json")
    assert ran == names[:2] == list(kept.by_id) and kept.name == "mine"
    assert conform(*names[:2]).exit_code == 0 and len(ran) == 2  # all that is asked is there
    opened.return_value = replace(UPSTREAM, megatron_name="git:a@b#commit=2")
    other = conform(*names)
    assert isinstance(other.exception, InputError) and "commit=2" in str(other.exception)
    assert len(ran) == 2 and records.read(path, "--json") == kept
    whole = conform(*names[:2])  # the record has all cases that are asked for
    assert isinstance(whole.exception, InputError) and "commit=2" in str(whole.exception)
    missing = CliRunner().invoke(app, ["conform", "--json", str(path), "--append"])
    assert isinstance(missing.exception, InputError) and "--upstream" in str(missing.exception)
    assert records.read(path, "--json") == kept
    nowhere = CliRunner().invoke(app, ["conform", "--upstream", "x", "--append"])
    assert isinstance(nowhere.exception, InputError) and "--json" in str(nowhere.exception)


@pytest.mark.parametrize(("name", "engine"), [
    ("dir:Megatron-LM", None), ("git:a@b#commit=1, dir:verl", None),
    ("git:a@b#commit=1", "../TransformerEngine"), ("git:a@b#commit=1", "git:../te@main"),
])  # fmt: skip
def test_what_can_change_under_its_name_is_not_added_to(name: str, engine: str | None) -> None:
    with pytest.raises(InputError, match=r"whether .* is the same"):
        records.check_lasting(replace(RECORD, megatron=name), engine)


@pytest.mark.parametrize("engine", [None, "pip:transformer-engine==2.18.0", "a/te.whl"])
def test_releases_and_commits_are_added_to(engine: str | None) -> None:
    record = replace(RECORD, megatron="git:a@b#commit=1, pip:c==1#sha256=2, mbridge 0.15.1")
    records.check_lasting(record, engine)
    assert records.joined(record, record, "--append").megatron == record.megatron
    with pytest.raises(InputError, match="the record has ringproof '0', and this run '1'"):
        records.joined(record, replace(record, ringproof="1"), "--append")


def test_a_record_of_a_folder_is_refused_before_a_case_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = mock.Mock()
    opened = mock.Mock(return_value=replace(UPSTREAM, megatron_name="dir:Megatron-LM"))
    monkeypatch.setattr(matrix.Matrix, "run", ran)
    monkeypatch.setattr("ringproof.rehearsal.runs.upstreams.open_upstream", opened)
    given = ["--upstream", "x", "--force", "--json", str(tmp_path / "a.json"), "--append"]
    done = CliRunner().invoke(app, ["conform", *given])
    assert isinstance(done.exception, InputError) and "dir:Megatron-LM" in str(done.exception)
    assert not ran.called and not (tmp_path / "a.json").exists()


@pytest.mark.parametrize("content", ["[]", "[" * 100_000, "1" * 5000])
def test_a_file_that_is_no_record_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(InputError, match="not a record"):
        records.read(tmp_path / "x.json", "--x")


def test_page_and_known_results_are_those_of_the_records() -> None:
    found = page.records(ROOT / page.RECORDS)
    assert found
    remedy = "run python -m docs.making.conformance"
    assert page.page(found) == (ROOT / page.PAGE).read_text(), remedy
    assert page.known_results(found) == (ROOT / page.KNOWN).read_text(), remedy


def test_verdicts_are_explained_before_the_table() -> None:
    record = page.records(ROOT / page.RECORDS)[0]
    agreed = next(case for case in record.cases if case.status is Status.AGREES)
    console = Console(file=io.StringIO(), width=100)
    table.print_record(replace(record, cases=(agreed,)), (), console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    meanings = [f"agrees: {Status.AGREES.meaning}"]
    explained = tuple(f"{status.value}" for status in Status)
    assert [line for line in lines if line.startswith(explained) and ": " in line] == meanings
    assert lines[0].endswith("agrees: 1") and lines[1] == meanings[0]


def test_against_fails_only_where_a_case_agreed_before() -> None:
    record = page.records(ROOT / page.RECORDS)[0]
    (same,) = (one for one in records.shipped() if one.name == record.name)
    assert table.failing(record, same) == []
    agreed = next(case for case in record.cases if case.status is Status.AGREES)
    broken = records.CaseResult(agreed.id, Status.REFUSED)
    worse = records.ConformanceRecord(**{**vars(record), "cases": (broken,)})
    assert table.failing(worse, same) == [agreed.id]
    assert table.failing(worse, None) == []
    said = f"Against {same.name} with Transformer Engine {same.engine}:"
    count = len(record.cases)
    assert table.against(record, same) == f"{said} {count} of {count} cases have the same verdict."
    assert table.against(worse, same) == (
        f"{said} 0 of 1 cases have the same verdict. agrees there and refused here: {agreed.id}."
    )


@pytest.mark.parametrize(
    ("statuses", "fault"),
    [
        ([Status.AGREES, Status.CANNOT_RUN], ""),
        ([Status.CANNOT_RUN, Status.REFUSED], "this machine lacks"),
        ([Status.REFUSED, Status.REFUSED], "the cause is in upstream"),
    ],
)
def test_a_matrix_without_an_agreement_says_whose_fault_it_is(
    statuses: list[Status], fault: str
) -> None:
    cases = tuple(
        records.CaseResult(f"case-{number}", status, f"{status.value} for a reason")
        for number, status in enumerate(statuses)
    )
    made = records.ConformanceRecord("dev", "dev", "2.20", "2.13", "0", "float32", 1, 1.0, cases)
    said = table.nothing_agrees(made)
    assert bool(said) == bool(fault) and fault in said
    assert not said or f"case-0: {statuses[0].value}" in said
