"""One run over a miniature repository in which every kind of proof has every fate."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from checks.prove.fates import FATES, VERDICTS, populate
from checks.prove.miniature import Miniature, anchor, claim, miniature
from ringproof.prove.results import Verdict
from ringproof.prove.showing import render_report

Run = tuple[int, dict[str, dict[str, Any]], dict[str, Any], Miniature]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    repository = miniature(tmp_path_factory.mktemp("whole"))
    populate(repository)
    return (*repository.verdicts("--record", "evidence", "--jobs", "2"), repository)


@pytest.fixture
def fates(tmp_path: Path) -> Miniature:
    """A repository with the tests of every fate, and no card yet."""
    made = miniature(tmp_path)
    made.file("checks/test_fates.py", FATES)
    return made


def test_every_claim_has_its_verdict(run: Run) -> None:
    _, claims, _, _ = run
    assert {name: item["verdict"] for name, item in claims.items()} == {
        name: verdict for name, (verdict, _) in VERDICTS.items()
    }


@pytest.mark.parametrize("name", VERDICTS)
def test_every_verdict_has_its_reason(run: Run, name: str) -> None:
    reason, words = run[1][name]["reason"], VERDICTS[name][1]
    assert words in reason
    assert bool(words) == bool(reason)


def test_refuted_claims_fail_the_run(run: Run) -> None:
    code, _, whole, _ = run
    assert code == 1
    assert whole["pass"] is False
    assert any("refuted" in problem for problem in whole["problems"])


def test_a_failure_is_told_in_full(run: Run) -> None:
    (proof,) = run[1]["fails"]["proofs"]
    assert "one is not two" in proof["detail"]
    assert "last <words>" in proof["detail"]
    assert str(run[3].root) not in json.dumps(run[2]), "no machine path in a record"


def test_each_test_ran_once_and_no_other(run: Run) -> None:
    lines = (run[3].root / "build/prove/events.jsonl").read_text().splitlines()
    started = [event["id"] for event in map(json.loads, lines) if event["event"] == "start"]
    assert len(started) == len(set(started))
    assert not [name for name in started if "unnamed" in name]


def test_recorded_numbers(run: Run) -> None:
    (proof,) = run[1]["parameters"]["proofs"]
    assert proof["numbers"] == {"max_abs_error": {"min": 1e-15, "max": 2e-15, "count": 2}}
    assert proof["notes"] == {"backend": ["gloo"]}
    assert proof["tests"] == {"passed": 2, "skipped": 1}
    assert run[1]["passes"]["proofs"][0]["numbers"] == {"groups": {"min": 4, "max": 4, "count": 1}}


def test_an_anchor_says_where_it_was_found(run: Run) -> None:
    (proof,) = run[1]["anchored"]["proofs"]
    (place,) = proof["notes"]["place"]
    assert place.startswith("pkg/mod.py:")
    assert proof["notes"]["origin"][0].startswith("pip:demo-upstream==1.0#sha256=")


def test_totals_and_derived_status(run: Run) -> None:
    (record,) = run[2]["skills"]
    counted = [item["verdict"] for item in record["claims"]]
    for verdict in ("proven", "refuted", "unproven", "not-here"):
        assert record["totals"][verdict] == counted.count(verdict) > 0
    assert 0 < record["totals"]["proofs_executed"] < record["totals"]["proofs"]
    found = record["validation_status"]
    assert found == {"good": "proven", "bad": "refuted", "elsewhere": "not-here"}


def test_the_record_is_written_by_environment_class(run: Run) -> None:
    (record,) = run[2]["skills"]
    root = run[3].root
    environment = record["environment"]
    path = root / "evidence" / environment["class"] / "demo.json"
    assert json.loads(path.read_text()) == record
    assert json.loads((root / "build/prove/demo.json").read_text()) == record
    assert environment["cpus"] >= 1
    assert record["started"].endswith("Z")


def test_the_report_needs_nothing_else_and_executes_nothing(run: Run) -> None:
    source = (run[3].root / "build/prove/report.html").read_text()
    tags = re.findall(r"<([a-z][a-z0-9]*)", source)
    assert not re.search(r"<[^>]*\s(src|href|srcset|data)=", source)
    assert not {"script", "link", "img", "iframe"} & set(tags)
    assert "url(" not in source and "@import" not in source
    assert "prefers-color-scheme: dark" in source
    assert tags.count("details") == len(VERDICTS)
    text = html.unescape(re.sub(r"<[^>]*>", "", source))
    assert "A <b>demonstration</b>." in text, "escaped, not rendered"
    for words in ("one is not two", "1e-15 to 2e-15", "needs 8 GPUs", "nobody has a <cluster>"):
        assert words in text


def test_the_heading_counts_and_never_says_passed(fates: Miniature) -> None:
    claims = [claim("fine", "checks/test_fates.py::test_pass"), claim("open", "unproven: no GPU")]
    fates.card(claims=claims)
    heading = "nothing refuted; 2 statements: 1 proven, 1 unproven"
    assert fates.prove().stdout.splitlines()[0] == heading
    page = fates.root / "build/prove/report.html"
    assert f"<h1>ringproof: {heading}</h1>" in page.read_text()
    assert f"<title>ringproof: {heading}</title>" in page.read_text()
    fates.card(claims=[*claims, claim("wrong", "checks/test_fates.py::test_fail")])
    heading = "failed; 3 statements: 1 proven, 1 refuted, 1 unproven"
    assert fates.prove().stdout.splitlines()[0] == heading
    assert f"<h1>ringproof: {heading}</h1>" in page.read_text()


def test_the_heading_counts_what_ran_in_upstreams_code() -> None:
    folder = Path(__file__).parents[2] / "evidence" / "cpu-gloo"
    skills = ("dynamic-context-parallel", "dynamic-cp-cuda-graphs", "hierarchical-context-parallel")
    records = [json.loads((folder / f"{name}.json").read_text()) for name in skills]
    ran = sum(record["about_upstream"]["upstream executed"] for record in records)
    lacking = sum(record["about_upstream"]["none"] for record in records)
    page = render_report(records, (), ())
    heading = page[page.index("<header>") : page.index("</header>")]
    assert f"{ran} executed in upstream&#39;s code" in heading
    assert f"{lacking} not proven here" in heading


def test_verdicts_differ_in_more_than_their_colour(run: Run) -> None:
    """Each has a sign of its own beside its word, in the legend, in the bar and at a statement."""
    assert len({verdict.sign for verdict in Verdict}) == len(Verdict)
    source = (run[3].root / "build/prove/report.html").read_text()
    found = {Verdict(item["verdict"]) for item in run[1].values()}
    assert len(found) > 3
    for verdict in found:
        signed = f"{verdict.sign} {verdict.value}"
        assert source.index(f'<dt class="verdict">{signed}</dt>') < source.index("<section>")
        assert f'{verdict.value}">{verdict.sign}</span>' in source
        assert f'<span class="verdict">{signed}</span>' in source


def test_a_quick_run_leaves_slow_tests_out(fates: Miniature) -> None:
    fates.card(
        claims=[
            claim("slow", "checks/test_fates.py::test_slow"),
            claim("both", "checks/test_fates.py::test_slow", "checks/test_fates.py::test_pass"),
        ]
    )
    code, claims, whole = fates.verdicts("--quick")
    assert code == 0
    assert whole["skills"][0]["quick"] is True
    assert claims["slow"]["verdict"] == "not-here"
    assert claims["slow"]["reason"] == "left out of the quick run"
    assert claims["slow"]["proofs"][0]["tests"] == {"left out": 1}
    assert claims["both"]["verdict"] == "partly"
    assert "left out" in claims["both"]["reason"]


IDLE = {
    "skipped": "checks/test_fates.py::test_skip",
    "slow": "checks/test_fates.py::test_slow",
    "open": "unproven: no machine",
    "elsewhere": "anchor:repository",
}


def test_a_card_with_no_executed_proof_fails(fates: Miniature) -> None:
    anchors = [anchor("repository", upstream="lm")]
    for name, proof in IDLE.items():
        fates.card(name, anchors=anchors, claims=[claim(name, proof)])
    fates.card("busy", claims=[claim("fine", "checks/test_fates.py::test_pass")])
    code, claims, whole = fates.verdicts("--quick")
    assert code == 1
    assert whole["problems"] == [f"{name}: no proof was executed" for name in sorted(IDLE)]
    assert all(claims[name]["verdict"] in ("not-here", "unproven") for name in IDLE)
    assert fates.prove("--quick", "busy").returncode == 0


def test_the_table_goes_to_stdout_and_progress_to_stderr(fates: Miniature) -> None:
    fates.card(claims=[claim("fine", "checks/test_fates.py::test_pass")])
    done = fates.prove("--verbose")
    assert done.returncode == 0
    assert "fine" in done.stdout and "1 proven" in done.stdout
    assert "tests: 1/1 done" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_conftest_is_no_verdict(tmp_path: Path) -> None:
    repository = miniature(tmp_path)
    repository.file("checks/conftest.py", "import no_such_module\n")
    repository.file("checks/test_fates.py", FATES)
    repository.card(claims=[claim("fine", "checks/test_fates.py::test_pass")])
    code, claims, whole = repository.verdicts()
    assert code == 1
    assert claims["fine"]["verdict"] == "not-here"
    assert "no_such_module" in claims["fine"]["reason"]
    assert any("not every test was run" in problem for problem in whole["problems"])


def test_without_pytest_nothing_is_refuted_and_the_remedy_is_named(
    fates: Miniature, monkeypatch: pytest.MonkeyPatch
) -> None:
    fates.card(claims=[claim("fine", "checks/test_fates.py::test_pass")])
    monkeypatch.setattr("ringproof.prove.suite.find_spec", lambda _: None)
    code, claims, whole = fates.verdicts()
    assert code == 1
    assert claims["fine"]["verdict"] == "not-here"
    remedy = "pytest is not installed; run: pip install '.[prove]' in a checkout of ringproof"
    assert whole["problems"][-1] == f"not every test was run: {remedy}"


@pytest.mark.slow
def test_what_took_longest_starts_first(tmp_path: Path) -> None:
    """By the records; without one, and with one that cannot be read, files start by name."""
    repository = miniature(tmp_path)
    for name in "ab":
        repository.file(f"checks/test_{name}.py", f"def test_{name}(): pass\n")
    repository.card(claims=[claim(name, f"checks/test_{name}.py") for name in "ab"])

    def started() -> list[str]:
        assert repository.prove().returncode == 0
        lines = (tmp_path / "build/prove/events.jsonl").read_text().splitlines()
        events = map(json.loads, lines)
        return [event["id"][-1] for event in events if event["event"] == "start"]

    assert started() == ["a", "b"]
    times = {"a": 1.0, "b": 9.0}
    proofs = [{"id": f"checks/test_{name}.py", "seconds": took} for name, took in times.items()]
    record = json.dumps({"claims": [{"proofs": proofs}]})
    repository.file("evidence/cpu/demo.json", record)
    assert started() == ["b", "a"]
    repository.file("evidence/cpu/demo.json", record[:-1])
    assert started() == ["a", "b"]
