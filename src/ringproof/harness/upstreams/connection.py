"""Reads index pages and files over http, https and from this machine with pip's settings."""

from __future__ import annotations

import base64
import http.client
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from ringproof.harness.upstreams.pip import PipSettings
from ringproof.harness.upstreams.tree import UpstreamError, UpstreamUnavailable

MAX_PAGE_BYTES = 64_000_000
MAX_DOWNLOAD_BYTES = 500_000_000

_TIMEOUT = 30.0
_TOTAL_TIMEOUT = 600.0
_ACCEPT = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, "
    "text/html;q=0.1"
)
_ABSENT = (404, 410)
_FAILURES = (OSError, http.client.HTTPException, ValueError, ssl.SSLError)


class NotThere(Exception):
    """The server answers but has no such page."""


@dataclass(frozen=True)
class Page:
    """A received page, with its final URL, media type and bytes."""

    url: str
    kind: str
    data: bytes


@dataclass(frozen=True)
class Connection:
    """Reads URLs.

    Attributes:
        settings: Settings of pip. For authentication, only ``user:password@`` in an index's URL is
            supported; it is sent to that host only.
    """

    settings: PipSettings
    _logins: Mapping[str, str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        places = (*self.settings.indexes, *self.settings.find_links)
        logins = dict(_login(place) for place in places if "@" in place and "://" in place)
        object.__setattr__(self, "_logins", MappingProxyType(logins))

    def page(self, url: str) -> Page:
        """Read a whole page.

        Raises:
            NotThere: There is none.
            UpstreamUnavailable: It cannot be had from here.
        """
        with self._open(url) as answer:
            data = answer.read(MAX_PAGE_BYTES + 1)
            if len(data) > MAX_PAGE_BYTES:
                raise ValueError(f"a page of more than {MAX_PAGE_BYTES:,} bytes")
            return Page(answer.url, answer.headers.get_content_type(), data)

    def download(self, url: str, destination: Path) -> None:
        """Write a file's content to a new file.

        Raises:
            NotThere: There is none.
            UpstreamError: It is too large.
            UpstreamUnavailable: It cannot be had from here.
        """
        end = time.monotonic() + _TOTAL_TIMEOUT
        left = MAX_DOWNLOAD_BYTES
        with self._open(url) as answer, destination.open("xb") as stream:
            for block in iter(lambda: answer.read(1 << 18), b""):
                left -= len(block)
                if left < 0:
                    name = destination.name
                    raise UpstreamError(f"{name}: larger than {MAX_DOWNLOAD_BYTES:,} bytes")
                if time.monotonic() > end:
                    raise TimeoutError(f"not finished within {_TOTAL_TIMEOUT:g} s")
                stream.write(block)

    @contextmanager
    def _open(self, url: str) -> Iterator[Any]:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        where = host or "this machine"
        try:
            plain = urlunsplit(parts._replace(netloc=host))
            request = urllib.request.Request(plain, headers={"Accept": _ACCEPT})
            if host in self._logins:
                request.add_unredirected_header("Authorization", self._logins[host])
            with self._opener(parts.hostname, host).open(request, timeout=_TIMEOUT) as answer:
                yield answer
        except urllib.error.HTTPError as error:
            if error.code in _ABSENT:
                raise NotThere from None
            raise UpstreamUnavailable(f"{where} answered {error.code}") from error
        except urllib.error.URLError as error:
            if parts.scheme == "file" and isinstance(error.reason, FileNotFoundError | str):
                raise NotThere from None
            raise UpstreamUnavailable(f"cannot reach {where}: {_line(error.reason)}") from error
        except _FAILURES as error:
            raise UpstreamUnavailable(f"cannot read from {where}: {_line(error)}") from error

    def _opener(self, hostname: str | None, host: str) -> urllib.request.OpenerDirector:
        cert = self.settings.cert
        folder = cert is not None and Path(cert).is_dir()
        context = ssl.create_default_context(
            cafile=None if folder else cert, capath=cert if folder else None
        )
        if {hostname, host} & self.settings.trusted:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.settings.client_cert is not None:
            context.load_cert_chain(self.settings.client_cert)
        handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=context)]
        if self.settings.proxy is not None:
            both = {"http": self.settings.proxy, "https": self.settings.proxy}
            handlers.append(urllib.request.ProxyHandler(both))
        return urllib.request.build_opener(*handlers)


def _login(url: str) -> tuple[str, str]:
    user, _, host = urlsplit(url).netloc.rpartition("@")
    name, _, password = user.partition(":")
    plain = f"{unquote(name)}:{unquote(password)}".encode()
    return host, f"Basic {base64.b64encode(plain).decode('ascii')}"


def _line(error: object) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
