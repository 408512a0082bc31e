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
    def handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        return _Blobs


class _Blobs(Handler):
    def special(self, path: str, query: dict[str, str], body: bool) -> bool:
        if query.get("comp") != "list":
            return False
        start = f"{path.rstrip('/')}/"
        blobs = [
            f"<Blob><Name>{escape(key.removeprefix(start))}</Name><Properties>"
            f"<Last-Modified>Sat, 01 Nov 2025 00:00:00 GMT</Last-Modified><Content-Length>{len(content)}</Content-Length>"
            f"<Content-Type>application/octet-stream</Content-Type>"
            f"<Etag>{escape(self.server.tag(key, content), {chr(34): '&quot;'})}</Etag></Properties></Blob>"
            for key, content in sorted(self.server.content.items())
            if key.startswith(start + query.get("prefix", ""))
        ]
        answer = f"<EnumerationResults><Blobs>{''.join(blobs)}</Blobs><NextMarker/></EnumerationResults>"
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
