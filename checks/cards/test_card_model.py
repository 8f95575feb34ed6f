"""The card model: what a card may say, and how a wrong one is refused."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from ruamel.yaml import YAML

from checks.running import one_line
from ringproof.cards import (
    PackageUpstream,
    ProofKind,
    StatementKind,
    find_cards,
    load_card,
    statements,
)
from ringproof.cards.proof import covers, parse_proof
from ringproof.errors import InputError

CARD: Mapping[str, Any] = MappingProxyType(
    YAML(typ="safe", pure=True).load(f"""
title: demo
summary: What it is.
validated_on: '2026-11-20'
upstreams:
  core: {{package: megatron-core, version: 0.16.1}}
  lm: {{repo: NVIDIA/Megatron-LM, ref: main, commit: {"d" * 40}}}
lines:
- {{id: today, repo: NVIDIA/Megatron-LM, says: as it is, trains: true, upstreams: [lm],
   probe: [{{path: a.py, symbol: '"--cp"'}}, {{path: b.py, absent: true}}]}}
- {{id: soon, repo: NVIDIA/Megatron-LM, says: as it will be, trains: false, because: no loop,
   unread: not published, probe: [{{path: b.py}}]}}
validation_status: {{groups: [product, place]}}
feature_meaning: {{a2a_p2p: two levels}}
recommended_path: {{model.sizes: [2, 2], dist.flag: false, model.size: 4}}
known_constraints: [product, Something only said.]
follow_up_validation: [Try it on a cluster.]
anchors:
- {{id: place, upstream: core, path: pkg/mod.py, symbol: function, role: builds it,
   expects: [size]}}
- {{id: loose, upstream: lm, path: a.py, symbol: '"--cp"', role: option}}
constraints:
- {{id: product, says: sizes multiply to CP, upstream_anchor: place,
   proof: 'checks/test_a.py::test_product'}}
pitfalls:
- {{id: silent, symptom: loss is wrong, cause: no group, remedy: set it,
   proof: [smoke/test_b.py, 'anchor:place'], short: {{symptom: loss}}}}
