"""Synthetic source archives, and an index that serves them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from checks.anchors.wheelhouse import SOURCES

TOP = "demo_upstream-1.0"
FILES = {f"{TOP}/PKG-INFO": "Name: demo_upstream\n"} | {
    f"{TOP}/{name}": text for name, text in SOURCES.items()
}


def entry(name: str, content: str | bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    data = content.encode() if isinstance(content, str) else content
    header = tarfile.TarInfo(name)
    header.size = len(data)
    for key, value in fields.items():
        setattr(header, key, value)
    return header, data


def tar_bytes(entries: Sequence[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for header, data in entries:
            archive.addfile(header, io.BytesIO(data) if header.isreg() else None)
    return stream.getvalue()


def make_sdist(
    folder: Path,
    files: Mapping[str, str | bytes] = FILES,
    extra: Sequence[tuple[tarfile.TarInfo, bytes]] = (),
    *,
    name: str = f"{TOP}.tar.gz",
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    entries = [entry(file, text) for file, text in files.items()]
    path = folder / name
    path.write_bytes(gzip.compress(tar_bytes([*entries, *extra]), 1))
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass
class Index:
    """A simple index on this machine; `pages` by path are (status, media type, body)."""

    url: str
    pages: dict[str, tuple[int, str, bytes]] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def offer(self, file: Path, kind: str = "json", digest: str | None = None) -> None:
        """List one file of demo-upstream, as JSON or HTML, with its true hash or another."""
        shown = sha256(file) if digest is None else digest
        self.pages[f"/files/{file.name}"] = (200, "application/gzip", file.read_bytes())
        if kind == "json":
            entry = {"filename": file.name, "url": f"../../files/{file.name}"}
            entry |= {"hashes": {"sha256": shown} if shown else {}}  # type: ignore[dict-item]
            body = json.dumps({"meta": {"api-version": "1.0"}, "files": [entry]})
            media = "application/vnd.pypi.simple.v1+json"
        else:
            link = f"/files/{file.name}" + (f"#sha256={shown}" if shown else "")
            body, media = f'<!DOCTYPE html><a href="{link}">{file.name}</a>', "text/html"
        self.pages["/simple/demo-upstream/"] = (200, media, body.encode())


@contextmanager
def serve() -> Iterator[Index]:
    """An empty index at a free port of this machine."""
    index = Index("")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.asked.append((self.path, self.headers.get("Authorization")))
            status, media, body = index.pages.get(self.path, (404, "text/plain", b"none"))
            self.send_response(status)
            self.send_header("Content-Type", media)
            self.send_header("Content-Length", str(len(body)))
            if 300 <= status < 400:
                self.send_header("Location", body.decode())
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    index.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
