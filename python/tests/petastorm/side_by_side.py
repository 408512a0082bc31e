"""Runs the same code with Petastorm and with bowstring.petastorm: rows, types, shapes and exceptions must agree.

    PETASTORM_PYTHON=/path/to/python python side_by_side.py [FIXTURES]

`PETASTORM_PYTHON` is an interpreter with petastorm 0.12.1, pyarrow 14.0.2, numpy 1.23.5, pandas 1.5.3, pyspark 3.5.9, OpenCV and
torch. It runs this file with `--run petastorm`, which prints the result of each case as JSON; then the same is done here.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import hashlib
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings
from decimal import Decimal
from typing import Any

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent


# ---- the result of a case, in JSON -------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Returns a value with its type, as JSON: equal if and only if a user could not tell them apart."""
    if hasattr(value, "_asdict"):
        return {name: plain(item) for name, item in value._asdict().items()}
    if isinstance(value, np.generic):
        kind = value.dtype.str if value.dtype.kind not in "SU" else value.dtype.kind
        return [kind, str(value)]
    if hasattr(value, "codes") and hasattr(value, "categories"):  # pandas.Categorical
        return plain(np.asarray(value))
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "O":
            return ["object", list(value.shape), [plain(item) for item in value.ravel().tolist()]]
        if value.dtype.kind == "U" and value.ndim == 1:
            return ["U", list(value.shape), value.tolist()]
        data = np.ascontiguousarray(value).tobytes()
        return [value.dtype.str, list(value.shape), hashlib.sha256(data).hexdigest()[:16]]
    if type(value).__module__.partition(".")[0] == "torch":
        return ["tensor", plain(value.numpy())]
    if isinstance(value, (Decimal, datetime.date, bytes)):
        return [type(value).__name__, str(value)]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, collections.deque)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain, value))
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, type):
        return value.__name__.rstrip("_")
    raise TypeError(type(value))


# ---- cases -------------------------------------------------------------------------------------------------------------

CASES: dict[str, Any] = {}


def case(function: Any) -> Any:
    """Registers a function of the library and the fixtures; its result or exception is compared."""
    CASES[function.__name__] = function
    return function


def cases(**variants: Any) -> Any:
    """Registers a function several times, each with another last argument."""

    def register(function: Any) -> Any:
        for name, value in variants.items():
            CASES[f"{function.__name__}[{name}]"] = lambda lib, at, value=value: function(lib, at, value)
        return function

    return register


class Library:
    """Either library, by Petastorm's module names."""

    def __init__(self, root: str) -> None:
        self.root = root

    def __getattr__(self, name: str) -> Any:
        return importlib.import_module(f"{self.root}.{name}")

    def rows(self, url: str, **options: Any) -> list[Any]:
        """Returns all rows; in the caller's thread, since Petastorm's pools occasionally lose rows."""
        options = {"reader_pool_type": "dummy", "shuffle_row_groups": False, **options}
        with importlib.import_module(self.root).make_reader(url, **options) as reader:
            return list(reader)

    def batches(self, url: Any, **options: Any) -> list[Any]:
        """Returns all batches of make_batch_reader."""
        options = {"reader_pool_type": "dummy", "shuffle_row_groups": False, **options}
        with importlib.import_module(self.root).make_batch_reader(url, **options) as reader:
            return list(reader)

    def ids(self, url: str, **options: Any) -> list[int]:
        """Returns the field `id` of all rows."""
        options.setdefault("schema_fields", ["id"])
        return [int(row.id) for row in self.rows(url, **options)]

    def reader(self, url: str, **options: Any) -> Any:
        """Opens a reader."""
        options = {"reader_pool_type": "dummy", "shuffle_row_groups": False, **options}
        return importlib.import_module(self.root).make_reader(url, **options)

    def batch_reader(self, url: Any, **options: Any) -> Any:
        """Opens a reader of batches."""
        options = {"reader_pool_type": "dummy", "shuffle_row_groups": False, **options}
        return importlib.import_module(self.root).make_batch_reader(url, **options)


class At:
    """URLs of the datasets."""

    def __init__(self, fixtures: str, made: str) -> None:
        fixtures = f"file://{fixtures}"
        self.codecs = f"{fixtures}/petastorm/petastorm_allcodecs_0.13.1"
        self.legacy = {v: f"{fixtures}/petastorm/petastorm_legacy_{v}" for v in ("0.4.0", "0.4.3", "0.6.0", "0.7.6")}
        self.wide = f"{fixtures}/petastorm/petastorm_wide300_0.13.1"
        self.spark = f"{fixtures}/spark43_parquet"
        self.many = f"{fixtures}/spark43_parquet/many_rowgroups"
        self.plain = f"file://{made}/plain"
        self.files = [f"file://{made}/plain/{name}.parquet" for name in ("a", "b")]
        self.nothing = f"file://{made}/nothing"


# every codec and type
@case
def all_codecs(lib: Library, at: At) -> Any:
    return lib.rows(at.codecs)


@cases(**{"0.4.0": "0.4.0", "0.4.3": "0.4.3", "0.6.0": "0.6.0", "0.7.6": "0.7.6"})
def legacy(lib: Library, at: At, version: str) -> Any:
    return lib.rows(at.legacy[version])


@case
def more_than_255_fields(lib: Library, at: At) -> Any:
    return lib.rows(at.wide)


@case
def names_of_row_types(lib: Library, at: At) -> Any:
    return [type(lib.rows(at.codecs, schema_fields=fields)[0]).__name__ for fields in (None, ["id"])]


