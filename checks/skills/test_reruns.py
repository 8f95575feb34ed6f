"""What the tests of the release say on later commits, each in a rank that imported that commit.

A statement that holds on the release only is named here as well: its test fails on the commit.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from dataclasses import replace

import pytest

from checks.skills.shared import REPOSITORY
from ringproof.prove.touches import Touch, collecting, note, watch
from ringproof.stack.products import MEGATRON

SCHEDULER = "checks/skills/test_dynamic_scheduler.py"
DYNAMIC = "checks/skills/test_dynamic_upstream.py"
HIERARCHICAL = "checks/skills/test_hierarchical_upstream.py"
HYBRID_ON_THE_RELEASE_ONLY = {
    "megatron-lm-r0.17": {"test_backward_calls_fit_this_release"},
    "megatron-lm-main": {
        "test_backward_calls_fit_this_release",
        "test_packing_carries_a_size_and_a_group",
        "test_a_flag_is_passed_as_the_group_size",
    },
    "megatron-lm-dev": {
        "test_backward_calls_fit_this_release",
        "test_packing_carries_a_size_and_a_group",
        "test_a_flag_is_passed_as_the_group_size",
        "test_config_accepts_what_cannot_work",
        "test_config_does_refuse_something",
        "test_mla_refuses_a_dynamic_size",
    },
}
LEVELS_ON_THE_RELEASE_ONLY = {
    "megatron-lm-r0.19": {"test_per_layer_list_is_off_by_one"},
    "megatron-lm-main": {"test_per_layer_list_is_off_by_one"},
    "megatron-lm-dev": {
        "test_per_layer_list_is_off_by_one",
        "test_local_attention_refuses_context_parallelism",
    },
}
NEED_A_GROUP = {  # later commits ask torch about the group, which in these tests looks like one
    "test_mamba_heads_and_groups_must_divide",
    "test_consecutive_level_zero_keeps_the_zigzag",
    "test_sequence_must_divide_by_twice_the_flat_size",
}
pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
"""A set-up here runs whole files of tests, 60 s on an idle machine."""
ABOUT_THE_RELEASE = {"test_installed_release_is_the_one_on_the_card"}


class Outcomes:
    """A plugin of pytest that keeps the worst outcome of each test function, with its reason."""

    def __init__(self, folder: str) -> None:
        self.found: dict[str, str] = {}
        self.ran: dict[str, list[str]] = {}
        self._folder = folder

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out tests that start ranks themselves: they take the commit as a parameter."""
        items[:] = [item for item in items if "stage" not in getattr(item, "fixturenames", ())]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[object]:
        """Keep which functions of upstream run in a test."""
        with collecting() as touches:
            watch(self._folder, Touch(False, "", ""))
            result = yield
        ran = self.ran.setdefault(item.originalname, [])
        ran += (name for touch in touches for name in touch.functions)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("::")[2].partition("[")[0]
        if not report.passed:
            self.found[name] = f"{report.outcome}: {report.longreprtext[-600:]}"
        elif report.when == "call":
            self.found.setdefault(name, "passed")


def outcomes(files: list[str]) -> dict[str, tuple[str, list[str]]]:
    """Run test files in a rank that imported upstream.

    Return by test function its outcome, and which functions of upstream ran.
    """
    (folder,) = importlib.import_module("megatron.core").__path__
    kept = Outcomes(folder)
    pytest.main(["-q", "-p", "no:cacheprovider", "--noconftest", *files], plugins=[kept])
    return {name: (outcome, kept.ran.get(name, [])) for name, outcome in kept.found.items()}


def names(*files: str) -> list[str]:
    """Test functions that can run on another commit: those that start no ranks themselves."""
    found: set[str] = set()
    for file in files:
        tree = ast.parse((REPOSITORY / file).read_text(encoding="utf-8"))
        needs = {
            node.name: {argument.arg for argument in node.args.args}
            for node in tree.body
            if isinstance(node, ast.FunctionDef)
        }
        started = {"stage"}
        while more := {name for name, given in needs.items() if given & started} - started:
            started |= more
        found |= {name for name in needs if name.startswith("test_")} - started
    return sorted(found - NEED_A_GROUP - ABOUT_THE_RELEASE)


def reruns(stage, upstream_of, versions, *files):
    """Outcomes by test function, and what was touched, for each version of the dynamic CP card.

    A version that is not here is left out: a statement is then not covered on its line.
    """
    found, lacking = {}, ""
    for name in versions:
        try:
            upstream = upstream_of(name)
        except pytest.skip.Exception as error:
            lacking = str(error)
            continue
        with collecting(apart=True) as touches:  # one run of all tests; each notes its own part
            (by_test,) = stage.call(
                "checks.skills.test_reruns:outcomes", 1, list(files), upstream=upstream
            )
        core = next(touch for touch in touches if touch.repo == MEGATRON)
        found[name] = by_test, replace(core, executed=False, functions=())
    return found or pytest.skip(lacking)


@pytest.fixture(scope="module")
def hybrid(stage, upstream_of):
    return reruns(stage, upstream_of, HYBRID_ON_THE_RELEASE_ONLY, SCHEDULER, DYNAMIC)


@pytest.fixture(scope="module")
def levels(stage, upstream_of):
    return reruns(stage, upstream_of, LEVELS_ON_THE_RELEASE_ONLY, HIERARCHICAL)


def agree(found, name, not_there):
    for version, (by_test, core) in found.items():
        outcome, ran = by_test[name]
        note(core.ran(ran))
        expected = "failed" if name in not_there[version] else "passed"
        assert outcome.startswith(expected), f"{version}: {outcome}"


@pytest.mark.parametrize("name", names(SCHEDULER, DYNAMIC))
def test_hybrid_from_0_17_to_dev(hybrid, name):
    agree(hybrid, name, HYBRID_ON_THE_RELEASE_ONLY)


@pytest.mark.parametrize("name", names(HIERARCHICAL))
def test_levels_from_0_19_to_dev(levels, name):
    agree(levels, name, LEVELS_ON_THE_RELEASE_ONLY)
