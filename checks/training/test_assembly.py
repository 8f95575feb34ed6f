"""What is checked and kept of a run as a whole, before its first step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from checks.training.test_options import run
from ringproof.errors import InputError
from ringproof.reference.topology.layout import RankLayout
from ringproof.reference.training.assembly import check_longest
from ringproof.reference.training.checkpoint import identity_of
from ringproof.reference.training.data import SyntheticLanguage
from ringproof.reference.training.options import TrainOptions
from ringproof.reference.training.schedules import Schedule

DOCUMENTS = SyntheticLanguage(longest=64, documents=50)
OPTIONS = run(layout={"cp": 2}, keeping={"save": "here"})


def changed(part: str, **values: Any) -> Callable[[TrainOptions], TrainOptions]:
    def change(options: TrainOptions) -> TrainOptions:
        return replace(options, **{part: replace(getattr(options, part), **values)})

    return change


@pytest.mark.parametrize(
    "change",
    [
        changed("model", mtp=1),
        changed("model", dtype="float64"),
        changed("parallel", layout=RankLayout(dp=2)),
        changed("parallel", comm_type="all_gather"),
        changed("batch", seed=1),
        changed("batch", schedule="packed"),
        changed("batch", max_tokens_per_rank=2048),
        changed("batch", forced_sizes=(1, 2)),
        changed("optimiser", steps=51),
        changed("optimiser", clip=0.5),
    ],
)
def test_what_changes_a_run_ends_its_resumption(
    change: Callable[[TrainOptions], TrainOptions],
) -> None:
    assert identity_of(change(OPTIONS), DOCUMENTS) != identity_of(OPTIONS, DOCUMENTS)


def test_other_documents_are_another_run() -> None:
    """The same folder with a file more has the same arguments."""
    more = replace(DOCUMENTS, documents=51)
    differing = dict(identity_of(OPTIONS, more).items() - identity_of(OPTIONS, DOCUMENTS).items())
    assert differing.keys() == {"documents"}


def test_what_a_run_keeps_does_not_end_its_resumption() -> None:
    other = changed("keeping", save="there", evaluate_every=2, resume=True)(OPTIONS)
    assert identity_of(other, DOCUMENTS) == identity_of(OPTIONS, DOCUMENTS)


def test_a_document_that_fits_nowhere_is_refused_before_a_step_draws_it() -> None:
    schedule = Schedule(name="dynamic", ranks=2, max_tokens_per_rank=32, cp_sizes=(1, 2))
    check_longest(DOCUMENTS, schedule)
    longest = int(DOCUMENTS.lengths.argmax())
    with pytest.raises(InputError, match="longer than the 60 tokens") as caught:
        check_longest(DOCUMENTS, replace(schedule, max_tokens_per_rank=30))
    assert caught.value.field == DOCUMENTS.name(longest)
