"""A repository in miniature whose card names two commits on a git server."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pygit2
import pytest
from rich.console import Console

from checks.anchors.gitrepo import commit
from checks.anchors.wheelhouse import make_wheel, only_index
from checks.running import ran
from checks.upstream.fetching import MANY, NAME, Demo, batches, counted_git, demo
from ringproof.cli.upstream import listed
from ringproof.errors import InputError
from ringproof.upstream.fetching import Repository, Unreachable
from ringproof.upstream.git import GitTree
from ringproof.upstream.wanted import Provision, Wanted, WantedCommit

BATCHES = 3


@pytest.fixture
def made(tmp_path: Path) -> Demo:
    return demo(tmp_path)


@pytest.fixture
def large(tmp_path: Path) -> Demo:
    return demo(tmp_path, files=MANY)


def _one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "Traceback" not in done.stderr
    assert all(word in errors[0] for word in words), errors[0]


def test_what_was_fetched_is_used_without_upstream(made: Demo) -> None:
    assert made.here() == []
    missing = made.run("anchors", "check", "--offline")
    assert missing.returncode == 2 and f"needs a checkout of {NAME}" in missing.stderr
    done = made.run("upstream", "fetch")
    assert done.returncode == 0, done.stderr
    assert made.here() == sorted((made.old[:12], made.new[:12]))
    shutil.rmtree(made.server)
    assert made.run("anchors", "check", "--offline").returncode == 0
    assert made.run("upstream", "fetch").returncode == 0, "nothing is fetched twice"
    for shown in (made.new, made.new[:9], "new"):
        changed = made.run(
            "anchors", "drift", "--from", f"fetched:{NAME}@{made.old}",
            "--to", f"fetched:{NAME}@{shown}",
        )  # fmt: skip
        assert changed.returncode == 1 and "a-old" in changed.stdout


def test_a_fetched_commit_that_is_not_there_is_refused(made: Demo) -> None:
    for spec in (f"fetched:{NAME}@main", "fetched:demo@main", "fetched:../../x@main"):
        _one_line(made.run("anchors", "drift", "--from", spec, "--to", spec), "fetched")


def test_files_that_commits_share_are_fetched_once(large: Demo, tmp_path: Path) -> None:
    counting = counted_git(tmp_path / "bin")
    for _ in range(2):
        done = large.run("upstream", "fetch", **counting)
        assert done.returncode == 0, done.stderr
    assert batches(tmp_path / "bin") == BATCHES
    assert large.run("anchors", "check", "--offline").returncode == 0


def test_a_server_without_filters_sends_everything(tmp_path: Path) -> None:
    made = demo(tmp_path, filters=False)
    counting = counted_git(tmp_path / "bin")
    done = made.run("upstream", "fetch", **counting)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "bin" / "batches").exists()
    assert made.run("anchors", "check", "--offline").returncode == 0


def test_a_killed_run_looks_incomplete_and_goes_on(large: Demo, tmp_path: Path) -> None:
    """``kill -9`` in the second of three batches; what the first brought is not fetched again."""
    killing = counted_git(tmp_path / "bin", then="kill -9 $PPID; exit 1", at=2)
    assert large.run_apart("upstream", "fetch", **killing).returncode == -9
    assert large.here() == []
    assert large.run("anchors", "check", "--offline").returncode == 2
    for leftover in ("shallow.lock", "objects/pack/tmp_pack_abc"):
        (large.bare / leftover).write_text("left by a git that was killed")
    counting = counted_git(tmp_path / "again")
    done = large.run("upstream", "fetch", **counting)
    assert done.returncode == 0, done.stderr
    assert batches(tmp_path / "again") == BATCHES - 1
    assert large.here() == sorted((large.old[:12], large.new[:12]))
    assert not list(large.bare.rglob("*tmp_pack_*"))


def test_a_commit_without_a_file_is_not_complete(made: Demo) -> None:
    """The negative control of completeness: the server lost one file."""
    (blob,) = (
        entry.id for entry in pygit2.Repository(str(made.server)).get(made.new).tree["pkg"]
        if entry.name == "mod.py"
    )  # fmt: skip
    (made.server / "objects" / str(blob)[:2] / str(blob)[2:]).unlink()
    assert made.run("upstream", "fetch").returncode == 2
    assert made.here() == []
    assert made.run("anchors", "check", "--offline").returncode == 2


def test_pictures_are_left_out(made: Demo) -> None:
    server = pygit2.Repository(str(made.server))
    files = {"pkg/mod.py": "def build(first):\n    pass\n", "docs/big.PNG": b"\x89PNG"}
    found = commit(server, files, ref="refs/tags/pictures")
    upstream = {"repo": NAME, "ref": "pictures", "commit": found}
    made.repository.card(upstreams={"old": upstream})
    assert made.run("upstream", "fetch").returncode == 0
    kept = pygit2.Repository(str(made.bare))
    tree = kept.get(found).tree
    assert tree["pkg"]["mod.py"].id in kept and tree["docs"].id in kept
    assert (tree["docs"] / "big.PNG").id not in kept


def test_reading_a_partial_clone_fetches_nothing(made: Demo, tmp_path: Path) -> None:
    clone = ("git", "clone", "--quiet", "--bare", "--filter=blob:none")
    ran(*clone, made.server.as_uri(), tmp_path / "clone", check=True)
    with pytest.raises(InputError, match="damaged or incomplete"):
        GitTree(tmp_path / "clone", "main").read("pkg/mod.py")
    whole = ran("git", "clone", "--quiet", "--bare", made.server.as_uri(), tmp_path / "whole")
    assert whole.returncode == 0
    assert b"first" in GitTree(tmp_path / "whole", "main").read("pkg/mod.py")


def test_the_newest_commit_of_a_branch(made: Demo) -> None:
    newest = commit(
        pygit2.Repository(str(made.server)), {"pkg/mod.py": "def build(third):\n    pass\n"}
    )
    assert made.run("upstream", "fetch", "--branches").returncode == 0
    changed = made.run(
        "anchors", "drift", "--from", f"fetched:{NAME}@main",
        "--to", f"fetched:{NAME}@newest/main", "--only", "old", "--json", "-", "--format", "json",
    )  # fmt: skip
    assert changed.returncode == 1 and newest in changed.stdout
    assert newest[:12] not in made.here(), "no card names it"


def test_commits_that_only_tests_need(made: Demo) -> None:
    files = {"pkg/mod.py": "def build(third):\n    pass\n"}
    other = commit(pygit2.Repository(str(made.server)), files, ref="refs/tags/other")
    listed = made.repository.file("skills/commits.txt", f"# words\n{NAME} other {other[:12]}\n")
    _one_line(made.run("upstream", "fetch"), "is not a commit of a repository", "in full")
    listed.write_text(f"# words\n{NAME} other {other}\n{NAME} another {other}  # twice\n")
    assert made.run("upstream", "fetch").returncode == 0
    for name in ("other", "another"):
        assert made.run("stack", "--upstream", f"fetched:{NAME}@{name}").returncode == 2, (
            "no product in it"
        )
    _one_line(made.run("stack", "--upstream", f"fetched:{NAME}@third"), "is not in the cache")


def test_an_unknown_commit_does_not_keep_the_others_away(made: Demo) -> None:
    card = made.repository.root / "skills" / "demo" / "card.yaml"
    card.write_text(card.read_text().replace(made.new, "f" * 40))
    _one_line(
        made.run("upstream", "fetch"), "there is no such commit", "f" * 12, "correct the card"
    )
    assert made.here() == [made.old[:12]]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("git://127.0.0.1:{closed}/demo", ("cannot be reached", "check the network")),
        ("http://user:secret@127.0.0.1:{closed}/demo", ("cannot be reached", "check the network")),
        ("git://127.0.0.1:{silent}/demo", ("cannot be reached (no answer within 1 s)",)),
        ("file://{folder}/none", ("cannot be fetched", "name another server")),
    ],
    ids=["refused", "refused-http", "silent", "no-repository"],
)
def test_a_server_that_cannot_be_used(
    made: Demo, tmp_path: Path, url: str, words: tuple[str, ...]
) -> None:
    start = time.monotonic()
    with socket.socket() as closed, socket.socket() as silent:
        for taken in (closed, silent):
            taken.bind(("127.0.0.1", 0))
        silent.listen()
        ports = {"closed": closed.getsockname()[1], "silent": silent.getsockname()[1]}
        place = url.format(folder=tmp_path, **ports)
        done = made.run("upstream", "fetch", "--patience", "1", url=place)
    _one_line(done, *words)
    assert "secret" not in done.stderr
    assert time.monotonic() - start < 30


def test_no_git(made: Demo, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = made.run("upstream", "fetch", PATH=str(tmp_path / "empty"))
    _one_line(done, "the git program is not installed", "install git")


def test_a_full_disk(made: Demo, tmp_path: Path) -> None:
    said = "echo 'fatal: write error: No space left on device' >&2; exit 128"
    done = made.run("upstream", "fetch", **counted_git(tmp_path / "bin", then=said, at=1))
    _one_line(done, "the disk is full", "free space")
    assert made.here() == []


def test_a_cache_that_cannot_be_written(made: Demo) -> None:
    (made.cache / "git").write_text("a file")
    _one_line(made.run("upstream", "fetch"), "cannot be written")


@pytest.mark.slow
def test_two_runs_at_once(large: Demo, tmp_path: Path) -> None:
    """The second waits for the first, and then finds everything there."""
    slow = counted_git(tmp_path / "bin", then="sleep 3", at=1)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(large.run_apart, "upstream", "fetch", **slow) for _ in range(2)]
        assert [run.result().returncode for run in runs] == [0, 0]
    assert batches(tmp_path / "bin") == BATCHES


@pytest.fixture
def index(tmp_path: Path) -> dict[str, str]:
    return only_index(tmp_path / "index")


def test_wheels_come_by_hash(made: Demo, tmp_path: Path, index: dict[str, str]) -> None:
    wheel = make_wheel(tmp_path / "index", version="3.0")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    pinned = made.repository.file(
        "skills/wheels.txt", f"demo-upstream==3.0 --hash=sha256:{'0' * 64}\n"
    )
    refused = made.run("upstream", "fetch", "--wheels", **index)
    _one_line(refused, "pip:demo-upstream==3.0", digest, "not what the card says")
    pinned.write_text(f"demo-upstream==3.0 --hash=sha256:{digest}\n")
    done = made.run("upstream", "fetch", "--wheels", **index)
    assert done.returncode == 0, done.stderr
    assert made.here() == [], "no repository was fetched"
    shutil.rmtree(tmp_path / "index")
    assert made.run("upstream", "fetch", "--wheels", **index).returncode == 0


def test_a_release_that_the_index_lacks(made: Demo, index: dict[str, str]) -> None:
    made.repository.file("skills/wheels.txt", f"demo-upstream==9 --hash=sha256:{'0' * 64}\n")
    _one_line(made.run("upstream", "fetch", "--wheels", **index), "demo-upstream==9")


@pytest.mark.parametrize("entry", ["some/demo", "=x", "other/demo=x", "some/demo=-x"])
def test_a_server_is_a_name_and_a_url(made: Demo, entry: str) -> None:
    done = made.run("upstream", "fetch", "--from", entry)
    _one_line(done, "--from")


def test_the_list_as_json(made: Demo) -> None:
    assert made.run("upstream", "fetch").returncode == 0
    rows = json.loads(made.run("upstream", "list", "--json", "-").stdout)["upstreams"]
    found = {row["version"]: row["here"] for row in rows}
    assert found == {made.old: True, made.new: True}


def test_a_server_that_fails_does_not_stop_the_others(
    made: Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths have no host; two of them are two servers."""
    ask = Repository.newest_commit

    def newest_commit(repository: Repository, ref: str) -> str:
        if repository.name == "A/broken":
            raise Unreachable("upstream", "it cannot be reached; name another")
        return ask(repository, ref)

    monkeypatch.setattr(Repository, "newest_commit", newest_commit)
    here = WantedCommit(NAME, made.old, "old")
    wanted = Wanted((WantedCommit("A/broken", made.old, "main"), here), ())
    urls = {"A/broken": f"file://{tmp_path}", NAME: f"file://{made.server}"}
    short = Provision(tmp_path / "other", Console(stderr=True), print, urls=urls).bring(wanted)
    assert list(short) == [f"A/broken main {made.old[:12]}"]


def test_a_long_list_of_what_is_missing_is_cut() -> None:
    assert listed(["a", "b", "c", "d"]) == "a, b, c, d"
    assert listed(["a", "b", "c", "d", "e", "f"]) == "a, b, c, d and 2 more"