markers:
- {{id: line, pattern: x+, where: census, proof: 'anchor:place'}}
commands:
- {{id: run, run: x, expects: PASS, needs: {{gpus: 2}}, proof: 'anchor:place'}}
claims:
- {{id: open, says: fast, proof: 'unproven: no machine', lines: [soon]}}
version_matrix: [{{about: the function, anchors: [place]}}]
""")
)


def _write(folder: Path, data: dict[str, Any]) -> Path:
    path = folder / "card.yaml"
    with path.open("w") as stream:
        YAML(typ="safe", pure=True).dump(data, stream)
    return path


def _refusal(path: Path) -> str:
    with one_line() as caught:
        load_card(path)
    return str(caught.value)


def test_a_whole_card_loads(tmp_path: Path) -> None:
    card = load_card(_write(tmp_path, dict(CARD)))
    assert isinstance(card.upstreams["core"], PackageUpstream)
    assert card.anchors[1].symbol == "--cp", "quotes around an option are dropped"
    assert card.commands[0].needs.gpus == 2
    assert card.recommended_path["model.sizes"] == (2, 2)
    assert card.recommended_path["dist.flag"] is False
    with pytest.raises(ValueError, match="frozen"):
        card.title = "other"


def test_statements_cover_every_list_prose_and_loose_anchors(tmp_path: Path) -> None:
    said = {
        statement.id: statement for statement in statements(load_card(_write(tmp_path, dict(CARD))))
    }
    assert list(said) == [
        "product",
        "silent",
        "line",
        "run",
        "open",
        "known_constraints[1]",
        "loose",
    ]
    assert [proof.id for proof in said["product"].proofs] == [
        "checks/test_a.py::test_product",
        "anchor:place",
    ]
    assert said["open"].proofs[0].kind is ProofKind.UNPROVEN
    assert said["known_constraints[1]"].kind is StatementKind.PROSE
    assert said["loose"].kind is StatementKind.ANCHOR
    assert said["loose"].lines == ("today",), "the line of the upstream that its anchor names"
    assert said["open"].lines == ("soon",)
    assert said["silent"].lines == (), "the upstream of its anchor is on no line"


def _set(location: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    data = copy.deepcopy(dict(CARD))
    target: Any = data
    for part in location[:-1]:
        target = target[part]
    target[location[-1]] = value
    return data


@pytest.mark.parametrize(
    ("location", "value", "words"),
    [
        (("title",), 3, "write text"),
        (("title",), "", "at least 1"),
        (("validated_on",), "soon", "date"),
        (("upstreams",), [], "key: value"),
        (("upstreams", "core"), "megatron-core", "key: value"),
        (("upstreams", "core", "version"), 0.16, "write text"),
        (("upstreams", "core", "version"), ">=1", "exact version"),
        (("upstreams", "core", "package"), "--index-url=x", "package name"),
        (("upstreams", "core", "file_sha256"), "abc", "SHA-256"),
        (("upstreams", "lm", "commit"), "main", "full commit"),
        (("anchors",), "place", "list"),
        (("anchors", 0, "path"), "../secret.py", "leaves its root"),
        (("anchors", 0, "path"), "/etc/passwd", "relative path"),
        (("anchors", 0, "path"), "a\\b.py", "relative path"),
        (("anchors", 0, "symbol"), "a b", "is not a symbol"),
        (("anchors", 0, "symbol"), "a.b#0", "is not a symbol"),
        (("anchors", 0, "upstream"), "other", "not an upstream of this card"),
        (("anchors", 0, "id"), "product", "already the id of"),
        (("constraints", 0, "id"), "silent", "pitfalls[0].id"),
        (("constraints", 0, "upstream_anchor"), "other", "not an anchor of this card"),
        (("constraints", 0, "prof"), "x", "did you mean `proof`"),
        (("markers", 0, "pattern"), "(", "regular expression"),
        (("markers", 0, "where"), "log", "where"),
        (("commands", 0, "needs"), "gpus", "needs"),
        (("commands", 0, "needs"), {"gpus": 0}, "needs"),
        (("claims", 0, "proof"), [], "names no proof"),
        (("claims", 0, "proof"), "anchor:other", "not an anchor of this card"),
        (("claims", 0, "proof"), "unproven:", "followed by nothing"),
        (("claims", 0, "proof"), ["unproven: why", "anchor:place"], "both proven and unproven"),
        (("claims", 0, "proof"), ["anchor:place", "anchor:place"], "twice"),
        (("claims", 0, "proof"), "tests/test_a.py::test_x", "not a pytest node id"),
        (("claims", 0, "proof"), "checks/../x/test_a.py::test_x", "leaves the repository"),
        (("claims", 0, "proof"), "/checks/test_a.py", "not a pytest node id"),
        (("claims", 0, "proof"), "checks/test_a.py --pdb", "not a pytest node id"),
        (("claims", 0, "proof"), "rm -rf checks/test_a.py", "not a pytest node id"),
        (
            ("claims", 0, "lines"),
            "later",
            "'later' is not a line of this card; use one of: today, soon",
        ),
        (("lines", 0, "trains"), False, "gives no reason"),
        (("lines", 0, "upstreams"), [], "has no upstream"),
        (("lines", 0, "upstreams"), ["other"], "not an upstream of this card"),
        (("lines", 0, "upstreams"), ["core"], "is not an upstream of NVIDIA/Megatron-LM"),
        (("lines", 1, "upstreams"), ["lm"], "is already on the line today"),
        (("lines", 0, "probe"), [], "at least 1"),
        (("lines", 0, "id"), "silent", "is already the id of"),
        (("validation_status", "groups"), ["other"], "not an id of this card"),
        (("recommended_path", "x"), {"a": {"b": 1}}, "recommended_path"),
        (("upstreams", "lm", "label"), "x" * 41, "upstreams.lm.label: "),
        (("anchors", 0, "short"), 5, "anchors[0].short: "),
        (("pitfalls", 0, "short"), "one line", "pitfalls[0].short: "),
        (("pitfalls", 0, "short", "remedi"), "x", "did you mean `remedy`?"),
        (("version_matrix", 0, "anchors"), ["other"], "not an anchor of this card"),
        (("version_matrix", 0, "anchors"), ["place", "place"], "is twice in this row"),
        (("version_matrix", 0, "anchors"), [], "version_matrix[0].anchors: "),
        (("version_matrix", 0, "abuot"), "x", "did you mean `about`?"),
        (("version_matrix", 0, "about"), " ", "version_matrix[0].about: "),
    ],
)
def test_wrong_values_are_refused_by_line_and_field(
    tmp_path: Path, location: tuple[str | int, ...], value: Any, words: str
) -> None:
    path = _write(tmp_path, _set(location, value))
    message = _refusal(path)
    assert words in message
    number = int(message.removeprefix(f"{path}:").split(":")[0])
    assert 1 <= number <= len(path.read_text().splitlines())
    assert str(location[0]) in message


def test_the_line_is_the_right_one(tmp_path: Path) -> None:
    path = _write(tmp_path, _set(("anchors", 1, "path"), "../x.py"))
    lines = path.read_text().splitlines()
    expected = next(number for number, line in enumerate(lines, 1) if "../x.py" in line)
    assert _refusal(path).startswith(f"{path}:{expected}: anchors[1].path: ")


def test_missing_and_unknown_keys_and_more_problems(tmp_path: Path) -> None:
    assert "(and 1 more)" in _refusal(_write(tmp_path, {**CARD, "title": 3, "summary": 4}))
    data = copy.deepcopy(dict(CARD))
    del data["summary"]
    assert "summary: the key is missing; add it" in _refusal(_write(tmp_path, data))
    assert "'evidence_list' is not a key" in _refusal(
        _write(tmp_path, {**CARD, "evidence_list": []})
    )


def test_a_card_that_is_a_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "card.yaml"
    path.write_text("- 1\n")
    assert "not a mapping" in _refusal(path)


@pytest.mark.parametrize(
    ("proof", "node", "covered"),
    [
        ("checks/t.py", "checks/t.py::test_x", True),
        ("checks/t.py::test_x", "checks/t.py::test_x[1-a b]", True),
        ("checks/t.py::test_x", "checks/t.py::test_x2", False),
        ("checks/t.py::C", "checks/t.py::C::test_x[1]", True),
        ("checks/t.py::test_x[1]", "checks/t.py::test_x[1]", True),
        ("checks/t.py::test_x[1]", "checks/t.py::test_x[11]", False),
        ("checks/t.py", "checks/t.pyx::test_x", False),
    ],
)
def test_what_a_node_id_covers(proof: str, node: str, covered: bool) -> None:
    assert covers(parse_proof(proof).target, node) is covered


def test_find_cards(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        _write(tmp_path / name, dict(CARD))
    (tmp_path / "notes").mkdir()
    assert list(find_cards(tmp_path)) == ["a", "b"]
    assert list(find_cards(tmp_path, ("b",))) == ["b"]
    with pytest.raises(InputError, match="choose from: a, b"):
        find_cards(tmp_path, ("c",))
    (tmp_path / "notes" / "SKILL.md").write_text("x")
    with pytest.raises(InputError, match="no card"):
        find_cards(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        find_cards(tmp_path / "absent")
    with pytest.raises(InputError, match="holds no skill"):
        find_cards(tmp_path / "a")


def test_a_card_stands_beside_the_skills(tmp_path: Path) -> None:
    for folder in (tmp_path / "skills" / "a", tmp_path / "cards" / "a"):
        folder.mkdir(parents=True)
        _write(folder, dict(CARD))
    assert find_cards(tmp_path / "skills") == {"a": tmp_path / "cards" / "a" / "card.yaml"}


def test_a_card_behind_a_link_is_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    _write(outside, dict(CARD))
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills" / "a").symlink_to(outside)
    with pytest.raises(InputError, match="outside the skills folder"):
        find_cards(tmp_path / "skills")
