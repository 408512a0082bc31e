"""Credentials from callables: both shapes, sync and async, renewed and refused; against a server like S3."""

from __future__ import annotations

import asyncio
import functools
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import bowstring
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bowstring.credentials import _Asked, provider

ROWS = 400


class Bucket:
    """One file in a bucket, the key whose signatures it accepts, and the request from which it refuses any key."""

    def __init__(self, path: Path) -> None:
        pq.write_table(pa.table({"id": range(ROWS)}), path, row_group_size=20)
        self.body = path.read_bytes()
        self.key: str | None = None
        self.refused_from: int | None = None
        self.signers: list[str] = []
        bucket = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                signer = self.headers.get("authorization", "Credential=nobody/").split("Credential=")[1].split("/")[0]
                bucket.signers.append(signer)
                status, head, body = 200, {"etag": '"a"'}, bucket.body
                closed = bucket.refused_from is not None and len(bucket.signers) > bucket.refused_from
                if closed or bucket.key not in (None, signer):
                    status, head, body = 403, {}, b"<Error><Code>InvalidAccessKeyId</Code></Error>"
                elif "list-type=2" in self.path:
                    body = (
                        "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>data/a.parquet</Key>"
                        "<LastModified>2026-11-21T00:00:00.000Z</LastModified><ETag>&quot;a&quot;</ETag>"
                        f"<Size>{len(bucket.body)}</Size></Contents></ListBucketResult>"
                    ).encode()
                elif not self.path.endswith("a.parquet"):
                    status, body = 404, b""
                elif "range" in self.headers:
                    first, last = self.headers["range"].removeprefix("bytes=").split("-")
                    start = int(first) if first else len(body) - int(last)
                    end = min(int(last) + 1, len(body)) if first and last else len(body)
                    head["content-range"] = f"bytes {start}-{end - 1}/{len(body)}"
                    status, body = 206, body[start:end]
                self.send_response(status)
                for name, value in head.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_HEAD = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def options(self) -> dict[str, str]:
        endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        return {"aws_endpoint": endpoint, "aws_allow_http": "true", "aws_region": "eu-west-1"}

    def loader(self, given: Any, **more: Any) -> bowstring.Loader:
        options = {"shuffle": False, "prefetch": 1, "lanes": 1, "rank": 0, "world_size": 1, "timeout": 60, **more}
        options.setdefault("storage_options", self.options())
        return bowstring.Loader("s3://bucket/data", batch_size=10, credential_provider=given, **options)


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    made = Bucket(tmp_path / "a.parquet")
    yield made
    made.server.shutdown()
    made.server.server_close()


def keys(number: int) -> dict[str, Any]:
    return {"access_key_id": f"key{number}", "secret_access_key": "sEcReT", "token": None}


class Counted:
    """A provider of one shape that counts its calls."""

    def __init__(self, shape: str, life: float = 3600) -> None:
        self.shape, self.life, self.asked = shape, life, 0
        self.loops: set[int] = set()

    def __call__(self) -> Any:
        number, self.asked = self.asked, self.asked + 1
        if self.shape == "polars":
            return {f"aws_{name}": value for name, value in keys(number).items() if value}, int(time.time() + self.life)
        if self.shape == "for ever":
            return keys(number), None
        if self.shape == "async":
            return self.later(number)
        return {**keys(number), "expires_at": datetime.now(timezone.utc) + timedelta(seconds=self.life)}

    async def later(self, number: int) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        self.loops.add(id(asyncio.get_running_loop()))
        return {**keys(number), "expires_at": None}


@pytest.mark.parametrize("shape", ["obstore", "polars", "for ever", "async"])
def test_every_shape_is_accepted_and_called_again_after_a_refusal(bucket: Bucket, shape: str) -> None:
    given = Counted(shape)
    with bucket.loader(given) as loader:
        assert given.asked == 1
        bucket.key = "key1"
        assert [row for batch in loader for row in batch["id"].tolist()] == list(range(ROWS))
        assert given.asked == 2
        assert set(bucket.signers) == {"key0", "key1"}
        shown = f"{loader!r} {loader.state_dict()}"
        assert "sEcReT" not in shown
        assert "key1" not in shown
    assert len(given.loops) == (shape == "async")


def test_credentials_of_a_short_life_are_renewed_before_their_end(bucket: Bucket) -> None:
    given = Counted("obstore", life=1.0)
    with bucket.loader(given) as loader:
        for _ in range(3):
            assert sum(len(batch["id"]) for batch in loader) == ROWS
            time.sleep(0.9)
    assert 2 <= given.asked <= 6, "about once in 0.8 seconds, and not for each request"


