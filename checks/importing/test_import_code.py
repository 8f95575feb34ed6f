"""Places in code: anchors where the quoted code is there, open claims where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.anchors.gitrepo import commit, make_repository
from checks.importing.foreign import CARD, REEL, SKILL, TODAY, imported, kite_roots, write_skill
from ringproof.anchors.resolve import AnchorResolver
from ringproof.cards import Card, ProofKind, statements
from ringproof.errors import InputError
from ringproof.importing.anchoring import of_code, of_prose
from ringproof.importing.importer import Imported, convert
from ringproof.importing.roots import Roots, open_roots


def _anchors(card: Card) -> dict[str, tuple[str, str, str, tuple[str, ...]]]:
    return {
        anchor.id: (anchor.upstream, anchor.path, anchor.symbol, anchor.expects)
        for anchor in card.anchors
    }


def _reasons(card: Card) -> dict[str, str]:
    return {claim.says: claim.proof[0] for claim in card.claims}


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Roots:
    return kite_roots(tmp_path_factory.mktemp("roots"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, roots: Roots) -> Imported:
    return imported(tmp_path_factory.mktemp("made"), roots=roots)


def test_quoted_code_becomes_anchors_with_what_occurs_in_them(made: Imported) -> None:
    assert _anchors(made.card) == {
        "reel-wind": ("kite", "src/kite/reel.py", "wind", ("slack_ratio", "length")),
        "reel-check": (
            "kite",
            "src/kite/reel.py",
            "check",
            ("too many knots in the string", "knots", "MAX_KNOTS"),
        ),
        "gust-peak_speed": ("wind", "gust.py", "Gust.peak_speed", ()),
        "reel-count_knots": ("kite", "src/kite/reel.py", "count_knots", ()),
    }
    assert made.pointers["fences"] == {"found": 4, "anchored": 3}
    assert made.pointers["inline"] == {"found": 1, "anchored": 1}


def test_the_anchors_hold_in_the_code_and_prove_only_themselves(
    made: Imported, roots: Roots
) -> None:
    trees = {root.name: root.files.tree for root in roots.roots}
    for anchor in made.card.anchors:
        assert AnchorResolver(trees[anchor.upstream]).resolve(anchor).holds, anchor.id
    proven = [s.id for s in statements(made.card) if s.proofs[0].kind is not ProofKind.UNPROVEN]
    assert sorted(proven) == sorted(anchor.id for anchor in made.card.anchors)


def test_upstreams_are_the_roots(made: Imported, roots: Roots) -> None:
    kite, wind = made.card.upstreams["kite"], made.card.upstreams["wind"]
    assert (kite.repo, kite.ref) == ("air/kite", "main")
    assert kite.commit == roots.roots[0].upstream["commit"]
    assert wind.repo == "air/wind"


def test_a_quotation_that_moved_is_found_and_one_that_never_was_is_not(made: Imported) -> None:
    check = next(anchor for anchor in made.card.anchors if anchor.symbol == "check")
    assert "1:2:src/kite/reel.py" in check.role, "the place as written is kept"
    reason = _reasons(made.card)["SKILL.md quotes lines 2-3 of src/kite/reel.py."]
    assert reason == "unproven: not anchored: the quoted text is not in the file"


def test_a_sentence_that_names_a_place_stays_unproven_and_says_what_became_of_it(
    made: Imported,
) -> None:
    assert made.card.constraints[0].proof == (
        "unproven: stated upstream, linked to nothing; reel.py:3 is anchor reel-wind",
    )


def test_words_that_do_not_occur_there_make_no_anchor(tmp_path: Path, roots: Roots) -> None:
    text = "known_limitations:\n  - sail_area is fixed (reel.py:3).\n  - it is (reel.py:4).\n"
    write_skill(tmp_path / "kites", text, "---\nname: x\n---\n")
    card = convert(tmp_path / "kites", roots, today=TODAY).card
    assert card.anchors == ()
    first, second = (claim.proof[0] for claim in card.claims)
    assert "nothing that is named beside it occurs there" in first
    assert "nothing beside it says what stands there" in second


def test_a_name_that_fits_two_files_makes_no_anchor(tmp_path: Path) -> None:
    roots = _written(tmp_path, {"a/reel.py": REEL, "b/reel.py": REEL})
    card = imported(tmp_path, "note: slack_ratio is used (reel.py:4)\n", roots).card
    (note,) = (claim for claim in card.claims if claim.says.startswith("note"))
    assert note.proof[0].endswith("2 files of that name could be meant")


def test_without_roots_everything_is_open(tmp_path: Path) -> None:
    card = imported(tmp_path).card
    assert card.anchors == ()
    assert dict(card.upstreams) == {}
    reasons = _reasons(card)
    where = "SKILL.md quotes lines 3-4 of src/kite/reel.py."
    assert reasons[where] == "unproven: not anchored: no --upstream was given to look it up in"
    assert "SKILL.md points to line 11 of reel.py for count_knots." in reasons


def test_a_submodule_without_a_root_says_which_is_lacking(tmp_path: Path) -> None:
    card = imported(tmp_path, roots=kite_roots(tmp_path, wind=False)).card
    reason = _reasons(card)["SKILL.md quotes lines 1-2 of 3rdparty/wind/gust.py."]
    assert reason == "unproven: not anchored: no --upstream air/wind=SPEC was given"


def test_evidence_is_looked_up(tmp_path: Path, made: Imported) -> None:
    reasons = _reasons(made.card)
    assert dict(made.evidence) == {"exists": 3, "missing": 1, "prose": 1}
    assert "exists in kite" in reasons["evidence: src/kite/reel.py"]
    assert "exists in kite" in reasons["evidence: src/kite"]
    assert "exists in wind" in reasons["evidence: 3rdparty/wind/gust.py"]
    assert "no root given has that path" in reasons["evidence: src/kite/gone.py"]
    assert "it is not a path" in reasons["evidence: a talk with a kite maker"]
    without = imported(tmp_path / "w").evidence
    assert dict(without) == {"not looked up": 4, "prose": 1}


def test_lines_of_a_class_are_anchored_by_its_members(tmp_path: Path) -> None:
    code = "class Kite:\n    tail = 1\n    string = 2\n\n    def fly(self):\n        return 3\n"
    files = {"k.py": code, "bare.py": "if x:\n    print(1)\n", "n.md": "one\ntwo\n"}
    fences = (
        "```2:3:k.py\n    tail = 1\n    string = 2\n```\n"
        "```1:2:bare.py\nif x:\n    print(1)\n```\n"
        "```1:2:n.md\none\ntwo\n```\n```1:2:k.py\n...\n```\n"
    )
    folder = write_skill(tmp_path / "s", "title: x\n", fences)
    card = convert(folder, _written(tmp_path, files), today=TODAY).card
    assert [anchor.symbol for anchor in card.anchors] == ["Kite.tail", "Kite.string"]
    why = [claim.proof[0].removeprefix("unproven: not anchored: ") for claim in card.claims]
    assert why == [
        "the text is there, but no symbol encloses it",
        "the text is there, but a .md file has no symbols",
        "it quotes no code",
    ]


def test_quoted_cuda_becomes_an_anchor(tmp_path: Path) -> None:
    code = (
        "namespace kite {\n\n__global__ void fill_kernel(int size) {\n  int total = size;\n}\n\n}\n"
    )
    fence = (
        "```1:2:src/fill.cu\n__global__ void fill_kernel(int size) {\n  int total = size;\n```\n"
    )
    folder = write_skill(tmp_path / "s", "title: x\n", fence)
    roots = _written(tmp_path, {"src/fill.cu": code})
    (anchor,) = convert(folder, roots, today=TODAY).card.anchors
    assert anchor.symbol == "kite::fill_kernel"
    assert "total" in anchor.expects
    assert AnchorResolver(roots.roots[0].files.tree).resolve(anchor).holds


def test_a_place_that_is_quoted_twice_is_one_anchor(tmp_path: Path, roots: Roots) -> None:
    again = SKILL + "\n```4:4:src/kite/reel.py\n    return length * slack_ratio\n```\n"
    folder = write_skill(tmp_path / "kites", CARD, again)
    card = convert(folder, roots, today=TODAY).card
    (wind,) = (anchor for anchor in card.anchors if anchor.symbol == "wind")
    assert wind.role.count("SKILL.md quotes it as") == 2


def _written(folder: Path, files: dict[str, str]) -> Roots:
    commit(make_repository(folder / "r"), files)
    return _roots(folder, f"git:{folder / 'r'}@main")


def _roots(folder: Path, spec: str, name: str = "air/kite") -> Roots:
    return open_roots({name: spec}, cache=folder / "cache", offline=True)


def test_roots_that_no_card_could_name_are_refused(tmp_path: Path) -> None:
    commit(make_repository(tmp_path / "r"), {"a.py": ""})
    git = f"git:{tmp_path / 'r'}@main"
    with pytest.raises(InputError, match="OWNER/NAME"):
        _roots(tmp_path, git, "kite")
    with pytest.raises(InputError, match="names no exact version"):
        _roots(tmp_path, f"dir:{tmp_path}", "kite")
    with pytest.raises(InputError, match="no ref"):
        _roots(tmp_path, f"git:{tmp_path / 'r'}@gone")
    package = _roots(tmp_path, "installed:pydantic", "pydantic").roots[0]
    assert package.upstream["package"] == "pydantic"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ('x = call(name, "some text")  # other', ("some text", "call", "name")),
        ('"""First sentence. Second one\nwith words', ("First sentence",)),
        ('raise Worse(f"bad {value} of the list")', ("of the list", "Worse")),
        ("if self.a_b is None:", ("self.a_b",)),
        ('x = "it is \\"so\\" here"', ("it is",)),
        ("# only a comment", ()),
    ],
)
def test_words_of_code(code: str, words: tuple[str, ...]) -> None:
    assert of_code(code.split("\n")) == words


def test_words_of_prose_are_those_that_can_only_be_code() -> None:
    text = "Set use_rng (`Config.seed_x`, --no-save) in PyTorch; see a_b.py:3 and the kite."
    assert of_prose(text) == ("--no-save", "use_rng", "Config.seed_x", "PyTorch", "seed_x")
