"""A server of objects that speaks HTTP and enough of S3: ranges, conditions, listings, uploads; it counts what it gives."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import itertools
import random
import re
import threading
import time
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape


class Paced:
    """The rate and the delay of a store, shared by all its connections; a share of its answers is ``factor`` times as late."""

    def __init__(self, rate: float = 0, delay: float = 0, late: float = 0, factor: float = 20) -> None:
        self.rate, self.delay, self.late, self.factor = rate, delay, late, factor
        self.random = random.Random(7)
        self.free = 0.0
        self.lock = threading.Lock()

    def lag(self) -> float:
        """Seconds before the next answer."""
        with self.lock:
            is_late = self.random.random() < self.late
        return self.delay * (self.factor if is_late else 1)

    def wait(self, length: int) -> None:
        """Waits until so many bytes may be sent."""
        if not self.rate:
            return
        with self.lock:
            self.free = max(self.free, time.monotonic()) + length / self.rate
            ready = self.free
        time.sleep(max(ready - time.monotonic(), 0))


class Late:
    """The first request to change an object that begins with ``like``: it has come whole, and is handled when it is let go."""

    def __init__(self, like: str) -> None:
        self.like = like
        self.come, self.may_go, self.over = threading.Event(), threading.Event(), threading.Event()
        self.status: int | None = None

    def takes(self, request: str) -> bool:
        """True for one request."""
        if self.come.is_set() or not request.startswith(self.like):
            return False
        self.come.set()
        return True


class Objects(http.server.ThreadingHTTPServer):
    """Objects by path, such as ``bucket/key``."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    @property
    def handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        """Answers requests."""
        return Handler

    def __init__(self, paced: Paced | None = None, host: str = "127.0.0.1") -> None:
        self.paced = paced or Paced()
        self.tags: dict[str, tuple[bytes | None, str]] = {}
        self.content: dict[str, bytes] = {}
        self.given = 0
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.numbers = itertools.count(1)
        self.refuses = False
        # False for one that implements no conditional writes.
        self.conditional = True
        self.late: Late | None = None
        self.requests: list[str] = []
        # The key that signed each request, and the session token beside it.
        self.told: list[tuple[str | None, str | None]] = []
        # Each request to read as it came: its line and its headers.
        self.heard: list[str] = []
        self.lock = threading.Lock()
        super().__init__((host, 0), self.handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """The address of its root."""
        return "http://{}:{}".format(*self.server_address)

    @property
    def storage_options(self) -> dict[str, str]:
        """Options that make it the endpoint of S3."""
        return {
            "aws_endpoint": self.url,
            "aws_allow_http": "true",
            "aws_access_key_id": "id",
            "aws_secret_access_key": "secret",
            "aws_region": "eu-west-1",
            # Requests are counted.
            "hedge": "false",
        }

    def tag(self, path: str, content: bytes) -> str:
        """The entity tag of an object, computed once."""
        known, tag = self.tags.get(path, (None, ""))
        if known is not content:
            tag = f'"{hashlib.md5(content).hexdigest()}"'
            self.tags[path] = (content, tag)
        return tag

    def count(self) -> int:
        """Bytes of objects given since the last call."""
        with self.lock:
            given, self.given = self.given, 0
        return given


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers as S3 and Google Cloud Storage do."""

    server: Objects
    protocol_version = "HTTP/1.1"
    status: int | None = None

    def answer(self, body: bool) -> None:
        asked = urlsplit(self.path)
        query = {key: value[0] for key, value in parse_qs(asked.query, keep_blank_values=True).items()}
        path = unquote(asked.path).lstrip("/")
        with self.server.lock:
            self.server.requests.append(f"{self.command} {self.path} {self.headers.get('Range', '')}".strip())
            signed = re.search("Credential=([^/]*)/", self.headers.get("Authorization", ""))
            self.server.told.append((signed and signed[1], self.headers.get("x-amz-security-token")))
            self.server.heard.append(f"{self.requestline}\n{self.headers}")
        if self.special(path, query, body):
            return
        content = self.server.content.get(path)
        if content is None:
            self.reply(404, b"", body, {})
            return
        tag = self.server.tag(path, content)
        if self.headers.get("If-Match", tag) != tag:
            self.reply(412, b"", body, {})
            return
        headers = {"ETag": tag, "Accept-Ranges": "bytes", "Last-Modified": "Sat, 01 Nov 2025 00:00:00 GMT"}
        given = self.headers.get("Range", "").removeprefix("bytes=")
        if not given:
            self.reply(200, content, body, headers, counted=True)
            return
        start, _, last = given.partition("-")
        first = int(start) if start else max(len(content) - int(last), 0)
        part = content[first : int(last) + 1 if start and last else len(content)]
        headers["Content-Range"] = f"bytes {first}-{first + len(part) - 1}/{len(content)}"
        self.reply(206, part, body, headers, counted=True)

    def special(self, path: str, query: dict[str, str], body: bool) -> bool:
        """Answers what is no object; False for one."""
        if "list-type" in query:
            self.reply(200, self.listing(path.rstrip("/"), query), body, {"Content-Type": "application/xml"})
        return "list-type" in query

    def listing(self, bucket: str, query: dict[str, str]) -> bytes:
        prefix, delimited = query.get("prefix", ""), "delimiter" in query
        found, below = [], set()
        for path, content in sorted(self.server.content.items()):
            key = path.removeprefix(f"{bucket}/")
            if key == path or not key.startswith(prefix):
                continue
            directory, more, _ = key[len(prefix) :].partition("/")
            if delimited and more:
                below.add(f"<CommonPrefixes><Prefix>{escape(prefix + directory)}/</Prefix></CommonPrefixes>")
                continue
            tag = escape(self.server.tag(path, content), {'"': "&quot;"})
            found.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>2025-11-01T00:00:00.000Z</LastModified>"
                f"<ETag>{tag}</ETag><Size>{len(content)}</Size></Contents>"
            )
        inside = "".join([*found, *sorted(below)])
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{inside}</ListBucketResult>".encode()

    def reply(self, status: int, content: bytes, body: bool, headers: dict[str, str], counted: bool = False) -> None:
        self.status = status
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            if counted:
                with self.server.lock:
                    self.server.given += len(content)
            with contextlib.suppress(ConnectionError):  # the client left
                if self.server.paced.delay:
                    time.sleep(self.server.paced.lag())
                for at in range(0, len(content), 1 << 20):
                    part = content[at : at + (1 << 20)]
                    self.server.paced.wait(len(part))
                    self.wfile.write(part)

    def do_GET(self) -> None:
        self.answer(True)

    def do_HEAD(self) -> None:
        self.answer(False)

    def body(self) -> bytes:
        length = int(self.headers.get("Content-Length", "0"))
        body = self.rfile.read(length)
        self.server.paced.wait(len(body))
        return body

    def change(self) -> None:
        asked = urlsplit(self.path)
        query = {key: value[0] for key, value in parse_qs(asked.query, keep_blank_values=True).items()}
        path, body = unquote(asked.path).lstrip("/"), self.body()
        server = self.server
        if len(body) < int(self.headers.get("Content-Length", "0")):
            # The rest of it never comes.
            self.close_connection = True
            return
        late = server.late if server.late is not None and server.late.takes(f"{self.command} {self.path}") else None
        if late is not None:
            late.may_go.wait()
        try:
            self.act(path, query, body)
        finally:
            if late is not None:
                late.status = self.status
                late.over.set()

    def act(self, path: str, query: dict[str, str], body: bytes) -> None:
        """Does what is asked, and answers."""
        server = self.server
        with server.lock:
            server.requests.append(f"{self.command} {self.path}")
            if server.refuses:
                # An answer that is not tried again.
                self.refuse(403, "AccessDenied")
                return
            upload = query.get("uploadId")
            if upload is not None and upload not in server.uploads:
                self.refuse(404, "NoSuchUpload")
                return
            if (refused := self.unmet(path)) is not None:
                self.refuse(*refused)
                return
            answer, tag = self.changed(path, query, upload, body)
        self.reply(204 if self.command == "DELETE" else 200, answer, True, {"ETag": tag} if tag else {})

    def refuse(self, status: int, code: str) -> None:
        self.reply(status, f"<Error><Code>{code}</Code></Error>".encode(), True, {})

    def unmet(self, path: str) -> tuple[int, str] | None:
        """The answer to a condition that does not hold: status and code."""
        match, none_match = self.headers.get("If-Match"), self.headers.get("If-None-Match")
        if match is None and none_match is None:
            return None
        if not self.server.conditional:
            return 501, "NotImplemented"
        content = self.server.content.get(path)
        if none_match == "*":
            return None if content is None else (412, "PreconditionFailed")
        if content is None:
            return 404, "NoSuchKey"
        return None if self.server.tag(path, content) == match else (412, "PreconditionFailed")

    def changed(self, path: str, query: dict[str, str], upload: str | None, body: bytes) -> tuple[bytes, str]:
        server = self.server
        if self.command == "POST" and "uploads" in query:
            number = f"upload{next(server.numbers)}"
            server.uploads[number] = {}
            return (
                f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId></InitiateMultipartUploadResult>".encode(),
                "",
            )
        if self.command == "POST" and "delete" in query:
            keys = re.findall(r"<Key>(.*?)</Key>", body.decode())
            for key in keys:
                server.content.pop(f"{path.rstrip('/')}/{unescape(key)}", None)
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            return f"<DeleteResult>{deleted}</DeleteResult>".encode(), ""
        if upload is not None:
            if self.command == "PUT":
                server.uploads[upload][int(query["partNumber"])] = body
                return b"", f'"{hashlib.md5(body).hexdigest()}"'
            parts = server.uploads.pop(upload)
            if self.command == "DELETE":
                return b"", ""
            wanted = [int(number) for number in re.findall(r"<PartNumber>(\d+)</PartNumber>", body.decode())]
            body = b"".join(parts[number] for number in wanted)
        elif self.command == "DELETE":
            server.content.pop(path, None)
            return b"", ""
        elif (source := self.headers.get("x-amz-copy-source")) is not None:
            body = server.content[unquote(source).lstrip("/")]
        server.content[path] = body
        tag = server.tag(path, body)
        if upload is not None:
            return f"<CompleteMultipartUploadResult><ETag>{tag}</ETag></CompleteMultipartUploadResult>".encode(), ""
        if "x-amz-copy-source" in self.headers:
            return f"<CopyObjectResult><ETag>{tag}</ETag></CopyObjectResult>".encode(), ""
        return b"", tag

    do_PUT = do_POST = do_DELETE = change

    def log_message(self, *_: Any) -> None:
        pass
