"""Footers tell at opening what could not be read later."""

from __future__ import annotations

import base64
import functools
import http.server
import json
import pathlib
import random
import threading

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

encryption = pytest.importorskip("pyarrow.parquet.encryption")


class Keys(encryption.KmsClient):  # type: ignore[misc]
    def __init__(self, _: object) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, wrapped: bytes, _: str) -> bytes:
        return base64.b64decode(wrapped)


def test_an_encrypted_column_is_refused_when_the_loader_opens(tmp_path: pathlib.Path) -> None:
    factory = encryption.CryptoFactory(Keys)
    asked = encryption.EncryptionConfiguration(footer_key="f", column_keys={"c": ["s"]}, plaintext_footer=True)
    sealed = factory.file_encryption_properties(encryption.KmsConnectionConfig(), asked)
    for number, properties in enumerate([None, None, sealed]):
        table = pa.table({"id": range(10), "s": [str(one) for one in range(10)]})
        path = tmp_path / f"{number}.parquet"
        with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
            writer.write_table(table)
    with pytest.raises(bowstring.UnsupportedError, match="an encrypted column") as caught:
        bowstring.Loader(str(tmp_path), batch_size=5)
    assert (caught.value.file, caught.value.column) == ("2.parquet", "s")
    with bowstring.Loader(str(tmp_path), batch_size=5, columns=["id"]) as loader:
        assert sum(len(batch["id"]) for batch in loader) == 30


def test_a_row_group_beyond_its_limit_is_refused_when_the_loader_opens(tmp_path: pathlib.Path) -> None:
    pq.write_table(pa.table({"x": range(10)}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": range(1000)}), tmp_path / "b.parquet")
    with pytest.raises(bowstring.LimitError, match=r"file b\.parquet, row group 0: its decoded columns"):
        bowstring.Loader(str(tmp_path), batch_size=5, limits={"max_row_group_bytes": 1000})


def test_limits_hold_for_what_is_read_of_a_row_group(tmp_path: pathlib.Path) -> None:
    rows = 100_000
    values = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * 64)), 64)
    options = {"compression": "zstd", "use_dictionary": False, "write_page_index": True, "data_page_size": 1 << 20}
    pq.write_table(pa.table({"x": values}), tmp_path / "a.parquet", row_group_size=rows, **options)
    # 51 MB, which are read in units of pages where rows are shuffled.
    limits = {"max_row_group_bytes": 20 << 20}
    with bowstring.Loader(str(tmp_path), batch_size=1000, limits=limits) as loader:
        assert sum(len(batch["x"]) for batch in loader) == rows
    with pytest.raises(bowstring.LimitError, match="its decoded columns"):
        bowstring.Loader(str(tmp_path), batch_size=1000, shuffle=False, limits={"max_row_group_bytes": 1 << 10})


def test_class_names_are_compared_where_labels_are_read(tmp_path: pathlib.Path) -> None:
    for file, names in {"a": ["cat", "dog"], "b": ["dog", "cat"]}.items():
        said = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
        table = pa.table({"id": [1, 2], "label": [0, 1]}).replace_schema_metadata({"huggingface": json.dumps(said)})
        pq.write_table(table, tmp_path / f"{file}.parquet")
    with pytest.raises(bowstring.MismatchError, match=r'class names of column "label" in file a\.parquet and'):
        bowstring.Loader(str(tmp_path), batch_size=2)
    with bowstring.Loader(str(tmp_path), batch_size=2, columns=["id"]) as loader:
        assert len(loader) == 2


def test_a_budget_that_a_later_epoch_exceeds_is_refused_when_the_loader_opens(tmp_path: pathlib.Path) -> None:
    draw = random.Random(0)
    for number in range(24):
        rows = draw.choice([500, 1000, 4000])
        pq.write_table(pa.table({"x": [[0.5] * 16] * rows}), tmp_path / f"{number:02}.parquet")
    options = {"global_batch_size": 64, "lists": {"x": bowstring.Padded(16)}, "world_size": 4}
    needs = []
    for rank in range(4):
        with pytest.raises(bowstring.LimitError) as refused:
            bowstring.Loader(str(tmp_path), memory_budget=1, rank=rank, **options)
        needs.append(int(refused.value.args[0].partition("needs ")[2].partition(",")[0]))
    found = []
    for rank in range(4):
        try:
            with bowstring.Loader(str(tmp_path), memory_budget=max(needs), rank=rank, **options) as loader:
                for _ in range(16):
                    assert sum(1 for _ in loader) == len(loader)
        except bowstring.LimitError as error:
            found.append(str(error))
    assert found, "nothing is tested"
    assert all("one step of epoch" in one and "of epoch 0:" not in one for one in found)


class _Unversioned(http.server.BaseHTTPRequestHandler):
    """One file, by ranges, with an entity tag if there is one."""

    protocol_version = "HTTP/1.1"

    def __init__(self, content: bytes, etag: str | None, *arguments: object) -> None:
        self.content, self.etag = content, etag
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        first, last = 0, len(self.content) - 1
        if given := self.headers.get("Range"):
            start, end = given.removeprefix("bytes=").split("-")
            first, last = (int(start), min(int(end or last), last)) if start else (len(self.content) - int(end), last)
        self.send_response(206 if given else 200)
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("Accept-Ranges", "bytes")
        if given:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(self.content)}")
        if self.etag:
            self.send_header("ETag", self.etag)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(self.content[first : last + 1])

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("etag", [None, '"1"'])
def test_a_web_server_that_tells_no_versions_is_warned_of_once(
    etag: str | None, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(100_000)}), path, use_dictionary=False)
    handler = functools.partial(_Unversioned, path.read_bytes(), etag)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_address[1]}"
        with bowstring.Loader([f"{base}/{name}.parquet" for name in "ab"], batch_size=1000) as loader:
            assert sum(1 for _ in loader) == 200
        server.shutdown()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == (0 if etag else 1)
    assert all("neither an entity tag nor a time" in said for said in warnings)
