"""Documents: where they come from, how long they are, what is held out, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringproof.errors import InputError
from ringproof.reference.training.data import (
    Documents,
    Files,
    Sampler,
    SyntheticLanguage,
    read_data,
    split,
    standard_library,
)


def every(documents: Documents) -> list[bytes]:
    return [bytes(documents.read(index)) for index in range(len(documents.lengths))]


def files_of(path: Path, contents: dict[str, bytes]) -> Files:
    for name, content in contents.items():
        (path / name).write_bytes(content)
    lengths = np.array([len(content) for content in contents.values()])
    return Files(tuple(str(path / name) for name in contents), lengths)


def test_the_standard_library_is_sorted_and_cut() -> None:
    documents = standard_library(1024)
    names = [documents.name(index) for index in range(len(documents.lengths))]
    assert len(names) > 200
    assert not [name for name in names if "site-packages" in name or not name.endswith(".py")]
    root = Path(names[0]).parents[0]
    assert names == sorted(names, key=lambda name: Path(name).relative_to(root).as_posix())
    assert documents.lengths.min() >= 1 and documents.lengths.max() == 1024
    index = next(i for i, name in enumerate(names) if name.endswith("/dataclasses.py"))
    assert bytes(documents.read(index)) == Path(names[index]).read_bytes()[:1024]


def test_a_file_that_shrank_is_refused_by_name(tmp_path: Path) -> None:
    data = split(files_of(tmp_path, {"a": b"12345", "b": b"1"}))
    (tmp_path / "a").write_bytes(b"123")
    with pytest.raises(InputError, match="a: the file had 5 bytes when the run began, and now 3"):
        data.training.read(0)
    (tmp_path / "a").unlink()
    with pytest.raises(InputError, match="a: the file cannot be read: No such file"):
        data.training.read(0)


@pytest.mark.parametrize("count", [2, 19, 20, 45, 400])
def test_held_out_documents_are_disjoint_and_nothing_is_lost(count: int) -> None:
    data = split(SyntheticLanguage(longest=64, documents=count))
    names = [
        [part.name(index) for index in range(len(part.lengths))]
        for part in (data.training, data.evaluation)
    ]
    assert len(names[1]) == max(1, count // 20)
    assert len(set(names[0]) | set(names[1])) == len(names[0]) + len(names[1]) == count


def test_lengths_are_those_of_what_is_read() -> None:
    for source in ("stdlib", "stdlib:definitions", "synthetic:documents=300"):
        data = read_data(source, longest=512)
        for index in range(0, 200, 7):
            assert len(data.training.read(index)) == data.training.lengths[index]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("wikipedia", "is an unknown source; use stdlib"),
        ("synthetic:seed=x", "is unknown, there twice, or not a number"),
        ("synthetic:seed=1,seed=2", "is unknown, there twice, or not a number"),
        ("synthetic:colour=1", "is unknown, there twice, or not a number"),
        ("synthetic:documents=1", "synthetic: documents: 1 is not a whole number from 2"),
        ("synthetic:seed=1.5", "synthetic: seed: 1.5 is not a whole number from 0"),
        ("synthetic:mean=0", "has a mean of less than 1"),
        ("synthetic:sigma=99", "a sigma of more than 10"),
    ],
)
def test_bad_sources_are_refused(source: str, message: str) -> None:
    with pytest.raises(InputError) as refusal:
        read_data(source, longest=64)
    assert message in str(refusal.value)


def test_a_single_document_cannot_be_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ringproof.reference.training.data.standard_library",
        lambda _: files_of(tmp_path, {"only": b"1"}),
    )
    with pytest.raises(InputError, match="is a single document"):
        read_data("stdlib", longest=8)


def test_what_the_language_repeats_lies_far_apart_and_is_each_document_s_own() -> None:
    language = SyntheticLanguage(longest=2000, documents=40, mean=1500, sigma=0.1)
    names = set()
    for index in range(40):
        document = bytes(language.read(index))
        name = document[:8]
        assert name.isupper() and len(name) == 8
        mentions = [i for i in range(9, len(document) - 8) if document[i : i + 1] == b"@"]
        assert len(mentions) > 5
        assert all(document[i + 1 : i + 9] == name for i in mentions)
        assert min(np.diff([0, *mentions])) > 40
        names.add(name)
    assert len(names) == 40


def test_the_language_depends_on_its_seed_and_not_on_the_cut() -> None:
    one = SyntheticLanguage(longest=512, documents=20)
    assert every(one) == every(SyntheticLanguage(longest=512, documents=20))
    assert every(one) != every(replace(one, seed=1))
    short = SyntheticLanguage(longest=16)
    assert bytes(short.read(5)) == bytes(one.read(5))[:16]


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 2**32 - 1))
def test_every_document_once_per_epoch(documents: int, batch: int, seed: int) -> None:
    sampler = Sampler(seed=seed, global_batch=batch, documents=documents)
    steps = -(-3 * documents // batch)
    seen = np.concatenate([sampler.indices(step) for step in range(steps)])
    for epoch in range(3):
        assert sorted(seen[epoch * documents : (epoch + 1) * documents]) == [*range(documents)]


def test_epochs_and_seeds_have_their_own_orders() -> None:
    orders = [
        tuple(Sampler(seed=seed, global_batch=50, documents=50).indices(epoch).tolist())
        for seed in range(3)
        for epoch in range(3)
    ]
    assert len(set(orders)) == 9


def test_batches_of_other_sizes_walk_the_same_order() -> None:
    large = Sampler(seed=1, global_batch=12, documents=30)
    small = Sampler(seed=1, global_batch=4, documents=30)
    parts = [small.indices(step) for step in range(3)]
    assert large.indices(0).tolist() == np.concatenate(parts).tolist()
