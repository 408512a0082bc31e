"""Footers of other writers: members that differ between files, a dictionary at byte 0, encryption of some columns."""

from __future__ import annotations

import base64
import pathlib

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest


def converted(url: pathlib.Path, copy: pathlib.Path) -> pa.Table:
    """Returns the stored rows after a conversion."""
    bowstring.convert(str(url), str(copy), to="parquet")
    return pa.concat_tables([pq.read_table(path) for path in sorted(copy.glob("*.parquet"))])


@pytest.mark.parametrize("kind", ["list", "large_list", "fixed", "map", "nested", "mixed"])
def test_members_of_listed_structs_may_differ_between_files(tmp_path: pathlib.Path, kind: str) -> None:
    old = pa.struct([pa.field("a", pa.int32(), nullable=False)])
    new = pa.struct([pa.field("b", pa.string()), pa.field("a", pa.int64(), nullable=False)])
    wrap = {
        "list": (pa.list_, pa.list_),
        "large_list": (pa.large_list, pa.large_list),
        "fixed": (lambda item: pa.list_(item, 2), lambda item: pa.list_(item, 2)),
        "map": (lambda item: pa.map_(pa.string(), item), lambda item: pa.map_(pa.string(), item)),
        "nested": (lambda item: pa.list_(pa.list_(item)), lambda item: pa.list_(pa.list_(item))),
        "mixed": (pa.list_, pa.large_list),
    }[kind]
    first = [[{"a": 1}, {"a": 2}], [{"a": 3}, {"a": 4}]]
    second = [[{"a": 5, "b": "x"}, {"a": 6, "b": None}]]
    if kind == "map":
        first, second = ([[(str(at), item) for at, item in enumerate(row)] for row in rows] for rows in (first, second))
    if kind == "nested":
        first, second = ([[row] for row in rows] for rows in (first, second))
    data = tmp_path / "data"
    data.mkdir()
    pq.write_table(pa.table({"l": pa.array(first, wrap[0](old))}), data / "0.parquet")
    pq.write_table(pa.table({"l": pa.array(second, wrap[1](new))}), data / "1.parquet")
    found = converted(data, tmp_path / "copy")["l"].to_pylist()
    flat = str(found).replace("'b': None, ", "").replace(", 'b': None", "")
    wanted = str(first + second).replace(", 'b': None", "")
    assert flat.replace("'a': 5, 'b': 'x'", "5x").replace("'b': 'x', 'a': 5", "5x") == wanted.replace(
        "'a': 5, 'b': 'x'", "5x"
    )


class Kms(pe.KmsClient):
    """Stores keys in plain text instead of wrapping them."""

    def __init__(self, _config: pe.KmsConnectionConfig) -> None:
        pe.KmsClient.__init__(self)

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> str:
        """Returns the key as text."""
        return base64.b64encode(master_key_identifier.encode() + b":" + key_bytes).decode()

    def unwrap_key(self, wrapped_key: str, master_key_identifier: str) -> bytes:
        """Returns the key from its text."""
        return base64.b64decode(wrapped_key)[len(master_key_identifier) + 1 :]


