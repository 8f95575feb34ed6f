"""Fills the templates of a package: all values are escaped in HTML, and none may be missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

_NONE: Mapping[str, Callable[..., Any]] = MappingProxyType({})


def fill_template(
    package: str, name: str, values: Mapping[str, Any], filters: Mapping[str, Any] = _NONE
) -> str:
    """Return a file of a package's folder ``templates``, filled with values.

    Args:
        name: A name with ``.html`` in it is a page, in which values are escaped.
    """
    from jinja2 import PackageLoader, StrictUndefined  # takes 40 ms, which few commands need
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        loader=PackageLoader(package),
        autoescape=".html" in name,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(filters)
    return environment.get_template(name).render(values)
