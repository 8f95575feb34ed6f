"""Wheels: fetched through a real pip from a folder, listed with their hashes, and unpacked."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest
from packaging.version import Version

from checks.anchors.wheelhouse import fill_cache, make_wheel, only_index
from checks.conftest import ENGINES, EngineWheel
from ringproof.anchors import (
    AnchorResolver,
    UpstreamError,
    UpstreamUnavailable,
)
from ringproof.cards import Anchor, PackageUpstream, RepositoryUpstream
from ringproof.errors import InputError
from ringproof.upstream.releases import Archive, Release
from ringproof.upstream.sources import UpstreamChoice
from ringproof.upstream.wanted import WHEELS_FILE, read_wheels

pytestmark = pytest.mark.slow

FOREIGN = "cp312-cp312-manylinux_2_28_x86_64"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all pip knows."""
    folder = tmp_path / "index"
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_REQUIRE_VIRTUALENV"):
        monkeypatch.delenv(name, raising=False)
    for name, value in only_index(folder).items():
        monkeypatch.setenv(name, value)
    return folder


def _fetch(cache: Path, *accepted: str, offline: bool = False, version: str = "1.0") -> Archive:
    return Release("demo_upstream", version, accepted).fetch(cache, offline=offline)


def test_downloaded_once_then_cached(index: Path, tmp_path: Path) -> None:
    wheel = make_wheel(index)
    first = _fetch(tmp_path / "cache")
    assert first.sha256 == hashlib.sha256(wheel.read_bytes()).hexdigest()
    wheel.unlink()
    assert _fetch(tmp_path / "cache") == first
    assert _fetch(tmp_path / "cache", offline=True) == first
    assert sorted(path.name for path in first.path.parent.iterdir()) == [
        wheel.name,
        f"{wheel.name}.sha256",
    ], "nothing temporary is left"


def test_a_wheel_for_another_python_will_do(index: Path, tmp_path: Path) -> None:
    make_wheel(index, tag=FOREIGN)
    assert FOREIGN in _fetch(tmp_path / "cache").path.name


def test_hashes_are_checked(index: Path, tmp_path: Path) -> None:
    digest = hashlib.sha256(make_wheel(index).read_bytes()).hexdigest()
    with pytest.raises(UpstreamError, match=digest):
        _fetch(tmp_path / "cache", "0" * 64)
    assert _fetch(tmp_path / "cache", "0" * 64, digest).sha256 == digest


def test_no_network_is_no_finding(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://me:s3cret@127.0.0.1:9/simple")
    with pytest.raises(UpstreamUnavailable, match="could not download") as refused:
        _fetch(tmp_path / "cache")
    assert "s3cret" not in str(refused.value) and "\n" not in str(refused.value)


def test_a_source_archive_is_never_built(index: Path, tmp_path: Path) -> None:
    """pip would run its build code to get its metadata, so that only wheels are downloaded."""
    trace = tmp_path / "executed"
    setup = f"open({str(trace)!r}, 'w').close()\n".encode()
    with tarfile.open(index / "demo_upstream-1.0.tar.gz", "w:gz") as archive:
        header = tarfile.TarInfo("demo_upstream-1.0/setup.py")
        header.size = len(setup)
        archive.addfile(header, io.BytesIO(setup))
    with pytest.raises(InputError, match="git:PATH@REF"):
        _fetch(tmp_path / "cache")
    assert not trace.exists()


def test_offline_never_starts_pip(index: Path, tmp_path: Path) -> None:
    make_wheel(index)
    with pytest.raises(UpstreamUnavailable, match="offline"):
        _fetch(tmp_path / "cache", offline=True)


def test_a_package_upstream_opens_and_a_repository_does_not(tmp_path: Path) -> None:
    digest = fill_cache(tmp_path)
    package = PackageUpstream(package="demo-upstream", version="1.0", file_sha256=digest)
    choice = UpstreamChoice({}, tmp_path, offline=True)
    tree = choice.open("u", package)
    assert tree.origin == f"pip:demo-upstream==1.0#sha256={digest}"
    anchor = Anchor(id="a", upstream="u", path="pkg/mod.py", symbol="build", role="r")
    assert AnchorResolver(tree).resolve(anchor).holds
    repository = RepositoryUpstream(repo="o/n", ref="main", commit="a" * 40)
    with pytest.raises(UpstreamUnavailable, match="needs a checkout of o/n at aaaa"):
        choice.open("r", repository)


DIGEST = "0123456789abcdef" * 4
LIST = Path(__file__).parent.parent.parent / "cards" / WHEELS_FILE


def test_a_release_may_have_several_hashes(tmp_path: Path) -> None:
    path = tmp_path / WHEELS_FILE
    other = DIGEST[::-1]
    path.write_text(
        f"# words\nthe-demo==1.0 \\\n    --hash=sha256:{DIGEST} \\\n    --hash=sha256:{other}\n\n"
        f"demo==2.0 --hash=sha256:{DIGEST}  # more words\n"
    )
    assert read_wheels(path) == (
        Release("the-demo", "1.0", (DIGEST, other)),
        Release("demo", "2.0", (DIGEST,)),
    )


@pytest.mark.parametrize(
    "line",
    [
        "demo==1.0",
        f"demo>=1.0 --hash=sha256:{DIGEST}",
        f"demo==1.0 --hash=sha256:{DIGEST[:-1]}",
        f"demo==1.0 --hash=md5:{DIGEST}",
        f"-r other.txt --hash=sha256:{DIGEST}",
        f"../demo==1.0 --hash=sha256:{DIGEST}",
    ],
)
def test_a_release_without_a_hash_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / WHEELS_FILE
    path.write_text(f"{line}\n")
    with pytest.raises(InputError, match=r"is not a release with hashes; write PACKAGE=="):
        read_wheels(path)


def test_the_list_names_each_release_once() -> None:
    wheels = read_wheels(LIST)
    assert len({(wheel.package, wheel.version) for wheel in wheels}) == len(wheels)
    core = [Version(wheel.version) for wheel in wheels if wheel.package == "megatron-core"]
    assert min(core) == Version("0.10.0") and max(core) == Version("0.19.2")
    assert min(Version(wheel.version) for wheel in ENGINES) == Version("2.9.0")


def test_each_wheel_of_the_fixture_is_the_version_that_it_says(te_wheel: EngineWheel) -> None:
    metadata = f"transformer_engine-{te_wheel.version}.dist-info/METADATA"
    text = te_wheel.tree.read(metadata).decode()
    assert f"\nVersion: {te_wheel.version}\n" in text
    assert (te_wheel.root / "transformer_engine" / "pytorch" / "__init__.py").is_file()