@case
def schema_fields_in_order(lib: Library, at: At) -> Any:
    with lib.reader(at.codecs) as reader:
        return [
            [f.name, f.numpy_dtype, list(f.shape), str(f.codec), bool(f.nullable)]
            for f in reader.schema.fields.values()
        ]


@case
def schema_as_text(lib: Library, at: At) -> Any:
    with lib.reader(at.codecs, schema_fields=["id"]) as reader:
        return str(reader.schema).replace("bool_", "bool")


@case
def attributes_of_a_reader(lib: Library, at: At) -> Any:
    with lib.reader(at.codecs, schema_fields=["id"]) as reader:
        found = [
            reader.batched_output,
            reader.is_batched_reader,
            reader.last_row_consumed,
            reader.stopped,
            reader.num_epochs,
        ]
        return [*found, reader.ngram is None, isinstance(reader.diagnostics, dict)]


# schema_fields
@cases(
    name=["id"],
    pattern=["s_.*"],
    several=["id", "n_.*", "part"],
    begins=["i"],
    nothing=["no_such_field"],
    empty=[],
    number=[5],
    scalar=5,
    text="id",
)
def schema_fields(lib: Library, at: At, fields: Any) -> Any:
    return [dict(sorted(row._asdict().items())) for row in lib.rows(at.codecs, schema_fields=fields)]


@case
def fields_as_objects(lib: Library, at: At) -> Any:
    with lib.reader(at.codecs, schema_fields=["id"]) as reader:
        schema = reader.schema
    return lib.rows(at.codecs, schema_fields=[schema.id])


@case
def field_of_another_schema(lib: Library, at: At) -> Any:
    return lib.rows(at.codecs, schema_fields=[lib.unischema.UnischemaField("x", np.int32, (), None, False)])


# order
@cases(**{str(seed): seed for seed in (0, 1, 7, 42, 12345)})
def shuffled_groups(lib: Library, at: At, seed: int) -> Any:
    return lib.ids(at.codecs, shuffle_row_groups=True, seed=seed)


@case
def shuffled_epochs(lib: Library, at: At) -> Any:
    return epochs_of(lib.ids(at.codecs, shuffle_row_groups=True, seed=3, num_epochs=4), 40)


def epochs_of(ids: list[int], rows: int) -> Any:
    """Returns the first epoch in order, the others sorted.

    Petastorm shuffles the next epoch once more each time it finds its queue full, so a seed fixes only the first.
    """
    return [ids[:rows], *(sorted(ids[start : start + rows]) for start in range(rows, len(ids), rows))]


@case
def shuffled_rows(lib: Library, at: At) -> Any:
    return lib.ids(at.codecs, shuffle_rows=True, seed=5)


@case
def shuffled_rows_and_groups(lib: Library, at: At) -> Any:
    return epochs_of(lib.ids(at.codecs, shuffle_rows=True, shuffle_row_groups=True, seed=5, num_epochs=2), 40)


@cases(**{str(parts): parts for parts in (2, 3, 4, 9)})
def drop_partitions(lib: Library, at: At, parts: int) -> Any:
    return lib.ids(at.codecs, shuffle_row_drop_partitions=parts)


@case
def drop_partitions_shuffled(lib: Library, at: At) -> Any:
    return lib.ids(at.codecs, shuffle_row_drop_partitions=2, shuffle_row_groups=True, seed=11)


@case
def reset_after_the_end(lib: Library, at: At) -> Any:
    with lib.reader(at.codecs, schema_fields=["id"], shuffle_row_groups=True, seed=9) as reader:
        first = [int(row.id) for row in reader]
        reader.reset()
        return [first, [int(row.id) for row in reader], reader.last_row_consumed]


@case
def reset_in_the_middle(lib: Library, at: At) -> Any:
    with lib.reader(at.codecs, schema_fields=["id"]) as reader:
        next(reader)
        reader.reset()


@case
def next_after_the_end(lib: Library, at: At) -> Any:
    with lib.reader(at.codecs, schema_fields=["id"]) as reader:
        list(reader)
        return [next(reader, None) is None, reader.last_row_consumed]


@case
def next_after_stop(lib: Library, at: At) -> Any:
    reader = lib.reader(at.codecs, schema_fields=["id"])
    reader.stop()
    reader.join()
    next(reader)


@case
def endless_epochs(lib: Library, at: At) -> Any:
    with lib.reader(at.codecs, schema_fields=["id"], num_epochs=None) as reader:
        return [int(next(reader).id) for _ in range(205)]


@cases(zero=0, negative=-1, text="2", fraction=1.5)
def bad_num_epochs(lib: Library, at: At, epochs: Any) -> Any:
    return lib.ids(at.codecs, num_epochs=epochs)


# shards
@cases(**{f"{s}_of_{n}": (s, n) for n in (1, 2, 3, 5, 12) for s in range(min(n, 3))})
def shards(lib: Library, at: At, shard: tuple[int, int]) -> Any:
    return lib.ids(at.codecs, cur_shard=shard[0], shard_count=shard[1])


@case
def shards_seeded(lib: Library, at: At) -> Any:
    return lib.ids(at.codecs, cur_shard=1, shard_count=3, seed=8, shuffle_row_groups=True)


@case
def shards_by_shard_seed(lib: Library, at: At) -> Any:
    return lib.ids(at.codecs, cur_shard=1, shard_count=3, shard_seed=8)


@cases(too_many=(0, 13), no_count=(0, None), no_shard=(None, 2), zero=(0, 0), text=("0", 2))
def bad_shards(lib: Library, at: At, shard: Any) -> Any:
    return lib.ids(at.codecs, cur_shard=shard[0], shard_count=shard[1])


