"""Lengths that are drawn, and those of the documents in a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringproof.cli.lengths import read_lengths
from ringproof.errors import InputError


def test_lognormal_draws_what_megatron_draws() -> None:
    found = read_lengths("lognormal:mean=1024,sigma=1.5,min=128,max=8192,n=512")
    state = np.random.RandomState(0)
    drawn = state.lognormal(np.log(1024) - 1.5**2 / 2, 1.5, 100_000)
    expected = np.clip(drawn, 128, 8192).astype(int)
    assert found.values.tolist() == expected[:512].tolist()
    assert found.values.min() == 128
    assert found.values.max() == 8192
    # The mean is that of the distribution before the cut, not e to the mean of the logarithms.
    assert drawn.mean() == pytest.approx(1024, rel=0.05)


def test_lognormal_is_seeded() -> None:
    text = "lognormal:mean=1024,sigma=1.5,n=64"
    same = read_lengths("lognormal:mean=1.024e3,sigma=1.5,n=64e0").values
    assert same.tolist() == read_lengths(text).values.tolist()
    assert read_lengths(text).values.tolist() == read_lengths(f"{text},seed=0").values.tolist()
    assert read_lengths(text).values.tolist() != read_lengths(f"{text},seed=1").values.tolist()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("mean=1024", "n: is missing"),
        ("n=4", "mean: is missing"),
        ("", "mean: is missing"),
        ("mean=1024,n=1000000000", "1,000,000,000 lengths, more than 20,000,000"),
        ("mean=1024,n=0", "n: is less than 1"),
        ("mean=1024,n=2.5", "n: is not a whole number"),
        ("mean=0,n=4", "mean: is less than 1"),
        ("mean=-5,n=4", "mean is not a number from 0 on"),
        ("mean=nan,n=4", "mean is not a number"),
        ("mean=1e400,n=4", "mean is not a number"),
        ("mean=9,n=4,min=9,max=3", "min 9 is over max 3"),
        ("mean=9,n=4,sigma=99", "sigma: is more than 10"),
        ("mean=9,n=4,seed=99999999999", "seed: is more than 4,294,967,295"),
        ("mean=9,n=4,n=5", "has an option twice"),
        ("mean=9,n=4,mode=2", "mode: unknown field"),
        ("mean=9,n", "n is not a number"),
    ],
)
def test_a_distribution_that_cannot_be_drawn(options: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read_lengths(f"lognormal:{options}")
    assert said in str(caught.value)


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    root = tmp_path / "docs"
    (root / "sub,glob").mkdir(parents=True)
    (root / "b.py").write_text("x" * 10)
    (root / "a.py").write_text("x" * 36)
    (root / "sub,glob" / "c.py").write_text("x" * 37)
    (root / "empty.py").write_text("")
    (root / "other.txt").write_text("x" * 1000)
    return root


def test_a_folder_is_read_in_order(documents: Path) -> None:
    found = read_lengths(f"folder:{documents},glob=*.py,bytes-per-token=3.6")
    assert found.values.tolist() == [10, 3, 11]
    assert found.place(2).endswith("c.py")
    assert found.notes == ("1 empty files or folders left out",)
    assert len(read_lengths(f"folder:{documents}")) == 4
    assert len(read_lengths(f"folder:{documents},glob=sub*/*.py")) == 1
    assert read_lengths(f"folder:{documents / 'sub,glob'},glob=*.py").values.tolist() == [10]


def test_long_documents_are_cut_and_counted(documents: Path) -> None:
    found = read_lengths(f"folder:{documents},glob=*.py,bytes-per-token=3.6,max=10")
    assert found.values.tolist() == [10, 3, 10]
    assert "1 documents cut to 10 tokens" in found.notes


def test_links_out_of_the_folder_are_not_followed(documents: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.py").write_text("x" * 5000)
    before = read_lengths(f"folder:{documents},glob=*.py").values.tolist()
    (documents / "link.py").symlink_to(outside / "secret.py")
    (documents / "linked").symlink_to(outside)
    (documents / "dangling.py").symlink_to(outside / "nothing.py")
    found = read_lengths(f"folder:{documents},glob=*.py")
    assert found.values.tolist() == before
    assert "2 links left out" in found.notes


def test_what_cannot_be_opened_is_left_out_and_counted(
    documents: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(documents / "pipe.py")  # opening it would wait for ever
    found = read_lengths(f"folder:{documents},glob=*.py,bytes-per-token=3.6")
    assert found.values.tolist() == [10, 3, 11]
    assert "1 unreadable files or folders left out" in found.notes

    opened = Path.open

    def refusing(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == "a.py":
            raise PermissionError(13, "Permission denied")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refusing)
    found = read_lengths(f"folder:{documents},glob=*.py,bytes-per-token=3.6")
    assert found.values.tolist() == [3, 11]
    assert "2 unreadable files or folders left out" in found.notes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (",glob=*.nope", "no file matches"),
        (",bytes-per-token=0", "bytes-per-token is not a positive number"),
        (",bytes-per-token=x", "bytes-per-token is not a positive number"),
        (",glob=*.py,glob=*.c", "has an option twice"),
        ("/missing", "is not a folder"),
    ],
)
def test_a_folder_that_cannot_be_read(documents: Path, options: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read_lengths(f"folder:{documents}{options}")
    assert said in str(caught.value)
