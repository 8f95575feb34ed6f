"""What a lock says of versions: submodules, permalinks, and whether the card still names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from checks.anchors.gitrepo import commit, make_repository
from checks.anchors.scene import ANCHORS, MODULE, Scene, make_scene
from checks.anchors.wheelhouse import fill_cache
from checks.prove.miniature import anchor
from ringproof.anchors.check import NOT_LOCKED, STALE, check_cards
from ringproof.anchors.lock import (
    Lock,
    LockedPlace,
    LockedSubmodule,
    LockedUpstream,
    leftovers,
    make_lock,
    permalink,
    read_lock,
    stale_upstreams,
)
from ringproof.cards import Card, load_card
from ringproof.prove.anchoring import AnchorProver
from ringproof.prove.results import ProofState
from ringproof.upstream.sources import UpstreamChoice, parse_overrides

GITMODULES = '[submodule "x"]\n\tpath = third\n\turl = ../where.git\n'


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = make_scene(tmp_path)
    fill_cache(made.skill.cache)
    return made


def _card(scene: Scene, upstreams: dict[str, Any], anchors: list[dict[str, Any]]) -> Card:
    scene.skill.card(upstreams=upstreams, anchors=anchors)
    return load_card(scene.skill.root / "skills" / "demo" / "card.yaml")


def _choice(scene: Scene, *given: str) -> UpstreamChoice:
    return UpstreamChoice(parse_overrides(given), scene.skill.cache, True)


def _bridge(scene: Scene, root: Path) -> tuple[Card, str]:
    """A card whose one anchor lies in a submodule of its one upstream."""
    files, pins = {"own.py": "O = 1\n", ".gitmodules": GITMODULES}, {"third": scene.pinned}
    head = commit(make_repository(root / "bridge"), files, pins=pins)
    upstream = {"repo": "some/bridge", "ref": "main", "commit": head}
    inside = anchor("inside", "build", "group_desc", upstream="bridge")
    return _card(scene, {"bridge": upstream}, [{**inside, "path": "third/pkg/mod.py"}]), head


def test_an_anchor_in_a_submodule(scene: Scene, tmp_path: Path) -> None:
    card, head = _bridge(scene, tmp_path)
    given = (f"some/bridge=git:{tmp_path / 'bridge'}", f"some/where={scene.git()}")
    choice = _choice(scene, *given)
    choice.refuse_unknown([card])
    lock, broken = make_lock(card, choice)
    assert broken == ()
    locked = lock.upstreams["bridge"]
    assert locked.commit == head
    pin = LockedSubmodule(repo="some/where", commit=scene.pinned)
    assert dict(locked.submodules) == {"third": pin}
    place = lock.anchors["inside"].places["bridge"]
    assert place.path == "third/pkg/mod.py"
    start = MODULE[: MODULE.index("def build")].count("\n") + 1
    assert permalink(locked, place) == (
        f"https://github.com/some/where/blob/{scene.pinned}/pkg/mod.py#L{start}-L{place.end}"
    )
    assert Lock.model_validate_json(lock.text()) == lock
    assert stale_upstreams(card, lock) == {}


def test_a_submodule_that_was_not_given_is_not_here(scene: Scene, tmp_path: Path) -> None:
    card, _ = _bridge(scene, tmp_path)
    choice = _choice(scene, f"some/bridge=git:{tmp_path / 'bridge'}")
    (checked,) = check_cards({"demo": card}, {}, choice)
    assert (checked.status, checked.failed) == ("not here", False)
    assert "give that with --upstream some/where=git:PATH" in checked.resolution.detail
    given = ("--upstream", f"some/bridge=git:{tmp_path / 'bridge'}")
    assert "give that with --upstream some/where" in scene.refused("lock", *given)
    refused = scene.refused("check", *given, "--upstream", f"some/other={scene.git()}")
    assert "'some/other' is not an upstream of these cards" in refused
    assert AnchorProver(choice).prove(card, card.anchors[0]).outcome is ProofState.UNAVAILABLE


def test_permalinks() -> None:
    place = LockedPlace(status="found", path="a b/#.py", start=3, end=5)
    where = LockedUpstream(repo="o/n", commit="c" * 40)
    base = f"https://github.com/o/n/blob/{'c' * 40}"
    assert permalink(where, place) == f"{base}/a%20b/%23.py#L3-L5"
    behind = place.model_copy(update={"source": "real.py"})
    assert permalink(where, behind) == f"{base}/real.py#L3-L5", "the file behind a link"
    inner = LockedSubmodule(repo="p/q", commit="d" * 40)
    outer = LockedSubmodule(repo="x/y", commit="e" * 40)
    nested = where.model_copy(update={"submodules": {"a": outer, "a/b": inner}})
    in_both = place.model_copy(update={"path": "a/b/c.py"})
    assert permalink(nested, in_both) == f"https://github.com/p/q/blob/{'d' * 40}/c.py#L3-L5"
    beside = place.model_copy(update={"path": "a/bc.py"})
    assert permalink(nested, beside) == f"https://github.com/x/y/blob/{'e' * 40}/bc.py#L3-L5"
    assert permalink(where, place.model_copy(update={"start": None})) is None
    assert permalink(LockedUpstream(repo="o/n"), place) is None
    release = LockedUpstream(repo="o/n", commit="c" * 40, package="p", version="1")
    assert permalink(release, place) is None, "not known to stand in that commit"
    assert permalink(release, behind) == f"{base}/real.py#L3-L5"


@pytest.mark.parametrize(
    ("file", "text", "source"),
    [
        ("pkg/mod.py", MODULE, "pkg/mod.py"),
        ("src/pkg/mod.py", MODULE, "src/pkg/mod.py"),
        ("pkg/mod.py", f"# one line more\n{MODULE}", None),
        ("lib/pkg/mod.py", MODULE, None),
    ],
)
def test_a_release_is_linked_where_its_commit_has_the_same_file(
    scene: Scene, tmp_path: Path, file: str, text: str, source: str | None
) -> None:
    repository = make_repository(tmp_path / "release")
    head = commit(repository, {file: text, "more.py": ""})
    upstream = {"package": "demo-upstream", "version": "1.0", "repo": "some/where", "commit": head}
    card = _card(scene, {"demo": upstream}, ANCHORS[2:])
    lock, _ = make_lock(card, _choice(scene, f"some/where=git:{tmp_path / 'release'}"))
    locked, place = lock.upstreams["demo"], lock.anchors["d-build"].places["demo"]
    assert (place.source, locked.commit) == (source, head if source else None)
    link = f"https://github.com/some/where/blob/{head}/{source}#L{place.start}-L{place.end}"
    assert permalink(locked, place) == (link if source else None)
    assert stale_upstreams(card, lock) == {}
    for given in ((), (f"some/where={scene.git()}",)):
        lock, _ = make_lock(card, _choice(scene, *given))
        assert permalink(lock.upstreams["demo"], lock.anchors["d-build"].places["demo"]) is None


def test_a_link_is_shown_where_it_leads(scene: Scene, tmp_path: Path) -> None:
    links = {"short.py": "pkg/mod.py"}
    head = commit(make_repository(tmp_path / "links"), {"pkg/mod.py": MODULE}, links=links)
    written = {**anchor("a", "build", upstream="up"), "path": "short.py"}
    card = _card(scene, {"up": {"repo": "o/n", "ref": "main", "commit": head}}, [written])
    lock, _ = make_lock(card, _choice(scene, f"o/n=git:{tmp_path / 'links'}"))
    link = permalink(lock.upstreams["up"], lock.anchors["a"].places["up"])
    assert link is not None and f"{head}/pkg/mod.py#L" in link


def test_a_lock_of_another_version_is_not_compared(scene: Scene) -> None:
    given = ("--upstream", f"some/where={scene.git()}")
    assert scene.run("lock", *given).exit_code == 0
    path = scene.skill.root / "skills" / "demo" / "card.yaml"
    lock = read_lock(scene.lock)
    assert lock is not None and stale_upstreams(load_card(path), lock) == {}
    upstreams: dict[str, Any] = {
        "demo": {"package": "demo-upstream", "version": "2.0", "repo": "some/where"},
        "lm": {"repo": "some/where", "ref": "later", "commit": scene.later},
        "new": {"repo": "some/where", "ref": "main", "commit": scene.pinned},
    }
    card = _card(scene, upstreams, ANCHORS[:2])
    remedy = "run `ringproof anchors lock`"
    assert dict(stale_upstreams(card, lock)) == {
        "demo": "demo is locked at demo-upstream==1.0, and the card says demo-upstream==2.0: "
        + remedy,
        "lm": f"lm is locked at commit {scene.pinned[:12]}, and the card says commit "
        f"{scene.later[:12]}: {remedy}",
        "new": f"new is not in the lock: {remedy}",
    }
    assert leftovers(card, lock) == ("anchor d-build", "upstream next")
    said = scene.run("check", *given)
    assert said.exit_code == 1
    lines = [line for line in said.stdout.splitlines() if "RA108" in line and "card.yaml" in line]
    assert len(lines) == 4 and all(line.endswith(remedy) for line in lines)
    assert "changed-code" not in said.stdout
    checked = check_cards({"demo": card}, {"demo": lock}, _choice(scene, given[1]))
    assert {item.since_lock for item in checked} == {STALE}, "not `changed`: it is another version"


def test_an_anchor_whose_symbol_was_replaced_is_not_compared(scene: Scene) -> None:
    given = ("--upstream", f"some/where={scene.git()}")
    assert scene.run("lock", *given).exit_code == 0
    lock = read_lock(scene.lock)
    assert lock is not None
    upstream = {"repo": "some/where", "ref": "main", "commit": scene.pinned}
    card = _card(scene, {"lm": upstream}, [anchor("l-build", "Config.check", upstream="lm")])
    (checked,) = check_cards({"demo": card}, {"demo": lock}, _choice(scene, given[1]))
    assert checked.since_lock == NOT_LOCKED
