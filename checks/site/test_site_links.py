"""Links of the built site; mkdocs checks those of Markdown, and not those of HTML."""

from __future__ import annotations

from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

ROOT = "http://site.invalid/"


class _Page(HTMLParser):
    """Links and ids of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect from one tag."""
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.ids.add(value)
            elif (
                name in ("href", "src")
                and value
                and tag in ("a", "img", "script", "iframe", "link")
            ):
                self.links.add(value)


@cache
def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def broken(site: Path, address: str) -> list[str]:
    """The links of a page that lead nowhere in the site, fragments included."""
    found = []
    for link in sorted(_read(site / address / "index.html").links):
        target, fragment = urldefrag(urljoin(ROOT + address, link))
        if not target.startswith(ROOT):
            continue
        path = site / unquote(target.removeprefix(ROOT))
        path = path / "index.html" if target.endswith("/") else path
        checked = fragment if path.suffix == ".html" else ""
        if not path.is_file() or (checked and unquote(checked) not in _read(path).ids):
            found.append(link)
    return found


def test_links_lead_somewhere(address: str, site: Path) -> None:
    assert broken(site, address) == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "index.html").write_text(
        "<p id=x><a href=#x>1</a><a href=#y>2</a><a href=../b/>3</a><img src='../c.svg'>"
        "<a href=https://example.org/>4</a>"
    )
    assert broken(tmp_path, "a/") == ["#y", "../b/", "../c.svg"]
