"""Fills jinja2 templates: the one place where their settings are made.

Values are escaped in pages, a missing value is an error, and templates run in jinja2's sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

_NONE: Mapping[str, Callable[..., Any]] = MappingProxyType({})


def environment(
    package: str,
    *,
    folder: str = "templates",
    html: bool = False,
    filters: Mapping[str, Callable[..., Any]] = _NONE,
    finalize: Callable[[Any], Any] | None = None,
) -> Any:
    """Return jinja2's environment for the templates in a folder of a package.

    Args:
        html: Escape values for HTML.
        filters: Further filters of the templates, by name.
        finalize: Applied to each value before it is inserted.
    """
    from jinja2 import PackageLoader, StrictUndefined  # takes 40 ms, which few commands need
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    made = ImmutableSandboxedEnvironment(
        loader=PackageLoader(package, folder),
        autoescape=html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=finalize,
    )
    made.filters.update(filters)
    return made


def fill_template(package: str, name: str, values: Mapping[str, Any], **settings: Any) -> str:
    """Return a template of a package, filled with values.

    Args:
        name: A name with ``.html`` in it is a page, in which values are escaped.
        settings: Further arguments of `environment`.
    """
    made = environment(package, html=".html" in name, **settings)
    return str(made.get_template(name).render(values))
