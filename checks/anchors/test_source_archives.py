"""Source archives as upstreams: read without extracting, refused when they are hostile."""

from __future__ import annotations

import gzip
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from checks.anchors import sdisthouse
from checks.anchors.sdisthouse import FILES, TOP, entry, make_sdist, tar_bytes
from checks.anchors.wheelhouse import SOURCES
from ringproof.harness.anchors import AnchorResolver, UpstreamError
from ringproof.harness.cards import Anchor
from ringproof.harness.upstreams import sdisttree
from ringproof.harness.upstreams.sdisttree import SdistTree
from ringproof.harness.upstreams.tree import MAX_FILE_BYTES, WheelTree


def _tree(path: Path) -> SdistTree:
    return SdistTree(path, "pip:demo==1.0", "0" * 64)


def _zip(folder: Path, files: dict[str, str | bytes] | None = None) -> Path:
    path = folder / f"{TOP}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in (FILES if files is None else files).items():
            archive.writestr(name, text)
    return path


@pytest.mark.parametrize("make", [make_sdist, _zip])
def test_the_top_folder_is_left_out(tmp_path: Path, make: object) -> None:
    tree = _tree(make(tmp_path))  # type: ignore[operator]
    assert sorted(tree.paths()) == ["PKG-INFO", "pkg/__init__.py", "pkg/mod.py"]
    assert list(tree.paths("pkg/m")) == ["pkg/mod.py"]
    for _ in range(2):
        assert tree.read("pkg/mod.py").decode() == SOURCES["pkg/mod.py"]
        assert tree.read("pkg/__init__.py") == b""
    assert tree.origin == f"pip:demo==1.0#sha256={'0' * 64}"
    anchor = Anchor(id="a", upstream="u", path="pkg/mod.py", symbol="build", role="r")
    assert AnchorResolver(tree).resolve(anchor).holds
    for missing in ("pkg", "none.py", "pkg/mod.py/x", TOP, f"{TOP}/pkg/mod.py"):
        with pytest.raises(FileNotFoundError):
            tree.read(missing)
    for outside in ("../x", "/etc/passwd", "pkg/../pkg/mod.py", ""):
        with pytest.raises(UpstreamError, match="leaves"):
            tree.read(outside)


def test_more_than_fits_in_memory(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        f"{TOP}/{number}.py": f"N = {number}\n" * 80_000 for number in range(15)
    }
    tree = _tree(make_sdist(tmp_path, files))
    for number in (14, 0, 7):
        assert tree.read(f"{number}.py").startswith(f"N = {number}\n".encode())