def test_plan_and_index_accept_a_provider(bucket: Bucket) -> None:
    given = Counted("obstore")
    options = {"storage_options": bucket.options(), "credential_provider": given}
    assert bowstring.plan("s3://bucket/data", batch_size=10, **options)["row_groups"] == 20
    assert len(bowstring.index("s3://bucket/data", storage_options=bucket.options(), credential_provider=given)) > 100
    assert given.asked == 2


def broken() -> Mapping[str, Any]:
    raise RuntimeError("the vault is closed")


def test_an_error_of_the_provider_is_a_store_error_that_names_it(bucket: Bucket) -> None:
    with pytest.raises(bowstring.StoreError, match=r"test_credentials\.broken.*RuntimeError: the vault is closed"):
        bucket.loader(broken)
    # A failure in the middle of an epoch.
    given = Counted("obstore")
    with bucket.loader(given) as loader:
        bucket.refused_from = len(bucket.signers) + 5
        with pytest.raises(bowstring.StoreError) as caught:
            list(loader)
        assert "sEcReT" not in str(caught.value)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([1], "gives a list"),
        ({"access_key_id": 3}, "access_key_id that it gives is a int"),
        ({**keys(0), "expires_at": datetime(2030, 1, 1)}, "time zone"),
        ((keys(0), "soon"), "expiry that it gives is a str"),
        ({"access_key_id": "sEcReT"}, "secret_access_key"),
        ({**keys(0), "acces_key": "sEcReT"}, "is no credential of S3"),
        ((keys(0), 1), "over already"),
        ({**keys(0), "token": "sEcReT\n"}, "line break"),
    ],
)
def test_credentials_that_no_store_accepts_are_reported_without_secrets(bucket: Bucket, found: Any, told: str) -> None:
    with pytest.raises((bowstring.StoreError, bowstring.ConfigError)) as caught:
        bucket.loader(lambda: found)
    assert told in str(caught.value)
    assert "sEcReT" not in str(caught.value)


def test_a_provider_without_a_use_is_an_error(bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(bowstring.ConfigError, match="cannot be called"):
        bucket.loader({"access_key_id": "x"})
    with pytest.raises(bowstring.ConfigError, match="either credentials or"):
        bucket.loader(broken, storage_options={**bucket.options(), "aws_access_key_id": "x"})
    with pytest.raises(bowstring.ConfigError, match="a server reads with credentials of its own"):
        bowstring.Loader("grpc://127.0.0.1:1/x", batch_size=1, credential_provider=broken)


def test_names_never_show_a_providers_secret() -> None:
    class Vault:
        def __call__(self) -> Mapping[str, Any]:
            return {}

        def __repr__(self) -> str:
            return "sEcReT"

    for given in (Vault(), functools.partial(broken), broken, lambda: keys(0)):
        made = provider(given)
        assert made is not None
        assert "sEcReT" not in made[0]
        assert made[0].count(".") >= 1


def test_pickling_a_loader_with_a_provider_is_an_error(bucket: Bucket) -> None:
    with bucket.loader(Counted("obstore")) as loader, pytest.raises(bowstring.UnsupportedError, match="open one there"):
        pickle.dumps(loader)


def test_the_loop_of_an_async_provider_is_closed_with_it() -> None:
    asked = _Asked(Counted("async"))
    assert asked()[0]["access_key_id"] == "key0"
    assert asked()[0]["access_key_id"] == "key1"
    loop = asked._loop
    assert loop is not None
    del asked
    assert loop.is_closed()


ENDS_IN_A_CALL = """
import threading, time
import bowstring

began = threading.Event()

def slow():
    began.set()
    end = time.monotonic() + 0.7
    while time.monotonic() < end:
        time.sleep(0.0005)  # comes back to the interpreter, which is ending
    return {"access_key_id": "a", "secret_access_key": "b", "expires_at": None}

def opens():
    try:
        bowstring.Loader("s3://bucket/data", batch_size=1, rank=0, world_size=1, credential_provider=slow, timeout=5)
    except bowstring.Error:
        pass

threading.Thread(target=opens, daemon=True).start()
assert began.wait(30)
"""

ENDS_IN_AN_ASYNC_CALL = ENDS_IN_A_CALL.replace("def slow", "async def slow").replace(
    "time.sleep(0.0005)", "await asyncio.sleep(0.0005)"
)

# The wait for the call comes after the main thread's end, and is interrupted twice.
ENDS_INTERRUPTED = (
    ENDS_IN_A_CALL
    + """
import os, signal

def interrupt():
    threading.main_thread().join()
    for _ in range(2):
        time.sleep(0.15)
        os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
"""
)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(ENDS_IN_A_CALL, id="call"),
        pytest.param("import asyncio\n" + ENDS_IN_AN_ASYNC_CALL, id="async"),
        pytest.param(ENDS_INTERRUPTED, id="interrupted"),
    ],
)
def test_a_process_ends_in_the_middle_of_a_call_of_a_provider(script: str) -> None:
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
