"""Small inputs that claim, or really unpack to, more than any reader should take memory for.

``python bombs.py FOLDER`` reads every one of them with the address space limited to a gibibyte more than an idle process has, and
prints a line for each. Claims are made by hand; what really unpacks is made with a known compressor.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import pathlib
import struct
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = pathlib.Path(__file__).resolve().parents[2]
MIB = 1 << 20
# The largest numbers of the widths that formats have.
MOST = (2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1)


@dataclass
class Bomb:
    """One input, and how a user meets it."""

    name: str
    path: str
    how: str = "load"
    options: dict[str, Any] = field(default_factory=dict)


# ---- pictures -----------------------------------------------------------------------------------------------------------


def chunk(kind: bytes, data: bytes, claimed: int | None = None) -> bytes:
    """A chunk of a PNG, with its checksum."""
    length = len(data) if claimed is None else claimed
    return struct.pack(">I", length) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(side: int, extra: bytes = b"", data: bytes | None = None) -> bytes:
    """A PNG of ``side`` by ``side`` grey pixels."""
    rows = zlib.compress(bytes((min(side, 64) + 1) * min(side, 64)), 9) if data is None else data
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + extra + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def saved(name: str) -> bytes:
    """A picture of the fixtures."""
    return (ROOT / "fixtures" / "images" / name).read_bytes()


def patched(data: bytes, at: int, value: bytes) -> bytes:
    """``data`` with other bytes in one place."""
    return data[:at] + value + data[at + len(value) :]


def pictures() -> Iterator[tuple[str, bytes]]:
    """Pictures, by what they claim."""
    zeros = zlib.compress(bytes(64 * MIB), 9)
    for side in (20_000, 40_000, 65_535, 2**31 - 1, 2**32 - 1):
        yield f"png of {side}", png(side)
    for side in (20_000, 40_000, 65_535):
        both = struct.pack(">HH", side, side)
        jpeg, progressive = saved("rgb444.jpg"), saved("progressive.jpg")
        yield f"jpeg of {side}", patched(jpeg, jpeg.index(b"\xff\xc0") + 5, both)
        yield f"progressive jpeg of {side}", patched(progressive, progressive.index(b"\xff\xc2") + 5, both)
        yield f"gif of {side}", patched(saved("animated.gif"), 6, struct.pack("<HH", side, side))
        yield (
            f"lossy webp of {side}",
            patched(saved("lossy.webp"), 26, struct.pack("<HH", side & 0x3FFF, side & 0x3FFF)),
        )
        sides = (side - 1).to_bytes(3, "little") * 2
        yield f"extended webp of {side}", b"RIFF\x40\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + sides
    for side in (20_000, 65_535, 2**31 - 1, -(2**31)):
        yield f"bmp of {side}", patched(saved("rgb.bmp"), 18, struct.pack("<ii", side, side))
    for kind, head in ((b"iCCP", b"p\0\0"), (b"zTXt", b"t\0\0"), (b"iTXt", b"t\0\1\0\0\0")):
        for count in (1, 20):
            yield f"{count} {kind.decode()} of 64 MiB each", png(64, chunk(kind, head + zeros) * count)
    yield "pixels of 64 MiB for a small png", png(64, data=zeros)
    for claimed in (2**31 - 1, 2**32 - 1):
        yield f"a chunk of {claimed}", png(64, chunk(b"tEXt", b"t\0x", claimed))
    yield "100,000 chunks", png(64, chunk(b"tEXt", b"t\0x") * 100_000)
    progressive = saved("progressive.jpg")
    scan = progressive[progressive.rindex(b"\xff\xda") : -2]
    for count in (500, 20_000):
        yield f"{count} scans", progressive[:-2] + scan * count + progressive[-2:]
    jpeg = saved("rgb444.jpg")
    yield "2,000 segments of 64 KiB", jpeg[:2] + (b"\xff\xe1\xff\xff" + bytes(65_533)) * 300 + jpeg[2:]
    profile = b"\xff\xe2\x00\x20ICC_PROFILE\0\xff\xff" + bytes(16)
    yield "a profile in 255 parts", jpeg[:2] + profile * 255 + jpeg[2:]


# ---- arrays -------------------------------------------------------------------------------------------------------------


def npy(literal: str, data: bytes = b"") -> bytes:
    """A ``.npy`` of a header as it stands."""
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(literal)) + literal.encode() + data


def claims_of_arrays() -> Iterator[tuple[str, bytes]]:
    """Cells of NdarrayCodec."""
    for count in MOST:
        yield f"{count} floats", npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({count},)}}")
        yield f"{count} empty strings", npy(f"{{'descr': '|S0', 'fortran_order': False, 'shape': ({count},)}}")
        yield f"{count} by 4", npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({count}, 4)}}")
    for width in (2**31 - 1, 2**63 - 1):
        yield f"strings of {width}", npy(f"{{'descr': '|S{width}', 'fortran_order': False, 'shape': (2,)}}")
    yield "objects", npy("{'descr': '|O', 'fortran_order': False, 'shape': (1000000000,)}")
    yield "60,000 dimensions", npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({'1,' * 30_000})}}")
    yield "60,000 brackets", npy("{'descr': " + "[" * 60_000)
    yield "a shape of 60,000 digits", npy(f"{{'descr': '<u1', 'shape': ({'9' * 60_000},)}}")
    for claimed in (2**32 - 1, 2**31, 65_536):
        yield f"a header of {claimed}", b"\x93NUMPY\x02\0" + struct.pack("<I", claimed) + b"{'descr': '<f8'"


def packed_arrays() -> Iterator[tuple[str, bytes]]:
    """Cells of CompressedNdarrayCodec."""
    for size in (64 * MIB, 512 * MIB):
        made = io.BytesIO()
        with (
            zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive,
            archive.open("arr.npy", "w", force_zip64=True) as entry,
        ):
            entry.write(npy(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({size},)}}"))
            for _ in range(size // MIB):
                entry.write(bytes(MIB))
        yield f"{size // MIB} MiB of zeros", made.getvalue()
        small = made.getvalue()
        for claimed in (0, 100, 2**32 - 1):
            place = small.rindex(b"PK\x01\x02") + 24
            yield f"{size // MIB} MiB of zeros that claim {claimed}", patched(small, place, struct.pack("<I", claimed))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for number in range(20_000):
            archive.writestr(f"{number}.npy", b"")
    yield "20,000 entries", made.getvalue()
    for count in (2**16 - 1, 2**15):
        end = made.getvalue().rindex(b"PK\x05\x06")
        yield (
            f"a directory that claims {count} entries",
            patched(b"PK\x05\x06" + made.getvalue()[end + 4 :], 8, struct.pack("<HH", count, count)),
        )


# ---- Parquet ------------------------------------------------------------------------------------------------------------

Value = Any
# Field number, type, value; a list is its type, its items and the number that it claims.
Fields = list[list[Any]]


def varint(value: int) -> bytes:
    """An unsigned number of Thrift's compact protocol."""
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