# predicates
def predicates_of(lib: Library) -> dict[str, Any]:
    p = lib.predicates
    return {
        "in_set": p.in_set({3, 17, 30}, "id"),
        "in_set_text": p.in_set({"v1"}, "n_string"),
        "in_set_partition": p.in_set({"p_1", "p_2"}, "part"),
        "nothing": p.in_set({"p_9"}, "part"),
        "nothing_in_rows": p.in_set({999}, "id"),
        "in_lambda": p.in_lambda(["id"], lambda i: i % 7 == 0),
        "in_lambda_two": p.in_lambda(["id", "n_int"], lambda i, n: n is not None and i > n - 1),
        "in_lambda_state": p.in_lambda(["id"], lambda i, state: i in state, {1, 2, 39}),
        "in_lambda_array": p.in_lambda(["nd_f32", "id"], lambda a, i: bool(a.sum() > 0) or i == 3),
        "in_negate": p.in_negate(p.in_set(set(range(35)), "id")),
        "in_reduce_all": p.in_reduce([p.in_set({1, 2, 3}, "id"), p.in_lambda(["ts"], lambda t: t > 10)], all),
        "in_reduce_any": p.in_reduce([p.in_set({1, 2, 3}, "id"), p.in_set({"p_3"}, "part")], any),
        "split": p.in_pseudorandom_split([0.3, 0.4, 0.3], 1, "id"),
        "split_text": p.in_pseudorandom_split([0.5, 0.5], 0, "s_string"),
        "intersection": p.in_intersection(["a3", "a7"], "nd_str"),
        "intersection_of_scalars": p.in_intersection([3], "id"),
        "no_fields": p.in_lambda([], lambda: True),
        "unknown_field": p.in_set({1}, "no_such_field"),
        "raises": p.in_lambda(["id"], lambda i: 1 / (i - 12)),
    }


PREDICATES = """in_set in_set_text in_set_partition nothing nothing_in_rows in_lambda in_lambda_two in_lambda_state in_lambda_array
in_negate in_reduce_all in_reduce_any split split_text intersection intersection_of_scalars no_fields unknown_field raises"""


@cases(**{name: name for name in PREDICATES.split()})
def predicate(lib: Library, at: At, name: str) -> Any:
    fields = ["id", "ts", "part", "n_string", "n_int", "s_string", "nd_str", "nd_f32"]
    return lib.ids(at.codecs, predicate=predicates_of(lib)[name], schema_fields=fields)


@case
def predicate_and_shuffle(lib: Library, at: At) -> Any:
    chosen = predicates_of(lib)["in_set_partition"]
    return lib.ids(at.codecs, predicate=chosen, schema_fields=["id", "part"], shuffle_row_groups=True, seed=4)


@case
def predicate_and_shards(lib: Library, at: At) -> Any:
    chosen = predicates_of(lib)["in_set_partition"]
    return lib.ids(at.codecs, predicate=chosen, schema_fields=["id", "part"], cur_shard=1, shard_count=2)


@case
def predicate_that_is_none(lib: Library, at: At) -> Any:
    return lib.ids(at.codecs, predicate="part = p_1")


@case
def predicate_of_the_user(lib: Library, at: At) -> Any:
    class Odd(lib.predicates.PredicateBase):  # type: ignore[misc,name-defined]
        def get_fields(self) -> set[str]:
            return {"id"}

        def do_include(self, values: Any) -> Any:
            return values["id"] % 2

    return lib.ids(at.codecs, predicate=Odd())


@cases(
    not_a_list=lambda p: p.in_lambda("id", lambda i: True),
    negate=lambda p: p.in_negate(5),
    reduce=lambda p: p.in_reduce([5], all),
    split=lambda p: p.in_pseudorandom_split([0.5], 1, "id"),
)
def bad_predicates(lib: Library, at: At, make: Any) -> Any:
    make(lib.predicates)


# selectors
@cases(
    single=lambda s: s.SingleIndexSelector("ix_n_string", ["v1"]),
    several=lambda s: s.SingleIndexSelector("ix_n_string", ["v0", "v2"]),
    unknown_value=lambda s: s.SingleIndexSelector("ix_n_string", ["no such value"]),
    unknown_index=lambda s: s.SingleIndexSelector("no such index", ["v1"]),
    union=lambda s: s.UnionIndexSelector(
        [s.SingleIndexSelector("ix_n_string", ["v0"]), s.SingleIndexSelector("ix_n_string", ["v1"])]
    ),
    intersection=lambda s: s.IntersectIndexSelector(
        [s.SingleIndexSelector("ix_n_string", ["v0"]), s.SingleIndexSelector("ix_n_string", ["v1"])]
    ),
    no_selector=lambda s: ["ix_n_string"],
)
def selector(lib: Library, at: At, make: Any) -> Any:
    return lib.ids(at.codecs, rowgroup_selector=make(lib.selectors))


@case
def selector_on_a_legacy_dataset(lib: Library, at: At) -> Any:
    chosen = lib.selectors.SingleIndexSelector("id", [2, 18])
    return lib.ids(at.legacy["0.7.6"], rowgroup_selector=chosen)


@case
def selector_without_an_index(lib: Library, at: At) -> Any:
    return lib.ids(at.wide, rowgroup_selector=lib.selectors.SingleIndexSelector("ix", [1]))


# transforms
def doubled(row: Any) -> Any:
    row["id"] = row["id"] * 2
    return row


