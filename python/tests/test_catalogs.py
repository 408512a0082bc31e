"""Tables by their names in a catalog, from Python and the command line; more is in tests/it/dataset: catalog, unity, glue, hive."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import bowstring
import pytest
from bowstring import Loader

LAKE = pathlib.Path(__file__).parents[2] / "fixtures" / "delta" / "dv-with-columnmapping" / "delta"
TOKEN = "dapi-hidden"
NAME = "uc://main.default.lake"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A stub of Unity Catalog whose tables are on this disk; it lends no keys."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            table = {"table_type": "EXTERNAL", "data_source_format": "DELTA", "table_id": "1"}
            table["storage_location"] = LAKE.resolve().as_uri()
            status, answer = 404, {"error_code": "TABLE_DOES_NOT_EXIST", "message": "none"}
            if self.headers["authorization"] != f"Bearer {TOKEN}":
                status, answer = 401, {"error_code": "UNAUTHENTICATED", "message": "who?"}
            elif self.path == "/api/2.1/unity-catalog/tables/main.default.lake":
                status, answer = 200, table
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in ("DATABRICKS_HOST", "DATABRICKS_TOKEN", "DATABRICKS_CLIENT_ID", "DATABRICKS_CLIENT_SECRET"):
            monkeypatch.delenv(name, raising=False)
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def first(address: str, **options: Any) -> tuple[int, list[Any], str]:
    """Rows, the first batch and the state of a loader."""
    with Loader(address, batch_size=4, shuffle=False, **options) as loader:
        batch = next(iter(loader))
        return loader.rows, [column.tolist() for column in batch.values()], json.dumps(loader.state_dict(), default=str)


def test_a_loader_takes_a_name_and_its_state_that_of_the_path(host: str) -> None:
    options = {"databricks_host": host, "databricks_token": TOKEN}
    named, by_path = first(NAME, storage_options=options), first(str(LAKE))
    assert named == by_path
    assert TOKEN not in named[2]


def test_the_environment_names_host_and_token(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(bowstring.ConfigError, match="databricks_host"):
        Loader(NAME, batch_size=4)
    monkeypatch.setenv("DATABRICKS_HOST", host)
    monkeypatch.setenv("DATABRICKS_TOKEN", TOKEN)
    assert first(NAME)[0] > 0
    monkeypatch.setenv("DATABRICKS_TOKEN", "another-hidden")
    with pytest.raises(bowstring.StoreError, match="databricks_token") as caught:
        Loader(NAME, batch_size=4)
    assert "hidden" not in str(caught.value)


def test_what_is_wrong_has_its_type(host: str) -> None:
    options = {"databricks_host": host, "databricks_token": TOKEN}
    with pytest.raises(bowstring.NotFoundError, match=r"uc://main\.default\.none"):
        Loader("uc://main.default.none", batch_size=4, storage_options=options)
    with pytest.raises(bowstring.ConfigError, match='"databricks_token" is like it'):
        Loader(NAME, batch_size=4, storage_options={"databricks_host": host, "databricks_tokn": "x"})
    with pytest.raises(bowstring.NotFoundError, match="version 99"):
        Loader(NAME, batch_size=4, storage_options=options, version=99)
    for address in ("uc://lake", "glue://lake", "hms://host/lake", "iceberg://lake"):
        with pytest.raises(bowstring.ConfigError):
            Loader(address, batch_size=4, storage_options={**options, "iceberg_uri": host, "glue_region": "a-1"})


def test_the_command_line_takes_a_name(host: str) -> None:
    options = f"databricks_host={host},databricks_token={TOKEN}"
    command = [sys.executable, "-m", "bowstring", "inspect", NAME, "--storage-options", options]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    here = [sys.executable, "-m", "bowstring", "inspect", str(LAKE)]
    expected = subprocess.run(here, capture_output=True, text=True, check=True, timeout=120)
    columns = [line for line in expected.stdout.splitlines() if "rows" in line]
    assert columns
    assert all(line in told.stdout for line in columns), told.stdout
    assert TOKEN not in told.stdout + told.stderr


def test_a_table_is_converted_by_name(host: str, tmp_path: pathlib.Path) -> None:
    options = f"databricks_host={host},databricks_token={TOKEN}"
    command = [sys.executable, "-m", "bowstring", "convert", NAME, str(tmp_path / "out"), "--to", "parquet"]
    command += ["--storage-options", options]
    subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    with Loader(tmp_path / "out", batch_size=4) as written, Loader(LAKE, batch_size=4) as table:
        assert written.rows == table.rows


def test_a_plan_and_a_server_take_a_name(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"databricks_host": host, "databricks_token": TOKEN}
    written = ",".join(f"{key}={value}" for key, value in options.items())
    told = []
    for arguments in ([NAME, "--storage-options", written], [str(LAKE)]):
        command = [sys.executable, "-m", "bowstring", "plan", *arguments, "--batch-size", "4", "--json"]
        run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        told.append(json.loads(run.stdout))
    assert told[0]["rows"] == told[1]["rows"] > 0
    assert TOKEN not in json.dumps(told)
    monkeypatch.setenv("DATABRICKS_HOST", host)
    monkeypatch.setenv("DATABRICKS_TOKEN", TOKEN)
    with bowstring.flight.Server({"lake": NAME}) as server:
        with Loader(f"{server.url}/lake", batch_size=4, shuffle=False) as served:
            rows = [column.tolist() for batch in served for column in batch.values()]
        with Loader(LAKE, batch_size=4, shuffle=False) as table:
            assert rows == [column.tolist() for batch in table for column in batch.values()]
