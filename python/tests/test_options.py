"""Python's keywords for options: against Rust's table, and the keywords that users of other libraries try."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from bowstring import base, words
from bowstring.options import NAMES, TABLE, plain

ROWS = 50


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("options") / "data.parquet"
    ids = list(range(ROWS))
    some = [None if n % 7 == 0 else n / 4 for n in ids]
    table = pa.table(
        {
            "id": ids,
            "word": ["ab'\"c"[n % 5] for n in ids],
            "part": pa.array(some, pa.float64()),
            "on": [n % 3 == 0 for n in ids],
        }
    )
    pq.write_table(table, path, row_group_size=10)
    return str(path)


# Keywords that are not options of a document.
_OURS = ("gang", "unknown", "drop_last", "credential_provider", "filesystem")


def test_keywords_are_those_of_the_table() -> None:
    keywords = list(inspect.signature(base.BaseLoader.__init__).parameters)[2:]
    assert sorted(name for name in keywords if name not in _OURS) == sorted(NAMES)


def test_words_of_a_choice_are_those_of_the_table() -> None:
    keywords = inspect.signature(base.BaseLoader.__init__).parameters
    for entry in TABLE:
        if entry["choices"]:
            literal = re.match(r"Literal\[(.*?)\]", keywords[entry["name"]].annotation)
            assert literal is not None
            assert sorted(re.findall(r"\w+", literal[1])) == sorted(entry["choices"]), entry["name"]


def test_every_option_is_documented_with_its_default() -> None:
    text = inspect.getdoc(base.BaseLoader) or ""
    said = dict(re.findall(r":param (\w+): ((?:.|\n)*?)(?=\n:param|\Z)", text))
    assert set(said) == {*NAMES, "url", "gang", "drop_last", "credential_provider", "filesystem"}
    for entry in TABLE:
        default = entry["default"]
        if default.isdigit() and default != "0":
            assert f"({default})" in said[entry["name"]], entry["name"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"num_workers": 4}, "threads="),
        ({"pin_memory": True}, "device='pinned'"),
        ({"sampler": None}, "rank= and world_size="),
        ({"collate_fn": list}, "nulls=, lists=, pack="),
        ({"bach_size": 4}, "did you mean batch_size=?"),
        ({"zzz": 4}, "there are columns"),
    ],
)
def test_a_keyword_of_another_library_is_an_error_that_names_its_counterpart(
    data: str, given: dict[str, object], words: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(words)) as caught:
        bowstring.Loader(data, batch_size=4, **given)  # type: ignore[arg-type]
    assert isinstance(caught.value, bowstring.ConfigError)
    assert caught.value.option == next(iter(given))


def test_what_is_no_gang_is_an_error_of_the_option(data: str) -> None:
    with pytest.raises(bowstring.ConfigError, match="5 is a int, where a") as caught:
        bowstring.Loader(data, batch_size=4, gang=5)  # type: ignore[arg-type]
    assert caught.value.option == "gang"


def test_an_address_that_is_given_twice_is_named(data: str) -> None:
    folder = str(Path(data).parent)
    with pytest.raises(bowstring.ConfigError, match="the address is given twice; leave one out"):
        bowstring.Loader([folder, folder], batch_size=4)


@pytest.mark.parametrize("word", words._WORDS)
def test_hints_for_keywords_name_existing_options(data: str, word: str) -> None:
    with pytest.raises(bowstring.UnknownOptionError) as caught:
        bowstring.Loader(data, batch_size=4, **{word: None})  # type: ignore[arg-type]
    told = str(caught.value)
    assert told.startswith(f"{word} is not an option of bowstring's loaders; ")
    assert "\n" not in told
    assert set(re.findall(r"(\w+)=", told)) <= set(NAMES)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": -1}, "option batch_size: -1 is not a whole number from 1 to 2147483648"),
        ({"batch_size": "many"}, 'option batch_size: "many" is not a whole number from 1 to 2147483648'),
        (
            {"batch_size": 4, "prefetch": 1 << 40},
            "option prefetch: 1099511627776 is not a whole number from 1 to 65536",
        ),
        ({"batch_size": 4, "tail": "keep"}, 'option tail: "keep" is not one of short, even, pad, repeat, drop'),
        ({"batch_size": 4, "images": {"a": {"siz": 3}}}, "option images: a: unknown key `siz`; did you mean `size`?"),
        ({"batch_size": 4, "memory_budget": "2 apples"}, 'option memory_budget: "2 apples" is no size'),
    ],
)
def test_errors_name_options_and_values(data: str, given: dict[str, object], message: str) -> None:
    with pytest.raises(bowstring.ConfigError, match=re.escape(message)):
        bowstring.Loader(data, **given)  # type: ignore[arg-type]


def test_a_pack_is_names_or_a_mapping_and_nothing_else(data: str) -> None:
    right: list[Any] = [["id"], {"columns": ["id"], "dtype": "float64"}, bowstring.Pack("id")]
    for pack in ({"m": columns} for columns in right):
        with bowstring.Loader(data, batch_size=2, columns=["m"], pack=pack) as loader:
            assert next(iter(loader))["m"].shape == (2, 1)
    wrong: list[Any] = [5, {"dtype": "float32"}, bowstring.Pack(5)]  # type: ignore[arg-type]
    for pack in ({"m": columns} for columns in wrong):
        with pytest.raises(bowstring.ConfigError, match="option pack"):
            bowstring.Loader(data, batch_size=2, pack=pack)


def test_a_misspelt_variable_is_an_error(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOWSTRING_BATCHSIZE", "4")
    with pytest.raises(bowstring.ConfigError, match=r"BOWSTRING_BATCHSIZE: did you mean BOWSTRING_BATCH_SIZE\?"):
        bowstring.Loader(data, batch_size=4)
    monkeypatch.delenv("BOWSTRING_BATCHSIZE")
    monkeypatch.setenv("BOWSTRING_SOMEBODY_ELSES", "4")
    monkeypatch.setenv("BOWSTRING_BATCH_SIZE", "-4")
    with pytest.raises(bowstring.ConfigError, match='batch_size: BOWSTRING_BATCH_SIZE: "-4" is not a whole number'):
        bowstring.Loader(data)
    monkeypatch.setenv("BOWSTRING_BATCH_SIZE", "4")
    assert bowstring.Loader(data, columns=["id"]).batch_size == 4


def test_a_loader_describes_itself(data: str) -> None:
    loader = bowstring.Loader(data, global_batch_size=9, rank=1, world_size=2, tail="drop", columns=["id"])
    next(iter(loader))
    shown = repr(loader)
    for part in (
        "bowstring.loader.Loader",
        data,
        "45 rows",
        "rank 1 of 2",
        "4 of 9 rows a step",
        "epoch 0",
        "step 1 of 5",
    ):
        assert part in shown, shown
    assert (len(loader.dataset), loader.batch_size, loader.drop_last) == (45, 4, True)
    assert (loader.batch_sampler, loader.num_workers) == (None, 0)
    loader.close()
    assert data in repr(loader)
    assert base._without_secrets("s3://me:pw@host/a?sig=x") == "s3://***@host/a?***"


def test_options_accept_common_python_types(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(Path(data).parent))
    loader = bowstring.Loader(Path("~/data.parquet"), batch_size=np.int64(5), columns=("id",))  # type: ignore[arg-type]
    assert loader.batch_size == 5


def test_an_iterator_of_addresses_is_read_once(data: str, tmp_path: Path) -> None:
    for paths in (lambda: Path(data).parent.glob("*.parquet"), lambda: map(str, [data]), lambda: {data}):
        assert bowstring.Loader(paths(), batch_size=5, columns="id").rows == ROWS  # type: ignore[arg-type]
        assert data in repr(bowstring.Loader(paths(), batch_size=5, columns="id"))  # type: ignore[arg-type]
        assert bowstring.plan(paths(), batch_size=5, columns="id")["row_groups"] == 5  # type: ignore[arg-type]
        assert bowstring.index(paths()) == bowstring.index([data])  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [None, b"data.parquet", 3, ["a", None], [b"a"]])
def test_what_is_no_address_is_named(wrong: Any) -> None:
    kind = type(wrong[-1] if isinstance(wrong, list) else wrong).__name__
    with pytest.raises(
        bowstring.ConfigError, match=f"option url: .* is a {kind}, where an address is a text or a path"
    ):
        bowstring.Loader(wrong, batch_size=4)


def test_element_types_are_texts_or_types(data: str) -> None:
    torch = pytest.importorskip("torch")
    for kind in ("float16", np.float16, np.dtype("float16"), torch.float16):
        with bowstring.Loader(data, batch_size=5, columns=["id", "part"], nulls=0, cast={"part": kind}) as loader:
            assert next(iter(loader))["part"].dtype == np.float16
    assert plain(np.dtype(">i4")) == ">i4"
    with bowstring.Loader(data, batch_size=5, columns="id", device=torch.device("cpu")) as loader:
        assert loader.device == "cpu"


@pytest.mark.parametrize(
    ("name", "value"),
    [("filter", lambda row: True), ("cast", {"part": float}), ("cast", {"part": np.ndarray}), ("limits", b"x")],
)
def test_values_that_no_option_holds_name_the_option(data: str, name: str, value: Any) -> None:
    with pytest.raises(bowstring.ConfigError, match=f"option {name}: ") as caught:
        bowstring.Loader(data, batch_size=4, **{name: value})
    assert caught.value.option == name


ARRAYS: list[tuple[str, Callable[[list[Any]], Any]]] = [
    ("numpy", np.array),
    ("numpy objects", lambda values: np.array(values, object)),
    ("pandas series", lambda values: pytest.importorskip("pandas").Series(values)),
    ("pandas index", lambda values: pytest.importorskip("pandas").Index(values)),
    ("pandas unique", lambda values: pytest.importorskip("pandas").Series(values).unique()),
]


@pytest.mark.parametrize("array", [array for _, array in ARRAYS], ids=[name for name, _ in ARRAYS])
def test_arrays_are_values_of_options(data: str, array: Callable[[list[Any]], Any]) -> None:
    def ids(**given: Any) -> list[int]:
        with bowstring.Loader(data, batch_size=50, shuffle=False, tail="short", **given) as loader:
            return [int(value) for value in next(iter(loader))["id"]]

    for some in ([3, 7, 41], [7]):
        assert ids(columns=array(["id"]), filter=[("id", "in", array(some))]) == some
    assert ids(columns=array(["id"]), filter=[("word", "in", array(["c"]))]) == list(range(4, 50, 5))
    assert ids(exclude=array(["word", "on", "part"])) == list(range(50))
    with bowstring.Loader([data, data], batch_size=5, columns="id", weights=array([0.25, 0.75])) as loader:
        assert len(next(iter(loader))["id"]) == 5


def test_arrays_become_plain_values() -> None:
    assert plain(np.array(["2024-01-02T03:04:05"], "datetime64[ns]")) == ["2024-01-02T03:04:05.000000000"]
    assert plain(np.datetime64("2024-01-02T03:04:05", "ns")) == "2024-01-02T03:04:05.000000000"
    for unit, text in {
        "Y": "2024-01-01",
        "M": "2024-02-01",
        "D": "2024-02-03",
        "h": "2024-02-03T04:00:00",
        "2h": "2024-02-03T04:00:00",
        "m": "2024-02-03T04:05:00",
        "s": "2024-02-03T04:05:06",
        "ms": "2024-02-03T04:05:06.000",
    }.items():
        assert plain(np.datetime64("2024-02-03T04:05:06").astype(f"datetime64[{unit}]")) == text
    assert plain([("t", ">=", np.datetime64("2024-02", "M"))]) == [["t", ">=", "2024-02-01"]]
    assert plain(np.array([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
    assert plain(np.array([])) == []
    assert plain(np.array(5)) == plain(np.int64(5)) == 5
    assert plain(np.float32("nan")) == "nan"


FIELD = pc.field
EXPRESSIONS = [
    FIELD("id") >= 3,
    (FIELD("id") > 3) & (FIELD("word") == "a"),
    (FIELD("id") != 3) | (FIELD("word") < "b"),
    FIELD("word") == "'",
    FIELD("word") == '"',
    FIELD("word").isin(["a", "c"]),
    ~FIELD("word").isin(["a", "c"]),
    FIELD("id").isin([1, 2, 77]),
    FIELD("part") > 3.0,
    FIELD("part") <= 2.5,
    ~(FIELD("part") <= 2.5),
    FIELD("part").is_null(),
    ~FIELD("part").isin([0.25, 2.0]),
    FIELD("part").is_valid() & FIELD("on"),
    ~(FIELD("on") == True),  # noqa: E712
]


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=str)
def test_an_expression_of_pyarrow_selects_what_pyarrow_selects(data: str, expression: pc.Expression) -> None:
    expected = pq.read_table(data).filter(expression)["id"].to_pylist()
    loader = bowstring.Loader(data, batch_size=ROWS, shuffle=False, tail="pad", columns="id", filter=expression)
    rows = [
        row for batch in loader for row, real in zip(batch["id"].tolist(), batch["_mask"].tolist(), strict=True) if real
    ]
    assert rows == expected


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        (FIELD("id") + 1 > 3, "it calls add_checked, and a filter has comparisons"),
        (FIELD("id").cast("int8") > 3, "it calls cast,.*; compare the column itself"),
        (pc.and_(FIELD("on"), FIELD("on")), "it calls and_,.*; write &"),
        (FIELD("id") > FIELD("part"), "it compares a column and a column; a filter compares a column with a value"),
        (FIELD("id") == pa.scalar(None, pa.int64()), "nothing equals null; write is_null"),
        (FIELD("raw") == b"\xff", r"b'\\xff' is no UTF-8"),
        (FIELD("id") == pa.scalar(1, pa.duration("s")), r"it has a value of type duration\[s\]"),
        (FIELD("time") > pa.scalar(1 << 62, pa.timestamp("s")), ".* is beyond the years 1 to 9999"),
        (pc.field(0) > 3, "pyarrow does not tell its parts .*; name columns"),
    ],
    ids=str,
)
def test_an_expression_that_cannot_be_read_is_an_error_that_names_the_part(
    data: str, expression: pc.Expression, why: str
) -> None:
    with pytest.raises(bowstring.UnsupportedError, match=f"(?s)cannot be read as a filter: {why}"):
        bowstring.Loader(data, batch_size=4, filter=expression)


def test_torch_cannot_stack_batches_silently(data: str) -> None:
    torch = pytest.importorskip("torch")
    from bowstring.torch import Dataset

    dataset = Dataset(data, batch_size=5, shuffle=False, columns="id")
    with pytest.raises(bowstring.ConfigError, match="batch_size=None"):
        next(iter(torch.utils.data.DataLoader(dataset, batch_size=4)))
    # Through a chain of datasets, and with a function that would leave batches out.
    chain = Dataset(data, batch_size=5, columns="id") + Dataset(data, batch_size=5, columns="id")
    with pytest.raises(bowstring.ConfigError, match="batch_size=None"):
        next(iter(torch.utils.data.DataLoader(chain, batch_size=4, collate_fn=lambda batches: batches[0])))
    chain = Dataset(data, batch_size=5, columns="id") + Dataset(data, batch_size=5, columns="id")
    count = sum(len(batch["id"]) for batch in torch.utils.data.DataLoader(chain, batch_size=None))
    assert count == 2 * ROWS
    dataset = Dataset(data, batch_size=5, shuffle=False, columns="id")
    whole = [row for batch in torch.utils.data.DataLoader(dataset, batch_size=None) for row in batch["id"].tolist()]
    assert whole == list(range(ROWS))
    with pytest.raises(bowstring.UnsupportedError, match="random_split"):
        torch.utils.data.random_split(dataset, [0.5, 0.5])[0][0]