def added(row: Any) -> Any:
    return {"id": row["id"], "new": np.full((2,), row["id"], np.float32)}


@cases(
    func=lambda t: t.TransformSpec(doubled),
    removed=lambda t: t.TransformSpec(removed_fields=["ts"]),
    selected=lambda t: t.TransformSpec(selected_fields=["ts", "id"]),
    unknown_removed=lambda t: t.TransformSpec(removed_fields=["no_such_field"]),
    edited=lambda t: t.TransformSpec(added, edit_fields=[("new", np.float32, (2,), False)], removed_fields=["ts"]),
    both=lambda t: t.TransformSpec(removed_fields=["ts"], selected_fields=["id"]),
    raises=lambda t: t.TransformSpec(lambda row: row["no_such_field"]),
    too_few=lambda t: t.TransformSpec(lambda row: {"id": row["id"]}),
    too_many=lambda t: t.TransformSpec(lambda row: {**row, "more": 1}),
)
def transform(lib: Library, at: At, make: Any) -> Any:
    return lib.rows(at.codecs, schema_fields=[r"id|ts"], transform_spec=make(lib.transform))[:3] and [
        sorted(row._asdict().items()) if "selected" not in str(make) else row
        for row in lib.rows(at.codecs, schema_fields=[r"id|ts"], transform_spec=make(lib.transform))
    ]


@case
def transform_and_predicate(lib: Library, at: At) -> Any:
    chosen = lib.predicates.in_set({4, 5, 20}, "id")
    return lib.ids(at.codecs, predicate=chosen, transform_spec=lib.transform.TransformSpec(doubled))


# NGram
def ngram_of(lib: Library, **changes: Any) -> Any:
    options = {"fields": {0: ["id", "ts"], 1: ["id", "ts"]}, "delta_threshold": 10, "timestamp_field": "ts", **changes}
    return lib.ngram.NGram(**options)


@cases(
    two={},
    three={"fields": {0: ["id", "ts"], 1: ["id"], 2: ["id"]}},
    disjoint={"timestamp_overlap": False},
    narrow={"delta_threshold": 4},
    wide={"delta_threshold": 1000, "fields": {-1: ["id"], 0: ["id", "ts"], 1: ["part", "id"]}},
    gap={"fields": {0: ["id", "ts"], 2: ["id"]}},
    one={"fields": {0: ["id", "ts"]}},
    long={"fields": {0: ["id", "ts"], 4: ["id"]}},
)
def ngram(lib: Library, at: At, changes: Any) -> Any:
    return [
        {str(offset): dict(sorted(row._asdict().items())) for offset, row in window.items()}
        for window in lib.rows(at.codecs, schema_fields=ngram_of(lib, **changes))
    ]


@case
def ngram_row_types(lib: Library, at: At) -> Any:
    window = lib.rows(at.codecs, schema_fields=ngram_of(lib))[0]
    return [type(row).__name__ for row in window.values()]


@case
def ngram_unsorted(lib: Library, at: At) -> Any:
    return lib.rows(
        at.codecs, schema_fields=ngram_of(lib, fields={0: ["s_int"], 1: ["s_int"]}, timestamp_field="s_int")
    )


@case
def ngram_in_parts(lib: Library, at: At) -> Any:
    windows = lib.rows(at.codecs, schema_fields=ngram_of(lib), shuffle_row_drop_partitions=2)
    return [[int(row.id) for row in window.values()] for window in windows]


@case
def ngram_with_predicate(lib: Library, at: At) -> Any:
    chosen = lib.predicates.in_lambda(["id"], lambda i: i % 3 != 0)
    windows = lib.rows(at.codecs, schema_fields=ngram_of(lib, delta_threshold=50), predicate=chosen)
    return [[int(row.id) for row in window.values()] for window in windows]


@case
def ngram_disjoint_in_parts(lib: Library, at: At) -> Any:
    lib.rows(at.codecs, schema_fields=ngram_of(lib, timestamp_overlap=False), shuffle_row_drop_partitions=2)


@cases(
    fields_none={"fields": None},
    fields_list={"fields": ["id"]},
    not_lists={"fields": {0: "id"}},
    numbers={"fields": {0: [5]}},
    delta={"delta_threshold": "10"},
    no_delta={"delta_threshold": None},
    time={"timestamp_field": 5},
    overlap={"timestamp_overlap": 1},
)
def bad_ngram(lib: Library, at: At, changes: Any) -> Any:
    ngram_of(lib, **changes)


# arguments of make_reader
@cases(
    pool={"reader_pool_type": "fork"},
    cache={"cache_type": "memory"},
    cache_without_sizes={"cache_type": "local-disk"},
    cache_small={
        "cache_type": "local-disk",
        "cache_location": "/tmp/no-such-cache",
        "cache_size_limit": 100,
        "cache_row_size_estimate": 1000,
    },
    unknown={"no_such_parameter": 1},
)
def bad_arguments(lib: Library, at: At, options: Any) -> Any:
    return lib.ids(at.codecs, **options)


@cases(no_scheme="/tmp/x", number=5, none=None, empty_list=[], mixed=["file:///a", "s3://b/c"], no_bucket="s3:///x")
def bad_urls(lib: Library, at: At, url: Any) -> Any:
    return lib.rows(url)


@case
def no_dataset(lib: Library, at: At) -> Any:
    return lib.rows(at.nothing)


@case
def trailing_slash(lib: Library, at: At) -> Any:
    return lib.ids(at.codecs + "/")


@case
def thread_pool(lib: Library, at: At) -> Any:
    return sorted(lib.ids(at.codecs, reader_pool_type="thread", workers_count=2))


