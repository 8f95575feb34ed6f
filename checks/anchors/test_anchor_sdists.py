"""Source archives fetched from indexes of this machine; nothing of them is ever run."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.anchors.sdisthouse import FILES, TOP, Index, make_sdist, serve, sha256
from checks.anchors.wheelhouse import SOURCES, make_wheel
from ringproof.errors import InputError
from ringproof.harness.anchors import UpstreamError, UpstreamUnavailable
from ringproof.harness.upstreams import wheels
from ringproof.harness.upstreams.archives import Archive
from ringproof.harness.upstreams.pip import pip_settings, without_credentials
from ringproof.harness.upstreams.releases import fetch_release, open_release
from ringproof.harness.upstreams.sdists import SdistSource

NOWHERE = "http://127.0.0.1:9/simple"


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("INDEX_URL", "EXTRA_INDEX_URL", "NO_INDEX", "FIND_LINKS", "REQUIRE_VIRTUALENV"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    # One run of pip instead of four: no wheel here is for another Python.
    monkeypatch.setattr(wheels, "_FALLBACK_PYTHONS", ())


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with serve() as served:
        monkeypatch.setenv("PIP_INDEX_URL", f"{served.url}/simple")
        yield served


def _fetch(cache: Path, *accepted: str, offline: bool = False, version: str = "1.0") -> Archive:
    return fetch_release("Demo.Upstream", version, cache=cache, accepted=accepted, offline=offline)


def _listed() -> list[str]:
    return [file.name for file in SdistSource("demo-upstream", "1.0").files()]


@pytest.mark.parametrize("kind", ["json", "html"])
def test_downloaded_once_then_cached(index: Index, tmp_path: Path, kind: str) -> None:
    sdist = make_sdist(tmp_path)
    index.offer(sdist, kind)
    first = _fetch(tmp_path / "cache")
    assert (first.path.name, first.sha256, first.is_wheel) == (sdist.name, sha256(sdist), False)
    index.pages.clear()
    assert _fetch(tmp_path / "cache") == first == _fetch(tmp_path / "cache", offline=True)
    names = {path.name for path in first.path.parent.iterdir()}
    assert names == {sdist.name, f"{sdist.name}.sha256"}, "nothing temporary is left"
    tree = open_release("demo-upstream", "1.0", cache=tmp_path / "cache", offline=True)
    assert tree.read("pkg/mod.py").decode() == SOURCES["pkg/mod.py"]
    assert tree.origin == f"pip:demo-upstream==1.0#sha256={sha256(sdist)}"
    first.path.write_bytes(b"damaged")
    with pytest.raises(UpstreamUnavailable, match="not in the cache"):
        _fetch(tmp_path / "cache", offline=True)


def test_nothing_of_it_is_run(index: Index, tmp_path: Path) -> None:
    trace = tmp_path / "executed"
    code = f"open({str(trace)!r}, 'w').close()\n"
    build = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    files = {f"{TOP}/pyproject.toml": build, f"{TOP}/backend.py": code, f"{TOP}/setup.py": code}
    index.offer(make_sdist(tmp_path, {**FILES, **files}))
    tree = open_release("demo-upstream", "1.0", cache=tmp_path / "cache", offline=False)
    assert tree.read("backend.py").decode() == code
    assert not trace.exists()


def test_a_wheel_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links = tmp_path / "links"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    sdist, wheel = make_sdist(links), make_wheel(links)
    assert _fetch(tmp_path / "cache").is_wheel
    assert _fetch(tmp_path / "cache", sha256(sdist)).sha256 == sha256(sdist), "unless it is named"
    assert _fetch(tmp_path / "cache", offline=True).sha256 == sha256(wheel)


def test_an_index_that_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "simple" / "demo-upstream"
    sdist = make_sdist(tmp_path / "files")
    page.mkdir(parents=True)
    link = f'<a href="../../files/{sdist.name}#sha256={sha256(sdist)}">x</a>'
    (page / "index.html").write_text(link)
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    assert _fetch(tmp_path / "cache").sha256 == sha256(sdist)


def test_further_indexes_are_asked(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.offer(make_sdist(tmp_path))
    with serve() as empty:
        monkeypatch.setenv("PIP_INDEX_URL", f"{empty.url}/simple")
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{empty.url}/other {index.url}/simple/")
        assert _fetch(tmp_path / "cache")
        assert ("/other/demo-upstream/", None) in empty.asked


def test_hashes_are_checked(index: Index, tmp_path: Path) -> None:
    sdist = make_sdist(tmp_path)
    index.offer(sdist, digest="0" * 64)
    with pytest.raises(UpstreamError, match=f"{sha256(sdist)}, and the index says {'0' * 64}"):
        _fetch(tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.tar.gz")), "it is not kept"
    index.offer(sdist)
    index.asked.clear()
    with pytest.raises(UpstreamError, match=f"{sha256(sdist)}, not what the card says"):
        _fetch(tmp_path / "cache", "1" * 64)
    assert not any("/files/" in path for path, _ in index.asked), "known without a download"
    index.offer(sdist, "html", digest="")
    with pytest.raises(UpstreamError, match="not what the card says"):
        _fetch(tmp_path / "other", "1" * 64)
    assert _fetch(tmp_path / "other", sha256(sdist)).sha256 == sha256(sdist)


@pytest.mark.parametrize("version", ["2.0", "1.0.1", "1.0rc1"])
def test_a_release_that_does_not_exist(index: Index, tmp_path: Path, version: str) -> None:
    index.offer(make_sdist(tmp_path))
    with pytest.raises(InputError, match="no such release, as wheel or source archive"):
        _fetch(tmp_path / "cache", version=version)


@pytest.mark.parametrize(
    "name",
    ["demo_upstream-extra-1.0.tar.gz", "demo-1.0.tar.gz", "demo_upstream-1.0.tar.xz", "1.0.zip"],
)
def test_files_of_other_releases_and_kinds(index: Index, tmp_path: Path, name: str) -> None:
    index.offer(make_sdist(tmp_path, name=name))
    assert _listed() == []
    index.offer(make_sdist(tmp_path))
    assert _listed() == [f"{TOP}.tar.gz"]


@pytest.mark.parametrize(
    ("status", "media", "body"),
    [
        (503, "text/plain", b"busy"),
        (403, "text/plain", b"no"),
        (302, "text/plain", b"file:///etc/passwd"),
        (302, "text/plain", b"/simple/demo-upstream/"),
    ],
)
def test_an_index_that_fails_is_no_finding(
    index: Index, tmp_path: Path, status: int, media: str, body: bytes
) -> None:
    index.pages["/simple/demo-upstream/"] = (status, media, body)
    for use in (lambda: _fetch(tmp_path / "cache"), _listed):
        with pytest.raises(UpstreamUnavailable) as refused:
            use()
        assert "\n" not in str(refused.value) and "root:" not in str(refused.value)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"files": 3}', b'{"files": [1, {}]}', b"[" * 9999]
)
def test_a_page_that_lists_nothing(index: Index, body: bytes) -> None:
    page = (200, "application/vnd.pypi.simple.v1+json", body)
    index.pages["/simple/demo-upstream/"] = page
    assert _listed() == []


def test_a_page_from_the_network_names_no_file_of_this_machine(
    index: Index, tmp_path: Path
) -> None:
    secret = make_sdist(tmp_path / "secret")
    link = f'<base href="file:///"><a href="{secret.as_uri()}">x</a>'.encode()
    index.pages["/simple/demo-upstream/"] = (200, "text/html", link)
    assert _listed() == []


def test_a_file_that_is_listed_and_gone(index: Index, tmp_path: Path) -> None:
    sdist = make_sdist(tmp_path)
    index.offer(sdist)
    del index.pages[f"/files/{sdist.name}"]
    with pytest.raises(InputError, match="no such release"):
        _fetch(tmp_path / "cache")


def test_passwords_go_to_their_host_and_into_no_message(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.offer(make_sdist(tmp_path))
    secret = index.url.replace("//", "//me:s3cret@")
    monkeypatch.setenv("PIP_INDEX_URL", f"{secret}/simple")
    assert _fetch(tmp_path / "cache")
    expected = f"Basic {base64.b64encode(b'me:s3cret').decode()}"
    assert (f"/files/{TOP}.tar.gz", expected) in index.asked
    monkeypatch.setenv("PIP_INDEX_URL", NOWHERE.replace("//", "//me:s3cret@"))
    with pytest.raises(UpstreamUnavailable) as refused:
        _fetch(tmp_path / "other")
    assert "s3cret" not in str(refused.value)
    assert without_credentials("see https://me:s3cret@h/x and ok") == "see https://h/x and ok"


def test_pip_s_own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = https://g/simple\nextra-index-url = https://a/s\n    https://b/s\n"
        "trusted-host = a\n[download]\nindex-url = https://d/simple\n[install]\nproxy = http://p\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    found = pip_settings()
    # Files that every user of the machine has may add to what is tested here, never replace it.
    assert found.indexes == ("https://d/simple", "https://a/s", "https://b/s")
    assert found.trusted == frozenset(("a",)) and found.proxy is None
    monkeypatch.setenv("PIP_INDEX_URL", "https://env/simple")
    assert pip_settings().indexes[0] == "https://env/simple"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert pip_settings().indexes == ()
