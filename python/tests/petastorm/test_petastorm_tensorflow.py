"""make_petastorm_dataset, where TensorFlow is installed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

from bowstring.petastorm import make_batch_reader, make_reader
from bowstring.petastorm.ngram import NGram
from bowstring.petastorm.tf_utils import make_petastorm_dataset

from .datasets import CODECS, FIXTURES

pytestmark = pytest.mark.filterwarnings("ignore")  # TensorFlow's own
At = Callable[[str], str]
FIELDS = ["id|s_bool|s_ushort|s_float|s_string|s_decimal|s_timestamp|nd_u16|nd_str|nd_f64_var|img_png_rgb"]


def test_rows(at: At) -> None:
    with make_reader(at(CODECS), FIELDS, shuffle_row_groups=False) as reader:
        rows = list(make_petastorm_dataset(reader).take(40))
    assert [int(row.id) for row in rows] == list(range(40))
    first = rows[0]
    assert first.nd_u16.dtype.name == first.s_ushort.dtype.name == "int32"
    assert first.nd_u16.shape == (3, 2)
    assert first.s_decimal.numpy() == b"24562.7046"
    assert first.s_timestamp.numpy() == 1614834367891000000
    assert first.s_string.numpy().decode() == "str_0_é中😀"
    assert first.nd_str.numpy().tolist() == [b"a0", b""]
    assert rows[1].nd_f64_var.shape[1] == 2


def test_batches() -> None:
    with make_batch_reader(f"file://{FIXTURES}/spark43_parquet/many_rowgroups", shuffle_row_groups=False) as reader:
        dataset = make_petastorm_dataset(reader).unbatch().batch(1000)
        assert [len(batch.id) for batch in dataset] == [1000] * 3


def test_windows(at: At) -> None:
    ngram = NGram({0: ["id", "ts"], 1: ["id"]}, 10, "ts")
    with make_reader(at(CODECS), ngram, shuffle_row_groups=False) as reader:
        windows = list(make_petastorm_dataset(reader))
    assert all(int(window[1].id) == int(window[0].id) + 1 for window in windows)
    assert len(windows) > 10


def test_nulls_are_refused(at: At) -> None:
    with (
        make_reader(at(CODECS), ["n_string"], shuffle_row_groups=False) as reader,
        pytest.raises(Exception, match="n_string is None"),
    ):
        list(make_petastorm_dataset(reader))