@case
def filters_on_the_partition(lib: Library, at: At) -> Any:
    return lib.ids(at.codecs, filters=[("part", "=", "p_2")])


# make_batch_reader
SCALARS = ["i8", "u8", "i16", "i32", "i64", "f32", "f64", "yes", "text", "raw", "day", "stamp", "price"]


@case
def batches(lib: Library, at: At) -> Any:
    return lib.batches(at.plain)


@cases(**{name: name for name in SCALARS})
def batches_with_nulls(lib: Library, at: At, name: str) -> Any:
    return lib.batches(at.plain, schema_fields=[f"null_{name}"])


@case
def batches_of_a_list_of_files(lib: Library, at: At) -> Any:
    return lib.batches(at.files, schema_fields=["i64"])


@case
def batches_of_files_in_another_order(lib: Library, at: At) -> Any:
    return lib.batches(at.files[::-1], schema_fields=["i64"])


@case
def batches_of_a_file_that_is_listed_twice(lib: Library, at: At) -> Any:
    b, a = at.files[::-1]
    return lib.batches([b, a, b], schema_fields=["i64"])


@cases(first=0, second=1, third=2)
def shards_of_a_list(lib: Library, at: At, shard: int) -> Any:
    b, a = at.files[::-1]
    return lib.batches([b, a, b], schema_fields=["i64"], cur_shard=shard, shard_count=3)


