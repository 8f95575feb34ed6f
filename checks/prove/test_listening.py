"""Upstream is executed where a function of it ran, and read where it was only imported."""

from __future__ import annotations

import ast
import importlib
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.prove.miniature import Miniature, claim, miniature
from ringproof.prove.anchoring import GivenTree
from ringproof.prove.imports import ImportedUpstreams
from ringproof.prove.listening import Listener
from ringproof.prove.touches import Touch, collecting, merged, note, watch
from ringproof.rehearsal.fixtures import SessionServers
from ringproof.upstream.tree import FolderTree

REPO = "NVIDIA/Megatron-LM"
RAN_OLD, RAN_NEW = Touch(True, REPO, "a" * 40), Touch(True, REPO, "b" * 40)
PACKAGE = """
from dataclasses import dataclass

def double(number):
    return 2 * number

FOUR = double(2)

class Sizes:
    def product(self):
        return [double(number) for number in range(3)]

@dataclass
class Plain:
    number: int = 1
"""
TESTS = """
import ast
import inspect
import megatron.core
import pytest
from megatron.core import double

@pytest.fixture
def four():
    return double(2)

def test_imports():
    import megatron.core.late

def test_parses():
    assert ast.parse(inspect.getsource(megatron.core))

def test_names_no_upstream():
    assert "double"

def test_calls():
    assert double(2) == 4

def test_by_fixture(four):
    assert four == 4
"""


