"""``ringproof doctor`` on the configurations that upstream ships: no false alarm."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from checks.doctor.upstream_lines import COMMITS, stack_at, upstream_at
from ringproof.doctor.examine import BAD, examine
from ringproof.doctor.reading import read_settings
from ringproof.doctor.settings import Settings
from ringproof.errors import InputError
from ringproof.rehearsal.fixtures import SessionServers

RECORDS: list[dict[str, Any]] = YAML(typ="safe", pure=True).load(
    Path(__file__).with_name("shipped.yaml").read_text(encoding="utf-8")
)
TESTS = "tests/functional_tests/test_cases"


def settings_of(path: Path, sets: Mapping[str, str]) -> Settings | None:
    try:
        return read_settings([str(path)], sets)
    except InputError:
        return None


def functional(root: Path) -> Iterator[tuple[str, Settings | None]]:
    for path in sorted((root / TESTS).glob("**/model_config.yaml")):
        yield path.parent.name, settings_of(path, {})


def recipes_of(root: Path) -> Iterator[tuple[str, Settings | None]]:
    for path in sorted((root / "megatron/bridge/recipes").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            name = getattr(node, "name", "")
            if isinstance(node, ast.FunctionDef) and name.endswith("_config") and name[0] != "_":
                yield name, settings_of(path, {"RINGPROOF_RECIPE": name})


def released(stage: SessionServers, spec: str) -> Path:
    upstreams = pytest.importorskip("ringproof.rehearsal.runs.upstreams", reason="needs torch")
    try:
        return upstreams.open_product(
            "megatron-bridge", "megatron/bridge", ("megatron/", "src/"), f"pip:{spec}",
            option="--upstream", cache=stage.cache, offline=True, inside=("", "src"),
        )[0]  # fmt: skip
    except InputError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["code"])
def test_what_upstream_ships_is_called_bad_only_where_the_record_says_so(
    record: dict[str, Any], stage: SessionServers
) -> None:
    code, stack = record["code"], stack_at(record["line"])
    upstream = upstream_at(stage, code) if code in COMMITS else None
    given = list(functional(upstream.megatron) if upstream else recipes_of(released(stage, code)))
    read = [(name, settings) for name, settings in given if settings is not None]
    assert (len(given), len(read)) == (record["given"], record["read"])
    examined = {name: (settings, examine(settings, stack)) for name, settings in read}
    bad = {
        name: ", ".join(one.rule.statement for one in found.findings if one.effect in BAD)
        for name, (_, found) in examined.items()
        if found.bad
    }
    assert bad == record["bad"]


def test_the_page_has_the_counts_of_the_record() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs/doctor-proof.md").read_text().split())
    for record in RECORDS:
        told = f"| {record['code']} | {record['given']} | {record['read']} | {len(record['bad'])} |"
        assert told in page
