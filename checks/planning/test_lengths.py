"""Lengths from files and distributions; what cannot be used is refused with its place."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from ringproof.cli.lengths import MAX_BYTES, read_lengths
from ringproof.errors import InputError


def saved(tmp_path: Path, name: str, content: str | bytes) -> str:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def refused(source: str, said: str, *, column: str = "") -> None:
    """Assert that a source is refused by one line that cannot steer a terminal."""
    with pytest.raises(InputError) as caught:
        read_lengths(source, column=column)
    assert said in str(caught.value)
    assert not {"\n", "\x1b"} & set(str(caught.value))


@pytest.mark.parametrize(
    ("name", "content", "column"),
    [
        ("a.txt", "512\n1024\n", ""),
        ("a.txt", "# a remark\n512 1024 # and one more\n\n", ""),
        ("a.txt", "512\r\n1024\r\n", ""),
        ("a", "\ufeff512\n1024", ""),
        ("a.json", "[512, 1024]", ""),
        ("a", "[512, 1024]", ""),
        ("a.json", '{"lengths": [512, 1024.0]}', ""),
        ("a.json", '{"version": 1, "ranks": 4, "lengths": [512, 1024]}', ""),
        ("a.json", '{"train": [512, 1024]}', "train"),
        ("a.json", '{"length": 512}\n{"length": 1024}\n', ""),
        ("a.json", '{"other": {}\n, "lengths": [512, 1024]}\n', ""),
        ("a.json", '[{"n": 512}, {"n": 1024}]', ""),
        ("a.jsonl", '{"id": 7, "length": 512}\n{"id": 8, "length": 1024}\n', ""),
        ("a.jsonl", '{"id": 7, "n": 512}\n\n{"id": 8, "n": 1024}\n', "n"),
        ("a.jsonl", "512\n1024\n", ""),
        ("a", '{"n": 512}\n{"n": 1024}\n', ""),
        ("a.npy", npy(np.array([512, 1024])), ""),
        ("a.npy", npy(np.array([512, 1024], np.uint16)), ""),
        ("a.npy", npy(np.array([512.0, 1024.0])), ""),
    ],
)
def test_a_file_says_the_same_in_every_format(
    tmp_path: Path, name: str, content: str | bytes, column: str
) -> None:
    found = read_lengths(saved(tmp_path, name, content), column=column)
    assert found.values == (512, 1024)
    assert all(type(value) is int for value in found.values)


@pytest.mark.parametrize(
    ("name", "content", "column", "said"),
    [
        ("a.txt", "512\n0\n", "", "a.txt:2: the length 0 is less than 1"),
        ("a.txt", "512 7\n\n-3\n", "", "a.txt:3: the length -3 is less than 1"),
        ("a.txt", "-5", "", "the length -5 is"),
        ("a.txt", "1e30", "", "the length 1000000000000000019884624838656 is over"),
        ("a.npy", npy(np.array([5], "timedelta64[s]")), "", "the array holds timedelta64"),
        ("a.npy", npy(np.array([np.inf], np.float16)), "", "is not a whole number"),
        ("a.txt", "length\n5\n", "", "a.txt:1: 'length' is not a whole number of tokens"),
        ("a.txt", "1,024\n", "", "a.txt:1: '1,024' is not a whole number of tokens"),
        ("a.txt", "512\n1.5\n", "", "a.txt:2: '1.5' is not a whole number of tokens"),
        ("a.txt", "512\nnan\n", "", "a.txt:2: the length is NaN"),
        ("a.txt", "512\ninf\n", "", "a.txt:2: 'inf' is not a whole number"),
        ("a.txt", "512\nseven\x1b[2J\n", "", "'seven<U+"),
        ("a.txt", "512\n99999999999999999999999\n", "", "is over 1,000,000,000,000"),
        ("a.txt", "", "", "a.txt: the file is empty"),
        ("a.txt", " \n\n", "", "a.txt: the file is empty"),
        ("a.txt", "# nothing\n", "", "a.txt: there are no lengths"),
        ("a.txt", "512\n", "n", "--column is for JSON, and plain text has no keys"),
        ("a.bin", b"\x00\x01\x02", "", "a.bin: this is none of text"),
        ("a.bin", b"12\n\xff\xfe\x80", "", "a.bin:2: this is none of text"),
        ("a.json", "[512,\n }", "", "a.json:2: this is not JSON"),
        (
            "a.json",
            '{"sizes": [1]}',
            "",
            "there is no list 'lengths'; choose with --column from: sizes",
        ),
        ("a.json", '"512"', "", "is not a JSON list of lengths"),
        ("a.json", "[512, NaN]", "", "a.json[1]: the length is NaN"),
        ("a.json", "[512, true]", "", "is not a whole number of tokens"),
        ("a.json", "[512, null]", "", "is not a whole number of tokens"),
        ("a.json", "[" * 100_000, "", "lists too deep"),
        ("a.json", "[" + "9" * 5000 + "]", "", "a.json"),
        ("a.jsonl", "512\n{}\n", "", "a.jsonl:2: no key has numbers"),
        ("a.jsonl", "512\n{\n", "", "a.jsonl:2: this is not JSON"),
        ("a.jsonl", '{"a": 1}\n', "b", "a.jsonl:1: there is no key 'b'"),
        ("a.npy", npy(np.array([[1, 2]])), "", "the array has shape (1, 2)"),
        ("a.npy", npy(np.array([5.0, np.nan])), "", "a.npy[1]: the length is NaN"),
        ("a.npy", npy(np.array([5.0, 1.5])), "", "a.npy[1]: '1.5' is not a whole number"),
        ("a.npy", npy(np.array([5, 0])), "", "a.npy[1]: the length 0 is less than 1"),
        ("a.npy", npy(np.array(["a"])), "", "not whole numbers"),
        ("a.npy", npy(np.arange(9))[:-5], "", "this is a broken NPY file"),
        ("a.npy", npy(np.array([None])), "", "this is a broken NPY file"),
        ("a.npy", b"\x93NUMPY", "", "this is a broken NPY file"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place(
    tmp_path: Path, name: str, content: str | bytes, column: str, said: str
) -> None:
    refused(saved(tmp_path, name, content), said, column=column)


def test_no_folder_and_no_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Is a directory.*write lognormal"):
        read_lengths(str(tmp_path))
    refused(str(tmp_path / "missing"), "No such file")
    refused("a\0b", "this is not a file name")


def test_a_file_of_a_thousand_million_lengths_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "huge.txt"
    with path.open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)  # a hole: takes no space
    refused(str(path), "is larger than 256 MiB")


def test_an_array_that_claims_a_thousand_million_lengths_is_refused(tmp_path: Path) -> None:
    header = npy(np.zeros(1, np.int64)).replace(b"(1,), }         ", b"(1000000000,), }")
    assert b"1000000000" in header
    refused(saved(tmp_path, "a.npy", header), "1,000,000,000 lengths")


def test_numbers_may_stand_in_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_lengths("512,1024").values == (512, 1024)
    monkeypatch.chdir(tmp_path)
    Path("512,1024").write_text("7")
    assert read_lengths("512,1024").values == (7,)


def test_a_long_list_in_the_option_is_no_file_name() -> None:
    assert len(read_lengths(",".join(["1024"] * 2000))) == 2000


def test_lognormal_draws_what_megatron_draws() -> None:
    found = read_lengths("lognormal:mean=1024,sigma=1.5,min=128,max=8192,n=512")
    state = np.random.RandomState(0)
    drawn = state.lognormal(np.log(1024) - 1.5**2 / 2, 1.5, 100_000)
    expected = np.clip(drawn, 128, 8192).astype(int)
    assert found.values == tuple(expected[:512].tolist())
    assert min(found.values) == 128
    assert max(found.values) == 8192
    # The mean is that of the distribution before the cut, not e to the mean of the logarithms.
    assert drawn.mean() == pytest.approx(1024, rel=0.05)


def test_lognormal_is_seeded() -> None:
    text = "lognormal:mean=1024,sigma=1.5,n=64"
    same = read_lengths("lognormal:mean=1.024e3,sigma=1.5,n=64e0").values
    assert same == read_lengths(text).values
    assert read_lengths(text).values == read_lengths(f"{text},seed=0").values
    assert read_lengths(text).values != read_lengths(f"{text},seed=1").values


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("mean=1024", "n: is missing"),
        ("n=4", "mean: is missing"),
        ("", "mean: is missing"),
        ("mean=1024,n=1000000000", "1,000,000,000 lengths are more than 20,000,000"),
        ("mean=1024,n=0", "n: '0' is less than 1"),
        ("mean=1024,n=2.5", "n: 2.5 is not a whole number"),
        ("mean=0,n=4", "mean: '0' is less than 1"),
        ("mean=-5,n=4", "mean is '-5', not a number from 0 on"),
        ("mean=nan,n=4", "mean is 'nan', not a number"),
        ("mean=1e400,n=4", "mean is '1e400', not a number"),
        ("mean=9,n=4,min=9,max=3", "min 9 is over max 3"),
        ("mean=9,n=4,sigma=99", "sigma: '99' is more than 10"),
        ("mean=9,n=4,seed=99999999999", "seed: '99999999999' is more than 4,294,967,295"),
        ("mean=9,n=4,n=5", "an option is given twice"),
        ("mean=9,n=4,mode=2", "mode: is an unknown field"),
        ("mean=9,n", "n is '', not a number"),
    ],
)
def test_a_distribution_that_cannot_be_drawn(options: str, said: str) -> None:
    refused(f"lognormal:{options}", said)
