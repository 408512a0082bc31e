"""Inputs that try to run something: pickles that do when Python reads them, and files that name programs, places and code.

``plant`` is what they would do; each has a case for every kind of file in which a reader of such data once did it.
"""

from __future__ import annotations

import io
import json
import pathlib
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = pathlib.Path(__file__).resolve().parents[2]
PETASTORM = ROOT / "fixtures" / "petastorm" / "petastorm_allcodecs_0.13.1"
SCHEMA, INDEX, COUNTS = (
    b"dataset-toolkit.unischema.v1",
    b"dataset-toolkit.rowgroups_index.v1",
    b"dataset-toolkit.num_row_groups_per_file.v1",
)


@dataclass
class Case:
    """One input, and how a user meets it."""

    name: str
    how: str
    path: str
    options: dict[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """It as JSON."""
        return json.dumps(asdict(self))


@dataclass
class Plant:
    """A call that data should never make: its name in Python, and its arguments."""

    module: str
    name: str
    arguments: tuple[Any, ...]


def plants(folder: pathlib.Path) -> list[Plant]:
    """Calls that run, send, signal or change something, each at once."""
    folder.mkdir()
    canary, victim, script = folder / "canary", folder / "victim", folder / "script.py"
    victim.write_text("work of years", encoding="utf-8")
    (folder / "directory").mkdir()
    (folder / "directory" / "file").write_text("more of it", encoding="utf-8")
    touch = f"touch {canary}"
    script.write_text(f"import os\nos.system({touch!r})\n", encoding="utf-8")
    calls: list[tuple[str, str, tuple[Any, ...]]] = [
        ("os", "system", (touch,)),
        ("posix", "system", (touch,)),
        ("os", "popen", (touch,)),
        ("os", "execv", ("/usr/bin/touch", ["touch", str(canary)])),
        ("os", "posix_spawn", ("/usr/bin/touch", ["touch", str(canary)], {})),
        ("os", "forkpty", ()),
        ("subprocess", "Popen", (["touch", str(canary)],)),
        ("subprocess", "check_output", (["touch", str(canary)],)),
        ("builtins", "eval", (f"__import__('os').system({touch!r})",)),
        ("builtins", "exec", (f"import os; os.system({touch!r})",)),
        ("builtins", "open", (str(canary), "w")),
        ("runpy", "run_path", (str(script),)),
        ("os", "mkdir", (str(canary),)),
        ("os", "unlink", (str(victim),)),
        ("os", "rename", (str(victim), str(canary))),
        ("os", "symlink", ("/etc/passwd", str(canary))),
        ("os", "truncate", (str(victim), 0)),
        ("os", "chmod", (str(victim), 0o777)),
        ("os", "kill", (2**22 + 1, 15)),
        ("shutil", "copyfile", (str(victim), str(canary))),
        ("shutil", "rmtree", (str(folder / "directory"),)),
        ("socket", "create_connection", (("127.0.0.1", 9),)),
        ("urllib.request", "urlopen", ("http://127.0.0.1:9/",)),
        ("numpy", "save", (str(canary), 1)),
        ("numpy", "savetxt", (str(canary), [1.0])),
        ("numpy", "memmap", (str(canary), "uint8", "w+", 0, (4,))),
        ("logging", "FileHandler", (str(canary),)),
        ("sqlite3", "connect", (str(canary),)),
    ]
    return [Plant(*call) for call in calls]


def value(of: object) -> bytes:
    """The instructions that put a value onto the stack."""
    return pickle.dumps(of, 2)[2:-1]


def text(of: str) -> bytes:
    """A short text of the fourth protocol."""
    return b"\x8c" + bytes([len(of)]) + of.encode()


def global_call(plant: Plant) -> bytes:
    """A call by GLOBAL and REDUCE, as in the first protocols."""
    return f"c{plant.module}\n{plant.name}\n".encode() + value(plant.arguments) + b"R"


def stack_call(plant: Plant) -> bytes:
    """The same by STACK_GLOBAL."""
    return text(plant.module) + text(plant.name) + b"\x93" + value(plant.arguments) + b"R"


def pickles(plant: Plant) -> Iterator[tuple[str, bytes]]:
    """Whole pickles that make the call when Python reads them."""
    arguments = b"".join(value(argument) for argument in plant.arguments)
    name = f"c{plant.module}\n{plant.name}\n".encode()
    yield "GLOBAL", global_call(plant) + b"."
    yield "STACK_GLOBAL", b"\x80\x04" + stack_call(plant) + b"."
    yield "INST", b"(" + arguments + f"i{plant.module}\n{plant.name}\n.".encode()
    if plant.arguments:
        yield "OBJ", b"(" + name + arguments + b"o."
    if plant.module == "os":
        # Modules that are allowed lead to others.
        dotted = text("shutil") + text(f"os.{plant.name}") + b"\x93" + value(plant.arguments) + b"R."
        yield "a dotted name of another module", b"\x80\x04" + dotted
    yield "within a list, by the memo", b"\x80\x02]" + name + b"q\x01h\x01" + value(plant.arguments) + b"Ra."


def one_field(values: bytes) -> bytes:
    """A schema of Petastorm with one field, whose values after its name are these instructions."""
    head = (
        b"ccopy_reg\n_reconstructor\n(cpetastorm.unischema\nUnischema\nc__builtin__\nobject\nNtR}(S'_name'\nS'n'\nS'_fields'\n"
        b"ccollections\nOrderedDict\n)R(S'x'\ncpetastorm.unischema\nUnischemaField\n(S'x'\n"
    )
    return head + values + b"t\x81uub."


def schemas(plant: Plant) -> Iterator[tuple[str, bytes]]:
    """Pickles of the form of a schema, in which a part makes the call."""
    call = global_call(plant)
    dotted = f"cpetastorm.codecs\n{plant.module}.{plant.name}\n".encode() + value(plant.arguments) + b"R"
    yield "as a codec", one_field(b"cnumpy\nuint8\n)" + call + b"I00\n")
    yield "as a type", one_field(call + b")NI00\n")
    yield "as a shape", one_field(b"cnumpy\nuint8\n" + call + b"NI00\n")
    yield "as a dotted name of a codec", one_field(b"cnumpy\nuint8\n)" + dotted + b"I00\n")
    built = b"cpetastorm.codecs\nNdarrayCodec\n)\x81}S'__setstate__'\n"
    name = f"c{plant.module}\n{plant.name}\n".encode()
    first = value(plant.arguments[0]) if plant.arguments else b"N"
    yield "by BUILD", one_field(b"cnumpy\nuint8\n)" + built + name + b"sb" + first + b"bI00\n")


class Running:
    """An object whose pickle makes the call."""

    def __init__(self, plant: Plant) -> None:
        self.plant = plant

    def __reduce__(self) -> tuple[Any, ...]:
        module = __import__(self.plant.module, fromlist=["x"])
        return getattr(module, self.plant.name), self.plant.arguments


def object_array(plant: Plant) -> bytes:
    """A ``.npy`` of objects."""
    made = io.BytesIO()
    array = np.empty(1, object)
    array[0] = Running(plant)
    np.lib.format.write_array(made, array, allow_pickle=True)
    return made.getvalue()


def zipped(*members: tuple[str, bytes]) -> bytes:
    """A ``.npz``."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in members:
            archive.writestr(name, data)
    return made.getvalue()


def headed(header: str) -> bytes:
    """A ``.npy`` with a header as it stands."""
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header.encode() + bytes(64)


def arrays(made: list[Plant]) -> Iterator[tuple[str, bytes, bool]]:
    """Cells of arrays, and whether they are packed."""
    for plant in made:
        cell = object_array(plant)
        yield f"objects, {plant.module}.{plant.name}", cell, False
        yield f"objects, {plant.module}.{plant.name}", zipped(("arr_0.npy", cell)), True
    command = f"__import__('os').system({made[0].arguments[0]!r})"
    for where in ("descr", "fortran_order", "shape"):
        parts = {"descr": "'<f4'", "fortran_order": "False", "shape": "(1,)", where: command}
        header = "{" + ", ".join(f"'{key}': {part}" for key, part in parts.items()) + "}"
        yield f"code in {where}", headed(header), False
        yield f"code in {where}", zipped(("arr_0.npy", headed(header))), True


def shell_names(canary: str) -> list[str]:
    """Names that a shell, or a library that looks for programs in names, would run."""
    touch = f"touch {canary}"
    return [
        f"pipe:{touch}",
        f"pipe:{touch} |",
        f"|{touch}",
        f"| {touch}",
        f"$({touch})",
        f"`{touch}`",
        f"; {touch};",
        f"&& {touch}",
        f"\n{touch}\n",
        f"' ; {touch} ; '",
        f'"$({touch})"',
        f"%({touch})s",
        f"${{IFS}}{touch}",
        f"{{{{ {touch} }}}}",
        f"exec:{touch}",
        f"cmd://{touch}",
        f"file+exec:{touch}",
        f"-o ProxyCommand={touch}",
        f"--checkpoint-action=exec={touch}",
    ]


def tarred(*members: tuple[str, bytes]) -> bytes:
    """A tar archive."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return made.getvalue()


def petastorm(folder: pathlib.Path, metadata: dict[bytes, bytes]) -> str:
    """A dataset with this metadata beside one good file."""
    folder.mkdir()
    table = pa.table({"x": pa.array([1, 2, 3], pa.uint8())})
    pq.write_table(table, folder / "part-0.parquet")
    pq.write_metadata(table.schema.with_metadata(metadata), folder / "_common_metadata")
    return str(folder)


def codecs(folder: pathlib.Path, made: list[Plant]) -> Iterator[Case]:
    """Cells of Petastorm's codecs."""
    template = pq.ParquetFile(next(PETASTORM.rglob("*.parquet")))
    row = template.read().slice(0, 1)
    for number, (name, cell, packed) in enumerate(arrays(made)):
        path = folder / f"cell-{number}"
        (path / "part=p_0").mkdir(parents=True)
        (path / "_common_metadata").write_bytes((PETASTORM / "_common_metadata").read_bytes())
        for column in ("nd_f32", "nd_str", "nd_bytes") if not packed else ("cnd_f64",):
            place = row.schema.get_field_index(column)
            table = row.set_column(place, row.schema.field(place), [pa.array([cell], pa.binary())])
            pq.write_table(table, path / "part=p_0" / "0.parquet")
            yield Case(f"{name} in {column}", "load", str(path), {"columns": [column]})


def foreign(folder: pathlib.Path, made: list[Plant]) -> Iterator[Case]:
    """Files of other formats, by conversion."""
    first = made[0]
    canary = str(folder / "canary")
    live = next(pickles(first))[1]

    def case(name: str, path: pathlib.Path, to: str, **options: Any) -> Case:
        return Case(f"{name} to {to}", "convert", str(path), {"to": to, **options})

    whole = [("0001.txt", b"text"), ("0001.json", b"{}")]
    tars = [
        (f"a member .{end}", tarred(*whole, (f"0001.{end}", live))) for end in ("pyd", "pkl", "pickle", "pth", "pt")
    ]
    tars += [
        (f"a member .{end}", tarred(*whole, (f"0001.{end}", object_array(first)))) for end in ("npy", "npz", "ten")
    ]
    code = f"import os\nos.system({first.arguments[0]!r})\n".encode()
    tars += [(f"a member .{end}", tarred(*whole, (f"0001.{end}", code))) for end in ("py", "sh", "so", "cbor", "exe")]
    reduced = json.dumps({"__reduce__": ["os.system", list(first.arguments)], "py/object": "os.system"}).encode()
    tars += [("json of an object", tarred(("0001.txt", b"text"), ("0001.json", reduced)))]
    for number, name in enumerate(shell_names(canary)):
        tars += [
            (f"member {name!r}", tarred((f"{name}.txt", b"text"))),
            (f"ending {name!r}", tarred((f"1.{name}", b""))),
        ]
        path = folder / f"named-{number}.tar"
        path.write_bytes(tarred((f"{name}.npy", object_array(first))))
        yield case(f"an array in member {name!r}", path, "numpy", from_format="webdataset")
    for number, (name, data) in enumerate(tars):
        path = folder / f"{number}.tar"
        path.write_bytes(data)
        for to in ("parquet", "webdataset", "mds"):
            yield case(name, path, to, from_format="webdataset")
    for number, (name, cell, packed) in enumerate(arrays(made)):
        path = folder / f"arrays-{number}"
        path.mkdir()
        (path / f"x.np{'z' if packed else 'y'}").write_bytes(cell)
        yield case(name, path, "parquet", from_format="numpy")
    yield from shards(folder, live, canary)
    for number, name in enumerate(shell_names(canary)):
        path = folder / f"{number}.jsonl"
        line = {name: 1, "path": name, "file_name": name, "image": name, "__key__": name}
        path.write_text(json.dumps(line) + "\n", encoding="utf-8")
        yield case(f"a column {name!r}", path, "parquet")
        yield case(f"a column {name!r}", path, "webdataset")
        yield Case(f"an address {name!r}", "convert", name, {"to": "parquet"})
        yield Case(f"an address {name!r}", "load", name)


def shards(folder: pathlib.Path, live: bytes, canary: str) -> Iterator[Case]:
    """Shards of MDS with an index that lies."""
    good = ROOT / "fixtures" / "convert" / "mds" / "plain"
    index = json.loads((good / "index.json").read_text(encoding="utf-8"))
    lies: list[tuple[str, dict[str, Any]]] = [("a column of pickles", {"column_encodings": "pkl"})]
    lies += [(f"an encoding {name!r}", {"column_encodings": name}) for name in ("os.system", f"pipe:touch {canary}")]
    lies += [
        (f"a shard {name!r}", {"basename": name}) for name in (*shell_names(canary), "/etc/passwd", "../../etc/passwd")
    ]
    lies += [(f"a compression {name!r}", {"compression": name}) for name in ("zstd", f"|touch {canary}", "os.system")]
    for number, (name, lie) in enumerate(lies):
        path = folder / f"mds-{number}"
        path.mkdir()
        shard = json.loads(json.dumps(index))
        for one in shard["shards"]:
            data = (good / one["raw_data"]["basename"]).read_bytes()
            (path / one["raw_data"]["basename"]).write_bytes(live + data[len(live) :] if "pickles" in name else data)
            if "column_encodings" in lie:
                one["column_encodings"][0] = lie["column_encodings"]
            if "basename" in lie:
                one["raw_data"]["basename"] = lie["basename"]
            if "compression" in lie:
                one["compression"] = lie["compression"]
        (path / "index.json").write_text(json.dumps(shard), encoding="utf-8")
        yield Case(name, "convert", str(path), {"to": "parquet", "from_format": "mds"})


def tables(folder: pathlib.Path, made: list[Plant]) -> Iterator[Case]:
    """Parquet files and Delta tables whose metadata is hostile."""
    first = made[0]
    live = next(pickles(first))[1]
    # What arrow.py_extension_type had as its metadata: a pickle, which readers unpickled.
    fields = [
        pa.field(
            "x",
            pa.int64(),
            metadata={b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": live},
        ),
        pa.field(f"$({first.arguments[0]})", pa.int64()),
    ]
    table = pa.table([pa.array([1, 2]), pa.array([3, 4])], pa.schema(fields, {b"pandas": live, b"ARROW:schema": live}))
    path = folder / "extension.parquet"
    pq.write_table(table, path)
    yield Case("an extension type with a pickle", "load", str(path))
    for number, address in enumerate(
        ["http://127.0.0.1:9/x.parquet", "s3://bucket/x.parquet", "pipe:touch x", "hdfs://h/x"]
    ):
        path = folder / f"delta-{number}"
        (path / "_delta_log").mkdir(parents=True)
        log = [
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {
                "metaData": {
                    "id": "0",
                    "format": {"provider": "parquet", "options": {}},
                    "schemaString": json.dumps(
                        {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": True, "metadata": {}}]}
                    ),
                    "partitionColumns": [],
                    "configuration": {},
                }
            },
            {"add": {"path": address, "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}},
        ]
        lines = "\n".join(json.dumps(line) for line in log)
        (path / "_delta_log" / "00000000000000000000.json").write_text(lines, encoding="utf-8")
        yield Case(f"a log that names {address}", "load", str(path))


def configurations(folder: pathlib.Path, canary: str) -> Iterator[Case]:
    """Files like ``serve.toml``, with values that a shell or a template would run."""
    for number, name in enumerate(shell_names(canary)):
        path = folder / f"{number}.toml"
        quoted = json.dumps(name)
        path.write_text(f"[datasets.train]\nurl = {quoted}\nfilter = {quoted}\n", encoding="utf-8")
        yield Case(f"a configuration with {name!r}", "config", str(path))
        path = folder / f"listen-{number}.toml"
        path.write_text(f'listen = {quoted}\n[datasets.train]\nurl = "/nowhere"\n', encoding="utf-8")
        yield Case(f"a configuration that listens at {name!r}", "config", str(path))


def cases(folder: pathlib.Path) -> Iterator[Case]:
    """All of them."""
    made = plants(folder / "plants")
    number = 0
    for plant in made:
        for form, data in (*pickles(plant), *schemas(plant)):
            for key in (SCHEMA, INDEX, COUNTS):
                if key == COUNTS and form != "GLOBAL":
                    continue
                number += 1
                # Without a schema there is no index that anybody would look at.
                path = petastorm(folder / f"pickle-{number}", {SCHEMA: one_field(b"cnumpy\nuint8\n)NI00\n"), key: data})
                what = f"{plant.module}.{plant.name} by {form} in {key.decode()}"
                yield Case(what, "load", path, {"selector": {"index": "i", "values": [1]}} if key == INDEX else {})
                if form == "GLOBAL":
                    yield Case(f"{what}, make_reader", "reader", path)
    malicious = ROOT / "fixtures" / "malicious"
    for path in sorted(path for path in malicious.iterdir() if path.is_dir()):
        yield Case(f"fixture {path.name}", "load", str(path))
        yield Case(f"fixture {path.name}, make_reader", "reader", str(path))
    yield from codecs(folder, made)
    yield from foreign(folder, made)
    yield from tables(folder, made)
    yield from configurations(folder, str(folder / "plants" / "canary"))


# ---- names that lead out ------------------------------------------------------------------------------------------------


def leading_names() -> list[str]:
    """Names that mean a place outside to whoever joins, decodes or expands them."""
    found = []
    for target in ("canary", "etc/passwd"):
        up = "../" * 12
        found += [
            f"../{target}",
            f"{up}{target}",
            f"/{target}",
            f"//{target}",
            f"a/../../{target}",
            f"a/b/../../../{target}",
            f"./../{target}",
            f"a//..//../{target}",
            f"a/./.././../{target}",
            f"..\\{target}",
            f"..\\..\\{target}",
            f"a\\..\\..\\{target}",
            f"C:\\{target}",
            f"C:{target}",
            f"\\\\host\\share\\{target}",
            f"\\\\?\\C:\\{target}",
            f"%2e%2e/{target}",
            f"%2e%2e%2f{target}",
            f"..%2f{target}",
            f"..%5c{target}",
            f"%252e%252e%252f{target}",
            f"..%c0%af{target}",
            f"..%00/{target}",
            f"\uff0e\uff0e/{target}",
            f"\u2025/{target}",
            f"..\u2215{target}",
            f"..\u2044{target}",
            f".. /{target}",
            f"../ {target}",
            f"..;/{target}",
            f".../{target}",
            f"....//{target}",
            f"~/{target}",
            f"~root/{target}",
            f"$HOME/{target}",
            f"${{HOME}}/{target}",
            f"%HOME%/{target}",
            f"file:///{target}",
            f"file:{target}",
            f"http://127.0.0.1:9/{target}",
            f"bow://x/{target}",
            f"{target}/../../{target}",
            f"x\n../{target}",
            f"x\r\n/{target}",
            f"\u202e../{target}",
            f"a/../{target}/..",
            f"{target}/.",
            f"{target}/..",
            f"..:{target}",
            f"{target}:stream",
        ]
    found += ["..", ".", "...", "/", "//", "\\", "~", "-rf", "--help", "*", "?", "[a-z]", "{a,b}", "con", "nul", "com1"]
    found += [
        "/proc/self/environ",
        "/proc/self/fd/0",
        "/dev/stdin",
        "/dev/fd/3",
        " ",
        "x" * 200,
        "x/" * 60 + "x",
        "\x1b[2J",
    ]
    return found


def named(folder: pathlib.Path, objects: dict[str, bytes], options: dict[str, str], cache: str) -> Iterator[Case]:
    """Each of these names as a local file, in a list of files, as a member of an archive and as a key of a store."""
    made = io.BytesIO()
    pq.write_table(pa.table({"x": [1, 2, 3]}), made)
    array = headed("{'descr': '<f4', 'fortran_order': False, 'shape': (16,)}")
    mds = ROOT / "fixtures" / "convert" / "mds" / "plain"
    index = (mds / "index.json").read_text(encoding="utf-8")
    for number, name in enumerate(leading_names()):
        path = folder / f"file-{number}"
        path.mkdir()
        if "/" not in name and name not in {".", ".."}:
            (path / f"{name}.parquet").write_bytes(made.getvalue())
            yield Case(f"a file {name!r}", "load", str(path))
        path = folder / f"shard-{number}"
        path.mkdir()
        for shard in mds.glob("*.mds"):
            (path / shard.name).write_bytes(shard.read_bytes())
        lying = json.loads(index)
        lying["shards"][0]["raw_data"]["basename"] = name
        (path / "index.json").write_text(json.dumps(lying), encoding="utf-8")
        yield Case(f"a shard {name!r}", "convert", str(path), {"to": "parquet", "from_format": "mds"})
        tar = folder / f"{number}.tar"
        tar.write_bytes(tarred((f"{name}.npy", array)))
        for to in ("numpy", "webdataset", "parquet"):
            options_of = {"columns": ["__key__", "npy"]} if to == "numpy" else {}
            yield Case(
                f"a member {name!r} to {to}", "convert", str(tar), {"to": to, "from_format": "webdataset", **options_of}
            )
        lines = folder / f"{number}.jsonl"
        lines.write_text(json.dumps({"path": name, "array": [1.0, 2.0]}) + "\n", encoding="utf-8")
        yield Case(f"a path {name!r} to numpy", "convert", str(lines), {"to": "numpy"})
        objects[f"bucket/s{number}/{name}.parquet"] = made.getvalue()
        stored = {"storage_options": options, "cache": cache, "cache_bytes": "64MiB"}
        yield Case(f"a key {name!r}", "load", f"s3://bucket/s{number}", stored)
        yield Case(f"a copy of the key {name!r}", "copy", f"s3://bucket/s{number}/{name}.parquet", stored)