def test_columns_that_are_not_encrypted_can_be_read(tmp_path: pathlib.Path) -> None:
    rows = 100
    table = pa.table(
        {"open": np.arange(rows), "secret": np.arange(rows) * 2, "text": [f"row {row}" for row in range(rows)]}
    )
    how = pe.EncryptionConfiguration(
        footer_key="footer", column_keys={"secret": ["secret"]}, plaintext_footer=True, double_wrapping=False
    )
    factory = pe.CryptoFactory(Kms)
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), how)
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    with bowstring.Loader(tmp_path, batch_size=rows, columns=["open", "text"], shuffle=False) as loader:
        batch = next(iter(loader))
        assert np.asarray(batch["open"]).tolist() == list(range(rows))
        assert batch["text"][7] == "row 7"
    with bowstring.Loader(tmp_path, batch_size=rows, columns=["text"], filter="open = 7", shuffle=False) as loader:
        assert loader.rows == 1
    with (
        pytest.raises(
            bowstring.UnsupportedError, match=r"a\.parquet, row group 0, column secret: an encrypted column"
        ) as odd,
        bowstring.Loader(tmp_path, batch_size=rows, shuffle=False) as loader,
    ):
        next(iter(loader))
    place = (odd.value.file, odd.value.row_group, odd.value.column, odd.value.row)
    assert place == ("a.parquet", 0, "secret", None)
    with (
        pytest.raises(bowstring.LimitError, match=r"a\.parquet, row group 0: its decoded columns") as limit,
        bowstring.Loader(
            tmp_path, batch_size=rows, columns=["open"], shuffle=False, limits={"max_row_group_bytes": 1}
        ) as loader,
    ):
        next(iter(loader))
    assert (limit.value.file, limit.value.row_group) == ("a.parquet", 0)
    with pytest.raises(bowstring.UnsupportedError, match=r"column secret: an encrypted column"):
        bowstring.Loader(tmp_path, batch_size=rows, columns=["open"], filter="secret = 7")


def test_columns_of_nulls_are_read_in_units(tmp_path: pathlib.Path) -> None:
    # pyarrow writes a dictionary without values for them: a page with only a header.
    rows = 2000
    wide = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(rows * 512, dtype=np.int64)), 512)
    for compression in ("lz4", "zstd", "none"):
        nulls = {
            "d": pa.nulls(rows, pa.decimal128(36, 2)),
            "i": pa.nulls(rows, pa.int64()),
            "s": pa.nulls(rows, pa.string()),
        }
        table = pa.table({**nulls, "wide": wide, "id": pa.array(range(rows), pa.int64())})
        path = tmp_path / f"{compression}.parquet"
        pq.write_table(table, path, compression=compression, write_page_index=True, data_page_size=20_000)
        assert bowstring.plan(path, batch_size=100)["units"] > 1
        for shuffle in (True, False):
            with bowstring.Loader(path, batch_size=100, shuffle=shuffle, nulls="mask") as loader:
                batches = list(loader)
            assert sorted(int(one) for batch in batches for one in batch["id"]) == list(range(rows))
            for batch in batches:
                assert not any(np.asarray(batch[f"{name}__valid"]).any() for name in ("d", "i", "s"))


def as_fastparquet_has_it(path: pathlib.Path) -> None:
    """Gives the empty list of row groups of a file without rows no type, as fastparquet writes it."""
    data = path.read_bytes()
    # No rows (field 3), and a list of structs without elements (field 4).
    assert data.count(b"\x16\x00\x19\x0c") == 1
    path.write_bytes(data.replace(b"\x16\x00\x19\x0c", b"\x16\x00\x19\x00"))


def test_an_empty_list_of_row_groups_may_have_no_type(tmp_path: pathlib.Path) -> None:
    table = pa.table({"id": pa.array(range(6), pa.int64())})
    pq.write_table(table, tmp_path / "part.0.parquet")
    # fastparquet has a schema without rows beside the data of each directory.
    for name in ("_common_metadata", "part.1.parquet"):
        pq.write_metadata(table.schema, tmp_path / name)
        as_fastparquet_has_it(tmp_path / name)
        assert pq.read_metadata(tmp_path / name).num_row_groups == 0
    for url in (tmp_path, f"{tmp_path}/**/*.parquet", [str(tmp_path / "part.0.parquet")]):
        with bowstring.Loader(url, batch_size=6, shuffle=False) as loader:
            assert [batch["id"].tolist() for batch in loader] == [list(range(6))]
    assert bowstring.Loader(tmp_path / "part.1.parquet", batch_size=6).rows == 0
    # What tells nothing of the data is not passed over: Petastorm's schema may be what is damaged.
    (tmp_path / "_common_metadata").write_bytes(b"PAR1 no footer PAR1")
    with pytest.raises(bowstring.CorruptError, match="_common_metadata"):
        bowstring.Loader(tmp_path, batch_size=6)