@pytest.fixture
def core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module that can be imported as ``ringproof_listened.core``."""
    package = tmp_path / "ringproof_listened"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "core.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield package
    for name in [name for name in sys.modules if name.startswith("ringproof_listened")]:
        del sys.modules[name]


def test_an_import_and_the_code_of_classes_do_not_count(core: Path) -> None:
    listener = Listener()
    listener.listen(str(core))
    module = importlib.import_module("ringproof_listened.core")
    assert listener.functions(str(core)) == (), "although the module calls a function"
    module.Plain()
    assert listener.functions(str(core)) == ("core.py:Plain.__init__",)
    module.Sizes().product()
    listener.close()
    module.double(1)
    names = [name.rpartition(".")[2] for name in listener.functions(str(core))]
    assert names == ["__init__", "py:double", "product"], "also called in a comprehension"


def test_what_ran_before_counts_again_for_the_next(core: Path) -> None:
    module = importlib.import_module("ringproof_listened.core")
    for _ in range(2):
        listener = Listener()
        listener.listen(str(core))
        module.double(1)
        listener.close()
        assert listener.functions(str(core)) == ("core.py:double",)


def test_a_folder_that_is_added_later_is_heard(core: Path, tmp_path: Path) -> None:
    module = importlib.import_module("ringproof_listened.core")
    listener = Listener()
    listener.listen(str(tmp_path / "other"))
    module.double(1)
    listener.listen(str(core))
    assert listener.functions(str(core)) == ()
    module.double(1)
    listener.close()
    assert listener.functions(str(core)) == ("core.py:double",)


def test_a_listener_inside_another_leaves_it_as_it_was(core: Path) -> None:
    module, before = importlib.import_module("ringproof_listened.core"), sys.getprofile()
    outer, inner = Listener(), Listener()
    outer.listen(str(core))
    inner.listen(str(core))
    module.double(1)
    inner.close()
    module.Sizes().product()
    outer.close()
    module.Plain()
    assert inner.functions(str(core)) == ("core.py:double",)
    assert outer.functions(str(core))[-1].endswith("product")
    assert sys.getprofile() is before


def _repository(root: Path) -> Miniature:
    """A repository whose tests find a megatron-core of our own before the installed one."""
    repository = miniature(root)
    repository.file("pytest.ini", "[pytest]\npythonpath = .\n")
    repository.file("megatron_core-0.0.dist-info/METADATA", "Name: megatron-core\nVersion: 0.0\n")
    repository.file("megatron/core/__init__.py", PACKAGE)
    repository.file("megatron/core/late.py", "from megatron.core import double\nSIX = double(3)\n")
    repository.file("checks/test_core.py", TESTS)
    return repository


def test_tests_that_import_or_parse_read_and_tests_that_call_execute(tmp_path: Path) -> None:
    repository = _repository(tmp_path)
    names = ("imports", "parses", "names_no_upstream", "calls", "by_fixture")
    repository.card(claims=[claim(name, f"checks/test_core.py::test_{name}") for name in names])
    _, claims, _ = repository.verdicts()
    assert {name: item["evidence"] for name, item in claims.items()} == {
        "imports": "read",
        "parses": "read",
        "names_no_upstream": "derived",
        "calls": "upstream executed",
        "by_fixture": "upstream executed",
    }
    (proof,) = claims["calls"]["proofs"]
    assert proof["upstream"] == [f"executed {REPO} megatron-core 0.0"]
    assert proof["ran"] == {f"executed {REPO} megatron-core 0.0": ["__init__.py:double"]}


def imports_only(argument: object) -> str:
    """Run on a rank: import a module of upstream."""
    module = importlib.import_module("megatron.core.packed_seq_params")
    return str(module.__file__)


def calls(argument: object) -> int:
    """Run on a rank: call a function of upstream."""
    module = importlib.import_module("megatron.core.utils")
    return int(module.divide(6, 2))


@pytest.mark.slow
def test_ranks_tell_what_ran_on_them(stage: SessionServers) -> None:
    with collecting() as found:
        stage.call("checks.prove.test_listening:imports_only", 1)
    assert not any(touch.executed for touch in found)
    with collecting() as found:
        assert stage.call("checks.prove.test_listening:calls", 1) == [3]
    (ran,) = (touch for touch in found if touch.executed)
    assert ran.repo == REPO
    assert "megatron/core/utils.py:divide" in ran.functions


def test_notes_reach_whoever_collects(core: Path) -> None:
    note(RAN_OLD)  # nobody collects
    module = importlib.import_module("ringproof_listened.core")
    with collecting() as outer:
        with collecting() as inner:
            watch(str(core), Touch(False, REPO, "c"))
            note(RAN_NEW)
            module.double(1)
        note(RAN_OLD)
    assert inner == [RAN_NEW, Touch(True, REPO, "c", functions=("core.py:double",))]
    assert outer == [*inner, RAN_OLD]
    assert merged([*outer, RAN_OLD]) == tuple(sorted(outer))


def test_a_checkout_tells_reading_from_running(tmp_path: Path) -> None:
    (tmp_path / "core.py").write_text("def new():\n    return 7\n")
    tree = GivenTree(FolderTree(tmp_path), REPO, "b" * 40)
    with collecting() as read:
        parts = ast.parse(tree.read("core.py")).body
        new = tree.run("core.py", parts, {})["new"]
    assert set(read) == {Touch(False, REPO, "b" * 40)}, "defining a function does not run it"
    with collecting() as ran:
        tree.run("core.py", parts, {})
        assert new() == 7
    assert ran[-1] == Touch(True, REPO, "b" * 40, functions=("core.py:new",))
    with collecting() as ran:
        tree.run("core.py", ast.parse("if number:\n    number += 1").body, {"number": 1})
    assert ran[0] == Touch(True, REPO, "b" * 40, functions=("core.py:1",)), "part of a function"


def test_the_packages_that_a_test_can_reach(tmp_path: Path) -> None:
    source = tmp_path / "test_x.py"
    source.write_text(
        textwrap.dedent("""
        from megatron.core.transformer import TransformerConfig
        import pytest

        @pytest.fixture
        def config():
            return TransformerConfig(num_layers=1)

        def build():
            return TransformerConfig

        MODEL = build()

        def test_by_fixture(config):
            pass

        def test_by_function():
            build()

        def test_by_constant():
            assert MODEL

        def test_by_own_import():
            import transformer_engine.pytorch

        def test_of_something_else():
            text = "TransformerConfig"
        """)
    )
    imports = ImportedUpstreams()
    names = ("by_fixture", "by_function", "by_constant", "by_own_import", "of_something_else")
    reached = [[one.name for one in imports.reached(source, f"test_{name}")] for name in names]
    assert reached == [["megatron-core"]] * 3 + [["transformer-engine"], []]
