"""The list of wheels, and the fixture that hands out every released Transformer Engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from checks.conftest import ENGINES, EngineWheel
from ringproof.errors import InputError
from ringproof.harness.upstreams.releases import Release
from ringproof.harness.upstreams.wanted import WHEELS_FILE, read_wheels

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
    with pytest.raises(InputError, match=r"is not a release with hashes .*; write PACKAGE=="):
        read_wheels(path)


def test_the_list_names_each_release_once() -> None:
    wheels = read_wheels(LIST)
    assert len({(wheel.package, wheel.version) for wheel in wheels}) == len(wheels)
    core = [Version(wheel.version) for wheel in wheels if wheel.package == "megatron-core"]
    assert min(core) == Version("0.10.0") and max(core) == Version("0.16.1")
    assert min(Version(wheel.version) for wheel in ENGINES) == Version("2.9.0")


def test_each_wheel_of_the_fixture_is_the_version_that_it_says(te_wheel: EngineWheel) -> None:
    metadata = f"transformer_engine-{te_wheel.version}.dist-info/METADATA"
    text = te_wheel.tree.read(metadata).decode()
    assert f"\nVersion: {te_wheel.version}\n" in text
    assert (te_wheel.root / "transformer_engine" / "pytorch" / "__init__.py").is_file()