class Thrift:
    """Reads a structure as it stands."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def number(self) -> int:
        """An unsigned number."""
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def value(self, kind: int) -> Value:
        """A value of a type."""
        if kind in {1, 2}:
            return None
        if kind in {4, 5, 6}:
            zigzag = self.number()
            return zigzag >> 1 ^ -(zigzag & 1)
        if kind in {3, 7, 8}:
            length = 1 if kind == 3 else 8 if kind == 7 else self.number()
            self.at += length
            return self.data[self.at - length : self.at]
        if kind == 9:
            head = self.data[self.at]
            self.at += 1
            count = self.number() if head >> 4 == 15 else head >> 4
            return [head & 15, [self.value(head & 15) for _ in range(count)], count]
        assert kind == 12, kind
        return self.fields()

    def fields(self) -> Fields:
        """The fields of a structure, up to its end."""
        made, last = [], 0
        while head := self.data[self.at]:
            self.at += 1
            if head >> 4:
                last += head >> 4
            else:
                last = self.value(4)
            made.append([last, head & 15, self.value(head & 15)])
        self.at += 1
        return made


class Endless(bytes):
    """Bytes that claim to be two gibibytes."""


def encoded(kind: int, value: Value) -> bytes:
    """A value as :class:`Thrift` reads it."""
    if kind in {1, 2}:
        return b""
    if kind in {4, 5, 6}:
        return varint((value << 1 ^ value >> 63) & (2**64 - 1))
    if kind in {3, 7}:
        return bytes(value)
    if kind == 8:
        return varint(2**31 - 1 if isinstance(value, Endless) else len(value)) + value
    if kind == 9:
        of, items, count = value
        head = bytes([count << 4 | of]) if count < 15 else bytes([0xF0 | of]) + varint(count)
        return head + b"".join(encoded(of, item) for item in items)
    made, last = b"", 0
    for number, of, item in value:
        made += bytes([number - last << 4 | of]) + encoded(of, item)
        last = number
    return made + b"\0"


def at(fields: Fields, *path: int) -> list[Any]:
    """The field at the end of a path of numbers; an item of a list by its place."""
    found: Any = fields
    for step in path[:-1]:
        found = found[1][step] if isinstance(found[0], int) else next(one for one in found if one[0] == step)[2]
    return next(one for one in found if one[0] == path[-1])


def parts(data: bytes) -> tuple[list[tuple[Fields, bytes]], Fields]:
    """The pages and the footer of a file of one column and one row group."""
    length = struct.unpack("<I", data[-8:-4])[0]
    footer = Thrift(data, len(data) - 8 - length).fields()
    end = 4 + at(footer, 4, 0, 1, 0, 3, 7)[2]
    pages, reader = [], Thrift(data, 4)
    while reader.at < end:
        head = reader.fields()
        size = at(head, 3)[2]
        pages.append((head, data[reader.at : reader.at + size]))
        reader.at += size
    return pages, footer


def joined(pages: list[tuple[Fields, bytes]], footer: Fields) -> bytes:
    """The file of these pages, whose places and length in the footer are true."""
    made, places = b"PAR1", []
    for head, body in pages:
        places.append(len(made))
        made += encoded(12, head) + body
    chunk_of = at(footer, 4, 0, 1, 0, 3)[2]
    for one in chunk_of:
        if one[0] == 7:
            one[2] = len(made) - 4
        if one[0] == 9:
            one[2] = places[-1]
        if one[0] == 11:
            one[2] = places[0]
    foot = encoded(12, footer)
    return made + foot + struct.pack("<I", len(foot)) + b"PAR1"


Forge = Callable[[list[tuple[Fields, bytes]], Fields], None]
# Fields of a page header for data pages of the first and second version.
DATA = {5, 8}


def rows_of(count: int) -> Forge:
    """Says everywhere that there are ``count`` rows."""

    def forge(pages: list[tuple[Fields, bytes]], footer: Fields) -> None:
        at(footer, 3)[2] = at(footer, 4, 0, 3)[2] = at(footer, 4, 0, 1, 0, 3, 5)[2] = count
        body = next(one for one in pages[-1][0] if one[0] in DATA)[2]
        for one in body:
            if one[0] == 1 or (one[0] == 3 and len(body) > 5):
                one[2] = min(count, 2**31 - 1)

    return forge


def page_of(size: int, place: int) -> Forge:
    """Says that a page unpacks to ``size`` bytes, and its column to as many."""

    def forge(pages: list[tuple[Fields, bytes]], footer: Fields) -> None:
        at(pages[place][0], 2)[2] = size
        at(footer, 4, 0, 1, 0, 3, 6)[2] = at(footer, 4, 0, 2)[2] = size + 1000

    return forge


def numbers_of(fields: Fields, path: str = "") -> list[tuple[str, Callable[[], None]]]:
    """What sets each number of a structure, and the length of each of its lists, to the largest that there is."""
    found: list[tuple[str, Callable[[], None]]] = []
    for one in fields:
        where = f"{path}{one[0]}"
        if one[1] in {5, 6}:
            most = 2**31 - 1 if one[1] == 5 else 2**63 - 1
            found.append((f"{most} in field {where}", partial(one.__setitem__, 2, most)))
        elif one[1] == 9:
            found.append((f"a list without end in field {where}", partial(one[2].__setitem__, 2, 2**31 - 1)))
            for place, item in enumerate(one[2][1]):
                if one[2][0] == 12:
                    found += numbers_of(item, f"{where}[{place}].")
        elif one[1] == 8:
            found.append((f"bytes without end in field {where}", partial(one.__setitem__, 2, Endless(one[2]))))
        elif one[1] == 12:
            found += numbers_of(one[2], f"{where}.")
    return found


def dictionary_of(count: int) -> Forge:
    """Says that the dictionary has ``count`` values."""

    def forge(pages: list[tuple[Fields, bytes]], _: Fields) -> None:
        at(pages[0][0], 7, 1)[2] = count

    return forge


def stored(table: pa.Table, **options: Any) -> bytes:
    """A file of a table."""
    made = io.BytesIO()
    pq.write_table(table, made, row_group_size=2**31 - 1, **options)
    return made.getvalue()


def forged_tables() -> Iterator[tuple[str, bytes]]:
    """Parquet files that claim too much."""
    numbers = pa.table({"v": pa.array([n % 7 for n in range(1000)], pa.int64())})
    for codec in ("none", "zstd", "snappy"):
        for version in ("1.0", "2.0"):
            good = stored(numbers, compression=codec, data_page_version=version, store_schema=False)
            forges: dict[str, Forge] = {}
            for count in (2**31 - 1, 2**40, 2**62):
                forges[f"{count} rows"] = rows_of(count)
            for size in (2**30, 2**31 - 1):
                forges[f"a data page of {size}"] = page_of(size, -1)
                forges[f"a dictionary of {size} bytes"] = page_of(size, 0)
            forges[f"a dictionary of {2**31 - 1} values"] = dictionary_of(2**31 - 1)
            for name, forge in forges.items():
                pages, footer = parts(good)
                forge(pages, footer)
                yield f"{name}, {codec}, pages of the {version}", joined(pages, footer)
    good = stored(numbers, compression="none", store_schema=False)
    for part in ("the footer", "the header of page 0", "the header of page 1"):
        which = int(part[-1]) if part[-1].isdigit() else None
        for number in itertools.count():
            pages, footer = parts(good)
            found = numbers_of(footer if which is None else pages[which][0])
            if number == len(found):
                break
            name, change = found[number]
            change()
            # The footer as it is now: `joined` would set its offsets right.
            body, foot = b"".join(encoded(12, head) + body for head, body in pages), encoded(12, footer)
            whole = b"PAR1" + body + foot + struct.pack("<I", len(foot)) + b"PAR1"
            yield f"{name} of {part}", whole if which is None else joined(pages, footer)
    for length in (2**31 - 1, 2**32 - 1):
        yield f"a footer of {length}", patched(good, len(good) - 8, struct.pack("<I", length))


def real_tables() -> Iterator[tuple[str, bytes]]:
    """Parquet files that really unpack to half a gibibyte and more."""
    size = 512 * MIB
    zeros = pa.table({"v": pa.Array.from_buffers(pa.int64(), size // 8, [None, pa.py_buffer(bytes(size))])})
    plain = {"use_dictionary": False, "data_page_size": 2**30, "write_statistics": False}
    for codec in ("zstd", "gzip", "snappy", "lz4", "brotli"):
        yield f"a page of zeros, {codec}", stored(zeros, compression=codec, max_rows_per_page=2**31 - 1, **plain)
    value = pa.table(
        {
            "v": pa.Array.from_buffers(
                pa.large_binary(), 1, [None, pa.py_buffer(struct.pack("<qq", 0, size)), pa.py_buffer(bytes(size))]
            )
        }
    )
    for codec in ("zstd", "gzip"):
        yield f"one value, {codec}", stored(value, compression=codec, **plain)
    one = pa.DictionaryArray.from_arrays(np.zeros(200_000_000, "i1"), pa.array([7]))
    yield "200 million rows of one value", stored(pa.table({"v": one}), max_rows_per_page=2**31 - 1)


# ---- other formats, by conversion -------------------------------------------------------------------------------------------


def repeated(data: bytes, size: int) -> bytes:
    """``size`` bytes of a repeated piece, packed: a member for each mebibyte."""
    return gzip.compress(data * (MIB // len(data)), 9) * (size // MIB)


def crc(data: bytes) -> bytes:
    """TFRecord's checksum of some bytes."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ table[(value ^ byte) & 0xFF]
    value ^= 0xFFFFFFFF
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def foreign(folder: pathlib.Path) -> Iterator[Bomb]:
    """Files of other formats."""

    def put(name: str, data: bytes, suffix: str, kind: str) -> Bomb:
        path = folder / f"{name.replace(' ', '-')}{suffix}"
        path.write_bytes(data)
        return Bomb(f"{kind}: {name}", str(path), "convert", {"from_format": kind})

    for length in MOST:
        head = struct.pack("<Q", length)
        yield put(f"a record of {length}", head + crc(head) + b"x", ".tfrecord", "tfrecord")
    zeros = repeated(b"\0", 512 * MIB)
    head = struct.pack("<Q", 512 * MIB)
    yield put("a packed record of 512 MiB", gzip.compress(head + crc(head)) + zeros, ".tfrecord.gz", "tfrecord")
    # The lengths within an Example: a feature of 2**63 bytes.
    inner = b"\x0a" + varint(2**63 - 1) + b"x"
    head = struct.pack("<Q", len(inner))
    yield put("a feature of 2 to the 63", head + crc(head) + inner + crc(inner), ".tfrecord", "tfrecord")
    for size in (2**33 - 1, 2**40, 2**63 - 1):
        info = tarfile.TarInfo("0001.txt")
        info.size = size
        yield put(f"an entry of {size}", info.tobuf(tarfile.GNU_FORMAT) + bytes(1024), ".tar", "webdataset")
    info = tarfile.TarInfo("0001.txt")
    info.size = 512 * MIB
    whole = gzip.compress(info.tobuf(tarfile.GNU_FORMAT)) + repeated(b"\0", 513 * MIB)
    yield put("an entry of 512 MiB", whole, ".tar.gz", "webdataset")
    yield put("a line of 512 MiB", gzip.compress(b'{"a": "') + repeated(b"x", 512 * MIB), ".jsonl.gz", "jsonl")
    yield put("a million brackets", b'{"a": ' + b"[" * 1_000_000, ".jsonl", "jsonl")
    yield put("a million keys", b"{" + b",".join(b'"k%d":1' % n for n in range(1_000_000)) + b"}\n", ".jsonl", "jsonl")
    yield put("a cell of 512 MiB", gzip.compress(b"a,b\n1,") + repeated(b"x", 512 * MIB), ".csv.gz", "csv")
    yield put("an open quote", gzip.compress(b'a,b\n1,"') + repeated(b"x\n", 512 * MIB), ".csv.gz", "csv")
    yield put("a million columns", b",".join(b"c%d" % n for n in range(1_000_000)) + b"\n", ".csv", "csv")
    made = io.BytesIO()
    table = pa.table({"v": list(range(100)), "t": [f"text {n}" for n in range(100)]})
    with pa.ipc.new_file(made, table.schema) as writer:
        writer.write_table(table)
    good = made.getvalue()
    # Numbers of its messages that are lengths or offsets, one after another.
    for value in (100, 800, 400, 404, 128, 790):
        for wrong in (2**31 - 1, 2**62):
            place = good.find(struct.pack("<q", value), 300)
            if place > 0:
                data = patched(good, place, struct.pack("<q", wrong))
                yield put(f"{wrong} in the place of {value}", data, ".arrow", "arrow")
    yield put("a message of 2 to the 31", patched(good, 12, struct.pack("<i", 2**31 - 1)), ".arrow", "arrow")
    for codec in ("zstd", "lz4"):
        made = io.BytesIO()
        zeros_of = pa.table({"v": np.zeros(64 * MIB, "i8")})
        with pa.ipc.new_file(made, zeros_of.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
            writer.write_table(zeros_of)
        yield put(f"a buffer of 512 MiB, {codec}", made.getvalue(), ".arrow", "arrow")


# ---- all of them --------------------------------------------------------------------------------------------------------


def made(folder: pathlib.Path) -> Iterator[Bomb]:
    """Writes all bombs, one after another."""
    schema = pa.schema([pa.field("v", pa.binary())])
    for number, (name, cell) in enumerate(pictures()):
        path = folder / f"picture-{number}.parquet"
        pq.write_table(pa.table({"v": [cell]}, schema), path, compression="zstd")
        yield Bomb(f"picture: {name}", str(path), options={"images": {"v": {"size": 32}}})
    petastorm = ROOT / "fixtures" / "petastorm" / "petastorm_allcodecs_0.13.1"
    template = pq.ParquetFile(next(petastorm.rglob("*.parquet")))
    row = template.read().slice(0, 1)
    for column, cells in (("nd_f32", claims_of_arrays()), ("cnd_f64", packed_arrays())):
        place = row.schema.get_field_index(column)
        for number, (name, cell) in enumerate(cells):
            path = folder / f"{column}-{number}"
            path.mkdir()
            (path / "_common_metadata").write_bytes((petastorm / "_common_metadata").read_bytes())
            table = row.set_column(place, row.schema.field(place), [pa.array([cell], pa.binary())])
            (path / "part=p_0").mkdir()
            pq.write_table(table, path / "part=p_0" / "0.parquet", compression="zstd")
            yield Bomb(f"{column}: {name}", str(path), options={"columns": [column]})
    for kind, files in (("forged", forged_tables()), ("real", real_tables())):
        for number, (name, data) in enumerate(files):
            path = folder / f"{kind}-{number}.parquet"
            path.write_bytes(data)
            yield Bomb(f"{kind}: {name}", str(path))
    yield from foreign(folder)


def meet(bomb: Bomb) -> str:
    """Does what a user would, and says how it ended."""
    import bowstring

    try:
        if bomb.how == "convert":
            done = bowstring.convert(bomb.path, bomb.path + ".out", memory_budget=128 * MIB, jobs=1, **bomb.options)
            return f"converted {done['rows']} rows"
        with bowstring.Loader(bomb.path, batch_size=1, memory_budget="128MiB", threads=2, **bomb.options) as loader:
            next(iter(loader))
            return "read"
    except bowstring.Error as error:
        return f"{type(error).__name__} {str(error)[:300]}"


def memory(name: str) -> int:
    """Bytes of this process that the kernel counts under a name."""
    lines = pathlib.Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def main() -> None:
    """Reads bombs from a list, each within the limit."""
    import resource

    import bowstring

    bombs = [Bomb(**json.loads(line)) for line in pathlib.Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    # Threads and pools that stay are there before the limit is.
    with bowstring.Loader(
        ROOT / "fixtures" / "imagenet40.parquet", batch_size=4, images={"image": {"size": 32}}
    ) as loader:
        next(iter(loader))
    # The bytes of the largest bombs; nothing asks for all of this.
    limit = memory("VmSize") + (1 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for bomb in bombs:
        print(json.dumps({"at": bomb.name}), flush=True)
        before, started = memory("VmRSS"), time.monotonic()
        pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        ended = meet(bomb)
        grown = max(0, memory("VmHWM") - before)
        print(json.dumps({"ended": ended, "grown": grown, "seconds": time.monotonic() - started}), flush=True)


if __name__ == "__main__":
    main()