UNREAD = [
    entry(f"{TOP}/pkg/bad.py", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    entry(f"{TOP}/pkg/bad.py", type=tarfile.SYMTYPE, linkname="mod.py"),
    entry(f"{TOP}/pkg/bad.py", type=tarfile.LNKTYPE, linkname=f"{TOP}/pkg/mod.py"),
    entry(f"{TOP}/pkg/bad.py", type=tarfile.CHRTYPE, devmajor=1, devminor=5),
    entry(f"{TOP}/pkg/bad.py", type=tarfile.FIFOTYPE),
    entry(f"{TOP}/pkg/bad.py", b"x" * (MAX_FILE_BYTES + 1)),
]


@pytest.mark.parametrize("bad", UNREAD, ids=["far", "near", "hard", "device", "fifo", "large"])
def test_what_is_no_source_file_is_not_read(
    tmp_path: Path, bad: tuple[tarfile.TarInfo, bytes]
) -> None:
    tree = _tree(make_sdist(tmp_path, extra=[bad]))
    with pytest.raises(UpstreamError, match=r"is not read|too large for a source file"):
        tree.read("pkg/bad.py")
    assert "pkg/bad.py" not in set(tree.paths())
    assert tree.read("pkg/mod.py"), "the others are"


def test_the_last_entry_of_a_name_counts(tmp_path: Path) -> None:
    mod = f"{TOP}/pkg/mod.py"
    link = entry(mod, type=tarfile.SYMTYPE, linkname="/etc/passwd")
    assert _tree(make_sdist(tmp_path, extra=[link, entry(mod, "L = 1\n")])).read("pkg/mod.py")
    with pytest.raises(UpstreamError, match="is not read"):
        _tree(make_sdist(tmp_path, extra=[entry(mod, "L = 1\n"), link])).read("pkg/mod.py")


def test_a_link_in_a_zip_is_not_read(tmp_path: Path) -> None:
    path = _zip(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        link = zipfile.ZipInfo(f"{TOP}/pkg/link.py")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    for tree, inner in ((_tree(path), "pkg/link.py"), (WheelTree(path, "o", "s"), link.filename)):
        with pytest.raises(UpstreamError, match="is not read"):
            tree.read(inner)
        assert inner not in set(tree.paths())


@pytest.mark.parametrize(
    "name", ["../evil.py", "/etc/evil.py", f"{TOP}/../evil.py", "other-1.0/a.py", "loose.py"]
)
@pytest.mark.parametrize("suffix", ["tar", "zip"])
def test_an_archive_with_entries_elsewhere_is_refused(
    tmp_path: Path, name: str, suffix: str
) -> None:
    files: dict[str, str | bytes] = {**FILES, name: "E = 1\n"}
    path = make_sdist(tmp_path, files) if suffix == "tar" else _zip(tmp_path, files)
    with pytest.raises(UpstreamError, match=r"not in one folder|leaves"):
        _tree(path)


@pytest.mark.parametrize("suffix", ["tar.gz", "zip"])
@pytest.mark.parametrize("data", [b"", b"not an archive", b"\x1f\x8b\x08\x00garbage", b"PK\3\4"])
def test_what_is_no_archive_is_refused(tmp_path: Path, suffix: str, data: bytes) -> None:
    path = tmp_path / f"{TOP}.{suffix}"
    path.write_bytes(data)
    with pytest.raises(UpstreamError, match=r"not a readable|not in one folder") as refused:
        _tree(path)
    assert "\n" not in str(refused.value)


def test_an_archive_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = make_sdist(tmp_path)
    whole = path.read_bytes()
    for kept in (len(whole) // 2, len(whole) - 9):
        path.write_bytes(whole[:kept])
        with pytest.raises(UpstreamError, match="not a readable"):
            _tree(path)
    path.write_bytes(gzip.compress(gzip.decompress(whole)[:1500]))
    with pytest.raises(UpstreamError, match="not a readable"):
        _tree(path)


def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_sdist(tmp_path)
    assert _tree(path)
    monkeypatch.setattr(sdisttree, "MAX_ARCHIVE_BYTES", 4096)
    with pytest.raises(UpstreamError, match=r"larger than 4,096 bytes"):
        _tree(path)
    monkeypatch.undo()
    monkeypatch.setattr(sdisttree, "MAX_ENTRIES", 2)
    for archive in (path, _zip(tmp_path)):
        with pytest.raises(UpstreamError, match="more than 2 entries"):
            _tree(archive)


def test_a_real_bomb_takes_neither_memory_nor_disk(tmp_path: Path) -> None:
    """600 MB of zeros in 600 kB: refused before they are all unpacked."""
    header, _ = entry(f"{TOP}/zeros.py")
    header.size = 600_000_000
    path = tmp_path / f"{TOP}.tar.gz"
    with gzip.open(path, "wb", 1) as stream:
        stream.write(header.tobuf())
        for _ in range(600):
            stream.write(bytes(1_000_000))
    assert path.stat().st_size < 4_000_000
    with pytest.raises(UpstreamError, match="larger than"):
        _tree(path)


def test_a_name_of_a_gigabyte_is_refused(tmp_path: Path) -> None:
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1_000_000_000
    path = tmp_path / f"{TOP}.tar.gz"
    path.write_bytes(gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + bytes(2048)))
    with pytest.raises(UpstreamError, match="too large for a file name"):
        _tree(path)


def test_long_names_are_fine(tmp_path: Path) -> None:
    long = "/".join(["deep" * 10] * 12) + ".py"
    for style in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        path = tmp_path / f"{TOP}.tar.gz"
        with tarfile.open(path, "w:gz", format=style) as archive:
            for header, data in (entry(f"{TOP}/{long}", "L = 1\n"),):
                archive.addfile(header, sdisthouse.io.BytesIO(data))
        assert _tree(path).read(long) == b"L = 1\n"


def test_a_sparse_file_is_not_expanded(tmp_path: Path) -> None:
    header, data = entry(f"{TOP}/sparse.py", b"x" * 512)
    header.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.size": "16000000"}
    header.pax_headers |= {"GNU.sparse.map": "0,512", "GNU.sparse.numblocks": "1"}
    path = tmp_path / f"{TOP}.tar.gz"
    path.write_bytes(gzip.compress(tar_bytes([entry(f"{TOP}/a.py", "A = 1\n"), (header, data)])))
    with pytest.raises(UpstreamError, match="is not read"):
        _tree(path).read("sparse.py")