@cases(seconds="s", milliseconds="ms", microseconds="us")
def batches_of_times_beyond_nanoseconds(lib: Library, at: At, unit: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory() as folder:
        times = pa.array([datetime.datetime(1900, 1, 1), datetime.datetime(9999, 12, 31)], pa.timestamp(unit))
        pq.write_table(pa.table({"at": times}), f"{folder}/a.parquet")
        try:
            return lib.batches(f"file://{folder}")
        except ValueError:
            return "ValueError"


@case
def batches_of_a_seeded_order_with_a_transform(lib: Library, at: At) -> Any:
    spec = lib.transform.TransformSpec(lambda frame: frame)
    return lib.batches(at.plain, schema_fields=["i64"], transform_spec=spec, shuffle_rows=True, seed=7)


@case
def batches_of_a_transform_that_leaves_nothing(lib: Library, at: At) -> Any:
    spec = lib.transform.TransformSpec(lambda frame: frame[frame["i64"] > 30])
    return lib.batches(at.plain, schema_fields=["i64"], transform_spec=spec)


@case
def batches_of_one_file(lib: Library, at: At) -> Any:
    return lib.batches(at.files[0], schema_fields=["i64"])


@case
def batches_inferred_schema(lib: Library, at: At) -> Any:
    with lib.batch_reader(at.plain) as reader:
        return [[f.name, f.numpy_dtype, list(f.shape), bool(f.nullable)] for f in reader.schema.fields.values()]


@case
def batches_partitioned(lib: Library, at: At) -> Any:
    return [
        sorted(batch._asdict().items())
        for batch in lib.batches(f"{at.spark}/partitioned", schema_fields=["id", "year", "s", "emb"])
    ]


@case
def batches_partitioned_schema(lib: Library, at: At) -> Any:
    with lib.batch_reader(f"{at.spark}/partitioned") as reader:
        return [[f.name, f.numpy_dtype, list(f.shape)] for f in reader.schema.fields.values()]


@cases(snappy="flat_snappy", gzip="flat_gzip", int96="flat_int96", legacy="flat_legacy")
def batches_by_spark(lib: Library, at: At, name: str) -> Any:
    fields = "id|n_int|b|sh|f|d|bo|s|bin|dec9|dec18|dec38|dt|ts|emb"
    return [sorted(batch._asdict().items()) for batch in lib.batches(f"{at.spark}/{name}", schema_fields=[fields])]


@case
def batches_many_row_groups(lib: Library, at: At) -> Any:
    return [sorted(batch._asdict().items()) for batch in lib.batches(at.many, shuffle_row_groups=True, seed=2)]


@case
def batches_shuffled_rows(lib: Library, at: At) -> Any:
    return lib.batches(at.plain, schema_fields=["i64"], shuffle_rows=True, seed=6)


@case
def batches_in_parts(lib: Library, at: At) -> Any:
    return lib.batches(at.plain, schema_fields=["i64"], shuffle_row_drop_partitions=3)


@case
def batches_of_ragged_lists(lib: Library, at: At) -> Any:
    return lib.batches(at.plain, schema_fields=["ragged"])


@case
def batches_with_lambda(lib: Library, at: At) -> Any:
    chosen = lib.predicates.in_lambda(["i64"], lambda column: column % 3 == 0)
    return [sorted(b._asdict().items()) for b in lib.batches(at.plain, schema_fields=["i64|f32"], predicate=chosen)]


@case
def batches_with_ngram(lib: Library, at: At) -> Any:
    lib.batches(at.plain, schema_fields=lib.ngram.NGram({0: ["i64"], 1: ["i64"]}, 10, "i64"))


def frame_doubled(frame: Any) -> Any:
    frame["i64"] = frame["i64"] * 2
    return frame


def frame_matrix(frame: Any) -> Any:
    frame["m"] = [np.full((2, 2), value, np.float32) for value in frame["i64"]]
    return frame


@cases(
    func=lambda t: t.TransformSpec(frame_doubled),
    removed=lambda t: t.TransformSpec(removed_fields=["f32"]),
    matrix=lambda t: t.TransformSpec(frame_matrix, edit_fields=[("m", np.float32, (2, 2), False)]),
    bad_shape=lambda t: t.TransformSpec(frame_matrix, edit_fields=[("m", np.float32, (3, 2), False)]),
    open_shape=lambda t: t.TransformSpec(frame_matrix, edit_fields=[("m", np.float32, (None, 2), False)]),
    undeclared=lambda t: t.TransformSpec(frame_matrix),
    fewer=lambda t: t.TransformSpec(lambda frame: frame[frame["i64"] % 2 == 0]),
    strings=lambda t: t.TransformSpec(
        lambda f: f.assign(word=f["i64"].map(str)), edit_fields=[("word", np.str_, (), False)]
    ),
)
def batches_transformed(lib: Library, at: At, make: Any) -> Any:
    found = lib.batches(at.plain, schema_fields=["i64|f32"], transform_spec=make(lib.transform))
    return [sorted(batch._asdict().items()) for batch in found]


@case
def batches_of_petastorm_data(lib: Library, at: At) -> Any:
    return [
        sorted(batch._asdict().items())
        for batch in lib.batches(at.codecs, schema_fields=["id", "nd_f32", "img_png_rgb"])
    ]


@case
def rows_of_plain_parquet(lib: Library, at: At) -> Any:
    fields = "|".join([*SCALARS, *(f"null_{name}" for name in SCALARS if name not in ("stamp", "yes"))])
    return [sorted(row._asdict().items()) for row in lib.rows(at.plain, schema_fields=[fields])]


@case
def rows_of_fixed_lists(lib: Library, at: At) -> Any:
    return lib.rows(at.plain, schema_fields=["vector"])


# weighted sampling
@case
def weighted(lib: Library, at: At) -> Any:
    np.random.seed(3)
    readers = [lib.reader(at.codecs, schema_fields=["id"], num_epochs=None) for _ in range(2)]
    if not hasattr(np, "float"):
        np.float = float  # type: ignore[attr-defined]  # the name that Petastorm still uses
    with lib.weighted_sampling_reader.WeightedSamplingReader(readers, [3, 1]) as mixed:
        return [int(next(mixed).id) for _ in range(100)]


@cases(
    one=lambda lib, at: ([lib.reader(at.codecs)], [1]),
    lengths=lambda lib, at: ([lib.reader(at.codecs)] * 2, [1]),
    schemas=lambda lib, at: ([lib.reader(at.codecs), lib.reader(at.codecs, schema_fields=["id"])], [1, 1]),
    kinds=lambda lib, at: ([lib.reader(at.codecs), lib.batch_reader(at.plain)], [1, 1]),
    ngrams=lambda lib, at: (
        [lib.reader(at.codecs, schema_fields=["id|ts"]), lib.reader(at.codecs, schema_fields=ngram_of(lib))],
        [1, 1],
    ),
)
def bad_weighted(lib: Library, at: At, make: Any) -> Any:
    lib.weighted_sampling_reader.WeightedSamplingReader(*make(lib, at))


# torch
TORCH_FIELDS = (
    "id|s_bool|s_byte|s_ubyte|s_short|s_int|s_long|s_float|s_double|s_decimal|s_string|nd_f32|nd_u16|nd_u32|img_png_rgb"
)


@cases(one=1, four=4, seven=7)
def data_loader(lib: Library, at: At, size: int) -> Any:
    reader = lib.reader(at.codecs, schema_fields=[TORCH_FIELDS])
    with lib.pytorch.DataLoader(reader, batch_size=size) as loader:
        return [sorted(batch.items()) for batch in loader]


@case
def data_loader_shuffled(lib: Library, at: At) -> Any:
    np.random.seed(11)
    reader = lib.reader(at.codecs, schema_fields=["id"])
    with lib.pytorch.DataLoader(reader, batch_size=6, shuffling_queue_capacity=13) as loader:
        return list(loader)


@case
def data_loader_of_batches(lib: Library, at: At) -> Any:
    reader = lib.batch_reader(at.plain, schema_fields=["i64|f32|vector"])
    with lib.pytorch.DataLoader(reader, batch_size=6) as loader:
        return [sorted(batch.items()) for batch in loader]


@case
def data_loader_collate(lib: Library, at: At) -> Any:
    reader = lib.reader(at.codecs, schema_fields=["id"])
    with lib.pytorch.DataLoader(
        reader, batch_size=9, collate_fn=lambda rows: [int(row["id"]) for row in rows]
    ) as loader:
        return list(loader)


@case
def data_loader_twice(lib: Library, at: At) -> Any:
    reader = lib.reader(at.codecs, schema_fields=["id"])
    with lib.pytorch.DataLoader(reader, batch_size=16) as loader:
        return [list(loader), list(loader)]


@case
def data_loader_in_parallel(lib: Library, at: At) -> Any:
    reader = lib.reader(at.codecs, schema_fields=["id"])
    with lib.pytorch.DataLoader(reader, batch_size=16) as loader:
        first = iter(loader)
        next(first)
        next(iter(loader))


@cases(null="n_string", text="nd_str", ragged="img_var", time="s_timestamp")
def data_loader_refuses(lib: Library, at: At, field: str) -> Any:
    with lib.pytorch.DataLoader(lib.reader(at.codecs, schema_fields=[field]), batch_size=5) as loader:
        return list(loader)


@case
def data_loader_after_an_error(lib: Library, at: At) -> Any:
    with lib.pytorch.DataLoader(lib.reader(at.codecs, schema_fields=["n_string"]), batch_size=5) as loader:
        with contextlib.suppress(TypeError):
            list(loader)
        list(loader)


@cases(four=(4, 0), seven=(7, 0), all=(100, 0))
def batched_loader(lib: Library, at: At, sizes: Any) -> Any:
    reader = lib.batch_reader(at.plain, schema_fields=["i64|f32|vector"])
    with lib.pytorch.BatchedDataLoader(reader, sizes[0], shuffling_queue_capacity=sizes[1]) as loader:
        return [sorted(batch.items()) for batch in loader]


@case
def batched_loader_of_rows(lib: Library, at: At) -> Any:
    reader = lib.reader(at.codecs, schema_fields=["id|s_bool|s_float|nd_f32|nd_u16"])
    with lib.pytorch.BatchedDataLoader(reader, batch_size=7) as loader:
        return [sorted(batch.items()) for batch in loader]


@case
def batched_loader_shuffled(lib: Library, at: At) -> Any:
    import torch

    torch.manual_seed(5)
    reader = lib.batch_reader(at.plain, schema_fields=["i64|f32"])
    with lib.pytorch.BatchedDataLoader(reader, batch_size=7, shuffling_queue_capacity=15) as loader:
        return [sorted(batch.items()) for batch in loader]


@case
def batched_loader_transform(lib: Library, at: At) -> Any:
    import torch

    reader = lib.batch_reader(at.plain, schema_fields=["i64|f32"])
    with lib.pytorch.BatchedDataLoader(
        reader, 8, transform_fn=lambda a: torch.as_tensor(a, dtype=torch.float64)
    ) as loader:
        return [sorted(batch.items()) for batch in loader]


@cases(
    plain={},
    shuffled={"shuffle": True, "seed": 3},
    epochs={"num_epochs": 3, "shuffle": True},
    few={"rows_capacity": 11},
)
def in_memory_loader(lib: Library, at: At, options: Any) -> Any:
    reader = lib.batch_reader(at.plain, schema_fields=["i64|f32"])
    with lib.pytorch.InMemBatchedDataLoader(reader, batch_size=8, **options) as loader:
        return [sorted(batch.items()) for batch in loader]


@case
def in_memory_loader_twice(lib: Library, at: At) -> Any:
    loader = lib.pytorch.InMemBatchedDataLoader(lib.batch_reader(at.plain, schema_fields=["i64"]), batch_size=8)
    list(loader)
    list(loader)


@case
def collate_by_hand(lib: Library, at: At) -> Any:
    rows = [{"a": Decimal(i), "b": np.float32(i), "c": np.arange(3), "d": f"t{i}"} for i in range(3)]
    return lib.pytorch.decimal_friendly_collate(rows)


# schemas and codecs by hand
def schema_of(lib: Library) -> Any:
    u, c = lib.unischema, lib.codecs
    return u.Unischema(
        "Mine",
        [
            u.UnischemaField("id", np.int32, (), None, False),
            u.UnischemaField("image", np.uint8, (4, 5, 3), c.CompressedImageCodec("png"), False),
            u.UnischemaField("matrix", np.float32, (None, 3), c.NdarrayCodec(), True),
            u.UnischemaField("packed", np.int16, (2,), c.CompressedNdarrayCodec(), True),
        ],
    )


@case
def schema_by_hand(lib: Library, at: At) -> Any:
    schema = schema_of(lib)
    view = schema.create_schema_view([schema.matrix, "id"])
    return [str(schema), list(view.fields), schema.id == lib.unischema.UnischemaField("id", np.int32, (), 5, False)]


@cases(
    ndarray=("matrix", np.ones((2, 3), np.float32)),
    ndarray_type=("matrix", np.ones((2, 3), np.float64)),
    ndarray_shape=("matrix", np.ones((2, 4), np.float32)),
    ndarray_list=("matrix", [[1.0]]),
    packed=("packed", np.ones(2, np.int16)),
    image=("image", np.arange(60, dtype=np.uint8).reshape(4, 5, 3)),
    image_type=("image", np.zeros((4, 5, 3), np.uint16)),
    image_shape=("image", np.zeros((4, 6, 3), np.uint8)),
)
def codec_round_trip(lib: Library, at: At, given: Any) -> Any:
    field = schema_of(lib).fields[given[0]]
    return field.codec.decode(field, bytes(field.codec.encode(field, given[1])))


@cases(missing={}, filled={"id": 1, "matrix": None})
def explicit_nulls(lib: Library, at: At, row: Any) -> Any:
    schema = schema_of(lib).create_schema_view(["id", "matrix"])
    row = dict(row)
    lib.unischema.insert_explicit_nulls(schema, row)
    return sorted(row.items())


@cases(whole=["ma.*"], several=["id", "im.*"], none=[], begins=["ma"])
def match_fields(lib: Library, at: At, patterns: Any) -> Any:
    return sorted(field.name for field in lib.unischema.match_unischema_fields(schema_of(lib), patterns))


@case
def schema_from_url(lib: Library, at: At) -> Any:
    module = importlib.import_module(f"{lib.root}.etl.dataset_metadata")
    return list(module.get_schema_from_dataset_url(at.codecs).fields)


@case
def schema_from_plain_url(lib: Library, at: At) -> Any:
    importlib.import_module(f"{lib.root}.etl.dataset_metadata").get_schema_from_dataset_url(at.plain)


@case
def indexers_by_hand(lib: Library, at: At) -> Any:
    module = importlib.import_module(f"{lib.root}.etl.rowgroup_indexers")
    first, second = module.SingleFieldIndexer("ix", "a"), module.SingleFieldIndexer("ix", "a")
    first.build_index([{"a": 1}, {"a": None}, {"a": np.array([2, 3])}], 0)
    second.build_index([{"a": 1}], 4)
    both = first + second
    return [sorted(both.get_row_group_indexes(1)), sorted(map(int, both.indexed_values)), both.column_names]


# Intended differences of bowstring, with reasons. They are counted separately.
KNOWN = {
    "batches_with_lambda": "Petastorm turns integers to float64 when a predicate drops rows of the row group; here they stay",
    "data_loader_twice": "Petastorm's DataLoader begins a second pass with the rows of the last batch of the first once more",
}


# ---- running -----------------------------------------------------------------------------------------------------------


def make_plain(folder: pathlib.Path) -> None:
    """Plain Parquet of every scalar type, with and without nulls, in two files and five row groups."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 50
    n = np.arange(rows)
    day = datetime.date(2020, 1, 1)
    stamps = [datetime.datetime(2021, 3, 4, 5, 6, 7, 891000) + datetime.timedelta(hours=int(i)) for i in n]
    columns: dict[str, Any] = {
        "i8": pa.array(n % 100 - 50, pa.int8()),
        "u8": pa.array(n * 5, pa.uint8()),
        "i16": pa.array(n * 600 - 9000, pa.int16()),
        "i32": pa.array(n * 7, pa.int32()),
        "i64": pa.array(n, pa.int64()),
        "f32": pa.array(n / 3, pa.float32()),
        "f64": pa.array(n / 7, pa.float64()),
        "yes": pa.array(n % 3 == 0, pa.bool_()),
        "text": pa.array([f"t{i}é" for i in n]),
        "raw": pa.array([bytes([i, 0, 255]) for i in n], pa.binary()),
        "day": pa.array([day + datetime.timedelta(days=int(i)) for i in n], pa.date32()),
        "stamp": pa.array(stamps, pa.timestamp("us")),
        "price": pa.array([Decimal(int(i)) / 4 for i in n], pa.decimal128(10, 2)),
    }
    for name, values in list(columns.items()):
        mask = n % 4 == 1
        columns[f"null_{name}"] = pa.array([None if m else v for m, v in zip(mask, values.to_pylist())], values.type)  # noqa: B905
    columns["vector"] = pa.array([[float(i), float(i + 1), float(i + 2)] for i in n], pa.list_(pa.float32()))
    columns["ragged"] = pa.array([list(range(int(i) % 3)) for i in n], pa.list_(pa.int64()))
    table = pa.table(columns)
    (folder / "plain").mkdir()
    pq.write_table(table.slice(0, 25), folder / "plain" / "a.parquet", row_group_size=10)
    pq.write_table(table.slice(25), folder / "plain" / "b.parquet", row_group_size=13)


def run(root: str, at: At, only: str) -> dict[str, Any]:
    """Returns the result of every case with one library."""
    lib = Library(root)
    found: dict[str, Any] = {}
    for name, function in CASES.items():
        if only and only not in name:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[name] = {"gives": json.loads(json.dumps(plain(function(lib, at))))}
        except Exception as error:
            found[name] = {"raises": [kind.__name__ for kind in type(error).__mro__], "says": str(error)[:300]}
    return found


def agree(theirs: Any, ours: Any) -> bool:
    """True for equal values, or for an exception that an `except` clause for theirs catches."""
    if "raises" in theirs:
        return "raises" in ours and theirs["raises"][0] in ours["raises"]
    return bool(theirs == ours)


def petastorm_side(python: str, fixtures: pathlib.Path, made: str, only: str = "") -> dict[str, Any]:
    """Returns the result of every case with the real Petastorm, in its own interpreter."""
    command = [
        python,
        str(HERE / "side_by_side.py"),
        str(fixtures),
        "--run",
        "petastorm",
        "--made",
        made,
        "--only",
        only,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise RuntimeError(done.stderr[-2000:])
    return dict(json.loads(lines[-1]))


def stand_in_for_legacy_pickles() -> None:
    """PySpark no longer has the function needed by datasets of Petastorm 0.7 and older."""
    import pyspark.serializers

    def restore(name: str, fields: Any, value: Any) -> Any:
        return collections.namedtuple(name, fields)(*value)

    pyspark.serializers._restore = restore


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fixtures", nargs="?", type=pathlib.Path, default=HERE.parents[2] / "fixtures")
    parser.add_argument("--run", choices=["petastorm", "bowstring.petastorm"])
    parser.add_argument("--made", default="")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    fixtures = args.fixtures.resolve()
    if args.run:
        if args.run == "petastorm":
            stand_in_for_legacy_pickles()
        print(json.dumps(run(args.run, At(str(fixtures), args.made), args.only)))
        return 0
    with tempfile.TemporaryDirectory() as made:
        make_plain(pathlib.Path(made))
        theirs = petastorm_side(os.environ["PETASTORM_PYTHON"], fixtures, made, args.only)
        ours = run("bowstring.petastorm", At(str(fixtures), made), args.only)
    differ = [name for name in theirs if not agree(theirs[name], ours[name])]
    bad = [name for name in differ if name not in KNOWN]
    for name in bad:
        print(f"\n{name}\n  petastorm: {json.dumps(theirs[name])[:600]}\n  bowstring: {json.dumps(ours[name])[:600]}")
    for name in differ:
        if name in KNOWN:
            print(f"{name}: {KNOWN[name]}")
    print(f"\n{len(theirs) - len(differ)} of {len(theirs)} cases agree, {len(differ) - len(bad)} differ on purpose")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
