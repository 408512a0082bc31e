"""A store that speaks S3: lists, sizes, ranges of files, conditions. A file of faults makes it refuse or cut answers.

``python -m chaos.store DIRECTORY ADDRESS PORT FAULTS``; the file FAULTS holds ``{"refuse": 0.5, "cut": 0.1}``, parts of requests.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

BUCKET = "bucket"


class Store(ThreadingHTTPServer):
    """The files of one directory as the objects of one bucket."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, directory: Path, address: str, port: int, faults: Path) -> None:
        self.objects = {
            path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*.parquet")
        }
        self.tags = {name: f'"{hashlib.md5(body).hexdigest()}"' for name, body in self.objects.items()}
        self.faults = faults
        super().__init__((address, port), Handler)

    def fault(self) -> dict[str, float]:
        """Returns the current faults."""
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, float] = json.loads(self.faults.read_text())
            return found
        return {}


class Handler(BaseHTTPRequestHandler):
    server: Store
    protocol_version = "HTTP/1.1"
    timeout = 60

    def answer(self, status: int, body: bytes, head: dict[str, str] | None = None, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in (head or {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.close_connection = True

    def do_GET(self) -> None:
        fault = self.server.fault()
        if random.random() < fault.get("refuse", 0):
            self.answer(503, b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>")
            return
        asked = urlsplit(self.path)
        bucket, _, key = unquote(asked.path).removeprefix("/").partition("/")
        query = parse_qs(asked.query)
        if bucket != BUCKET:
            self.answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        elif "list-type" in query:
            self.answer(200, self.listing(query.get("prefix", [""])[0]))
        elif key not in self.server.objects:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self.send_object(key, random.random() < fault.get("cut", 0))

    do_HEAD = do_GET

    def listing(self, prefix: str) -> bytes:
        found = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{self.server.tags[key].replace(chr(34), '&quot;')}</ETag><Size>{len(body)}</Size></Contents>"
            for key, body in sorted(self.server.objects.items())
            if key.startswith(prefix)
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode()

    def send_object(self, key: str, cut: bool) -> None:
        body, tag = self.server.objects[key], self.server.tags[key]
        if self.headers.get("if-match", tag) != tag:
            self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        head, status = {"etag": tag, "last-modified": "Thu, 01 Jan 2026 00:00:00 GMT"}, 200
        if "range" in self.headers:
            first, last = self.headers["range"].removeprefix("bytes=").split("-")
            start = int(first) if first else max(0, len(body) - int(last))
            end = min(int(last) + 1, len(body)) if first and last else len(body)
            head["content-range"] = f"bytes {start}-{end - 1}/{len(body)}"
            status, body = 206, body[start:end]
        self.answer(status, body, head, cut)

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):
            super().handle()

    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    directory, address, port, faults = sys.argv[1:]
    store = Store(Path(directory), address, int(port), Path(faults))
    print("ready", flush=True)
    store.serve_forever()
