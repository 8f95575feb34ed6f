"""Lists the files of a package on simple indexes (PEP 691, PEP 503) and in folders.

This uses ``urllib`` because other index clients do not support ``file:`` indexes and
``find-links``, or treat a failure of the server as a missing release.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from ringproof.harness.upstreams.connection import Connection, NotThere, Page
from ringproof.harness.upstreams.pip import PipSettings

_SHA256 = re.compile(r"(?:^|&)sha256=([0-9a-fA-F]{64})(?:&|$)")
_HEX = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True)
class IndexFile:
    """A file of a release in an index.

    Attributes:
        sha256: Hash in lower case; ``None`` if the index has none.
    """

    url: str
    name: str
    sha256: str | None


def index_files(name: str, settings: PipSettings, connection: Connection) -> Iterator[IndexFile]:
    """Yield all files that the places of pip's configuration list for a package.

    Args:
        name: The package, normalized.

    Raises:
        UpstreamUnavailable: A place cannot be reached; those before it were read.
    """
    for place in settings.find_links:
        yield from _linked(place, connection)
    for index in settings.indexes:
        try:
            page = connection.page(_folder_page(f"{index.rstrip('/')}/{name}/"))
        except NotThere:
            continue
        yield from _listed(page)


def _linked(place: str, connection: Connection) -> Iterator[IndexFile]:
    url = place if "://" in place else Path(place).absolute().as_uri()
    folder = _local(url)
    if folder is not None and folder.is_dir():
        yield from (IndexFile(file.as_uri(), file.name, None) for file in sorted(folder.iterdir()))
        return
    try:
        yield from _listed(connection.page(url))
    except NotThere:
        return


def _folder_page(url: str) -> str:
    folder = _local(url)
    return f"{url}index.html" if folder is not None and folder.is_dir() else url


def _local(url: str) -> Path | None:
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _listed(page: Page) -> Iterator[IndexFile]:
    found = _from_json(page) if "json" in page.kind else _from_html(page)
    remote = urlsplit(page.url).scheme != "file"
    for file in found:
        scheme = urlsplit(file.url).scheme
        # A page from the network may not refer to files of this machine.
        if scheme in ("http", "https") or (scheme == "file" and not remote):
            yield file


def _from_json(page: Page) -> Iterator[IndexFile]:
    try:
        data = json.loads(page.data)
    except (ValueError, RecursionError):
        data = None
    files = data.get("files") if isinstance(data, dict) else None
    for file in files if isinstance(files, list) else ():
        if not isinstance(file, dict) or not isinstance(file.get("url"), str):
            continue
        hashes = file.get("hashes")
        sha256 = hashes.get("sha256") if isinstance(hashes, Mapping) else None
        known = isinstance(sha256, str) and _HEX.fullmatch(sha256) is not None
        yield _file(page.url, file["url"], str(sha256) if known else None)


def _from_html(page: Page) -> Iterator[IndexFile]:
    parser = _Links()
    parser.feed(page.data.decode("utf-8", "replace"))
    base = urljoin(page.url, parser.base)
    for link in parser.links:
        match = _SHA256.search(urldefrag(link).fragment)
        yield _file(base, link, match[1] if match is not None else None)


def _file(base: str, link: str, sha256: str | None) -> IndexFile:
    url = urldefrag(urljoin(base, link)).url
    name = unquote(urlsplit(url).path).rpartition("/")[2]
    return IndexFile(url, name, None if sha256 is None else sha256.lower())


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        link = dict(attrs).get("href")
        if link and tag == "base":
            self.base = self.base or link
        elif link and tag == "a":
            self.links.append(link)
