"""The built site, a server for it, and Chromium. Without ``--site`` the browser's tests skip."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    text = (
        "Folder of the built site, as `make docs` writes it. Nothing of checks/site may skip then."
    )
    parser.addoption("--site", type=Path, default=None, help=text)


def built_site(config: pytest.Config) -> Path | None:
    """The folder of ``--site``, which only this folder's own runs know."""
    return config.getoption("--site", default=None)


def pages_of(site: Path) -> list[str]:
    """The addresses of all pages below the site's root, the root itself as ``""``."""
    found = (path.parent.relative_to(site).as_posix() for path in site.rglob("index.html"))
    return sorted("" if page == "." else f"{page}/" for page in found)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with ``address`` for every page of the site."""
    if "address" in metafunc.fixturenames:
        site = built_site(metafunc.config)
        pages = pages_of(site) if site else [""]
        metafunc.parametrize("address", pages, ids=[page or "home" for page in pages])


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="session")
def site(pytestconfig: pytest.Config) -> Path:
    folder = built_site(pytestconfig)
    if folder is None:
        pytest.skip("needs a built site and Chromium: `make docs docs-test` runs it")
    assert (folder / "index.html").is_file(), f"{folder} is not a built site"
    return folder


@pytest.fixture(scope="session")
def server(site: Path) -> Iterator[str]:
    """The address of the site."""
    handler = functools.partial(_Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_address[1]}/"
        served.shutdown()


@pytest.fixture(scope="session")
def chromium(site: Path) -> Iterator[Any]:
    """One browser for all tests of a process."""
    from playwright.sync_api import sync_playwright

    del site
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert program is not None, f"none of {', '.join(BROWSERS)} is installed"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield browser
        browser.close()


class Complaints(list[str]):
    """What a page should not have done: errors on the console, and requests to other hosts."""

    def watch(self, page: Any, server: str) -> None:
        """Collect from a page."""
        page.on("console", lambda said: self._said(said))
        page.on("pageerror", lambda error: self.append(f"error: {error}"))
        page.on("request", lambda request: self._asked(request.url, server))

    def _said(self, said: Any) -> None:
        if said.type in ("error", "warning"):
            self.append(f"{said.type}: {said.text}")

    def _asked(self, url: str, server: str) -> None:
        if not url.startswith((server, "data:", "blob:", "about:")):
            self.append(f"request to another host: {url}")


@pytest.fixture
def complaints() -> Complaints:
    return Complaints()


@pytest.fixture
def page(chromium: Any, server: str, complaints: Complaints) -> Iterator[Any]:
    """A new page whose complaints are collected."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, base_url=server)
    opened = context.new_page()
    opened.set_default_timeout(60_000)
    complaints.watch(opened, server)
    yield opened
    context.close()
