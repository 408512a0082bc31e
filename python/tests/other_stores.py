"""Servers that answer readers as Azure and the Hub do; they record what they are told, as `Objects` does."""

from __future__ import annotations

import hashlib
import http.server
import json
import time
from xml.sax.saxutils import escape

from objects import Handler, Objects

REPO = "owner/name"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Blobs(Objects):
    """Containers of Azure: objects by path, such as ``container/key``."""

    @property
    def storage_options(self) -> dict[str, str]:
        """Options that make it the endpoint of Azure."""
        return {
            "azure_storage_account_name": "account",
            "azure_storage_endpoint": self.url,
            "azure_storage_token": "token",
            "allow_http": "true",
            # Requests are counted.
            "hedge": "false",
        }

    @property
    def handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        return _Blobs


class _Blobs(Handler):
    def special(self, path: str, query: dict[str, str], body: bool) -> bool:
        if query.get("comp") != "list":
            return False
        start, prefix = f"{path.rstrip('/')}/", query.get("prefix", "")
        blobs, below = [], set()
        for path_of, content in sorted(self.server.content.items()):
            if not path_of.startswith(start + prefix):
                continue
            key = path_of.removeprefix(start)
            directory, more, _ = key[len(prefix) :].partition("/")
            if more and "delimiter" in query:
                below.add(f"<BlobPrefix><Name>{escape(prefix + directory)}/</Name></BlobPrefix>")
                continue
            # Without the quotes that it has in an answer.
            tag = escape(self.server.tag(path_of, content).strip('"'))
            blobs.append(
                f"<Blob><Name>{escape(key)}</Name><Properties>"
                f"<Last-Modified>Sat, 01 Nov 2025 00:00:00 GMT</Last-Modified><Content-Length>{len(content)}</Content-Length>"
                f"<Content-Type>application/octet-stream</Content-Type><Etag>{tag}</Etag></Properties></Blob>"
            )
        inside = "".join([*sorted(below), *blobs])
        answer = f"<EnumerationResults><Blobs>{inside}</Blobs><NextMarker/></EnumerationResults>"
        self.reply(200, answer.encode(), body, {"Content-Type": "application/xml"})
        return True


class Hub(Objects):
    """One dataset of the Hub, `owner/name`: files by path. Their bytes are at addresses of another server, ``bytes``."""

    def __init__(self) -> None:
        self.bytes = Objects()
        super().__init__()

    @property
    def handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        return _Hub


class _Hub(Handler):
    server: Hub

    def special(self, path: str, query: dict[str, str], body: bool) -> bool:
        files = self.server.content
        hashes = {hashlib.sha256(content).hexdigest(): content for content in files.values()}
        tree, resolve = f"api/datasets/{REPO}/tree/{COMMIT}", f"datasets/{REPO}/resolve/{COMMIT}/"
        if path == f"api/datasets/{REPO}/revision/main":
            self.reply(200, json.dumps({"sha": COMMIT}).encode(), body, {})
        elif path.startswith(tree):
            start = path.removeprefix(tree).lstrip("/")
            entries = [
                {"type": "file", "path": name, "size": len(content), "oid": oid[:40], "lfs": {"oid": oid}}
                for oid, content in hashes.items()
                for name in sorted(files)
                if files[name] is content and name.startswith(start)
            ]
            self.reply(200, json.dumps(entries).encode(), body, {})
        elif path.startswith(resolve) and (content := files.get(path.removeprefix(resolve))) is not None:
            oid = hashlib.sha256(content).hexdigest()
            self.server.bytes.content[oid] = content
            headers = {"Location": f"{self.server.bytes.url}/{oid}?Expires={int(time.time()) + 600}&Signature=s"}
            self.reply(302, b"", body, {**headers, "x-linked-etag": f'"{oid}"', "x-linked-size": str(len(content))})
        else:
            self.reply(404, b"", body, {"x-error-code": "EntryNotFound"})
        return True
