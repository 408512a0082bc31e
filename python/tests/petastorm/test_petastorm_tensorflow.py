"""make_petastorm_dataset, if TensorFlow is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import tensorflow
from bowstring.errors import UnsupportedError
from bowstring.petastorm import make_batch_reader, make_reader
from bowstring.petastorm.ngram import NGram
from bowstring.petastorm.tf_utils import make_petastorm_dataset, tf_tensors
from bowstring.petastorm.unischema import Unischema, UnischemaField
from bowstring.petastorm.weighted_sampling_reader import WeightedSamplingReader

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


@pytest.fixture
def mixed(tmp_path: Path) -> Callable[[], WeightedSamplingReader]:
    """A mix of two datasets, whose columns have two orders."""
    for number, order in enumerate(("xy", "yx")):
        columns = {name: np.full(50, "xy".index(name), np.float64) for name in order}
        (tmp_path / str(number)).mkdir()
        pq.write_table(pa.table(columns), tmp_path / str(number) / "0.parquet", row_group_size=10)

    def mix() -> WeightedSamplingReader:
        readers = [make_batch_reader(f"file://{tmp_path}/{number}", shuffle_row_groups=False) for number in range(2)]
        assert [tuple(reader.schema.fields) for reader in readers] == [("x", "y"), ("y", "x")]
        return WeightedSamplingReader(readers, [0.5, 0.5])

    return mix


def test_columns_of_mixed_readers_go_by_their_names(mixed: Callable[[], WeightedSamplingReader]) -> None:
    np.random.seed(3)
    with mixed() as reader:
        batches = list(make_petastorm_dataset(reader))
    assert len(batches) > 5
    assert {(float(batch.x[0]), float(batch.y[0])) for batch in batches} == {(0.0, 1.0)}
    tf = tensorflow.compat.v1
    with tf.Graph().as_default(), mixed() as reader:
        batch = tf_tensors(reader)
        with tf.Session() as session:
            found = [session.run(batch) for _ in range(5)]
    assert {(float(batch.x[0]), float(batch.y[0])) for batch in found} == {(0.0, 1.0)}


def test_columns_of_mixed_windows_go_by_their_names() -> None:
    fields = {name: UnischemaField(name, np.int64, (), None, False) for name in "xyt"}
    schemas = [Unischema("S", [fields[name] for name in order]) for order in ("txy", "yxt")]
    ngram = NGram({at: list(fields.values()) for at in range(2)}, 10, fields["t"])
    rows = [schema.make_namedtuple(t=0, x=1, y=2) for schema in schemas]

    class Mixed:
        schema, batched_output, last_row_consumed = schemas[0], False, False

        def __init__(self) -> None:
            self.ngram = ngram

        def __iter__(self) -> Iterator[dict[int, Any]]:
            return iter([{0: row, 1: row} for row in rows])

    for window in make_petastorm_dataset(Mixed()):
        assert [{name: int(value) for name, value in row._asdict().items()} for row in window.values()] == [
            {"t": 0, "x": 1, "y": 2}
        ] * 2


def test_nulls_are_refused(at: At) -> None:
    with (
        make_reader(at(CODECS), ["n_string"], shuffle_row_groups=False) as reader,
        pytest.raises(Exception, match="n_string is None"),
    ):
        list(make_petastorm_dataset(reader))


def test_methods_of_tensorflow_1(at: At) -> None:
    tf = tensorflow.compat.v1
    with tf.Graph().as_default(), make_reader(at(CODECS), FIELDS, shuffle_row_groups=False) as reader:
        dataset = make_petastorm_dataset(reader)
        assert dataset.output_shapes.nd_u16.as_list() == [3, 2]
        assert dataset.output_types.id == tf.int64
        following = dataset.make_one_shot_iterator().get_next()
        with tf.Session() as session:
            assert [int(session.run(following).id) for _ in range(40)] == list(range(40))
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(following)


def test_tensors_of_a_graph(at: At) -> None:
    tf = tensorflow.compat.v1
    with tf.Graph().as_default(), make_reader(at(CODECS), FIELDS, shuffle_row_groups=False) as reader:
        row = tf_tensors(reader)
        assert (row.nd_u16.shape.as_list(), row.nd_f64_var.shape.as_list()) == ([3, 2], [None, 2])
        with tf.Session() as session:
            rows = [session.run(row) for _ in range(40)]
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(row)
    assert [int(row.id) for row in rows] == list(range(40))
    first = rows[0]
    assert (first.s_ushort.dtype, first.s_float.dtype, first.s_decimal) == (np.int32, np.float32, b"24562.7046")
    assert first.s_string.decode() == "str_0_é中😀"
    assert first.nd_str.tolist() == [b"a0", b""]
    assert rows[1].nd_f64_var.shape[1] == 2


def test_tensors_through_a_queue(at: At) -> None:
    tf = tensorflow.compat.v1
    with tf.Graph().as_default(), make_reader(at(CODECS), ["id"], num_epochs=None) as reader, tf.Session() as session:
        row = tf_tensors(reader, shuffling_queue_capacity=30, min_after_dequeue=20)
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coordinator)
        found = [int(session.run(row).id) for _ in range(100)]
        coordinator.request_stop()
        session.run(tf.get_collection(tf.GraphKeys.QUEUE_RUNNERS)[0].cancel_op)
        coordinator.join(threads, ignore_live_threads=True, stop_grace_period_secs=10)
    assert set(found) <= set(range(40))
    assert found[:20] != sorted(found[:20])


def test_tensors_of_windows_and_batches(at: At) -> None:
    tf = tensorflow.compat.v1
    ngram = NGram({0: ["id", "ts"], 1: ["id"]}, 10, "ts")
    with tf.Graph().as_default(), make_reader(at(CODECS), ngram, shuffle_row_groups=False) as reader:
        window = tf_tensors(reader)
        with tf.Session() as session:
            found = session.run(window)
    assert int(found[1].id) == int(found[0].id) + 1
    url = f"file://{FIXTURES}/spark43_parquet/many_rowgroups"
    with tf.Graph().as_default(), make_batch_reader(url, shuffle_row_groups=False) as reader:
        batch = tf_tensors(reader)
        assert batch.id.shape.as_list() == [None]
        with tf.Session() as session:
            assert len(session.run(batch).id) > 1
        with pytest.raises(ValueError, match="shuffle_rows"):
            tf_tensors(reader, shuffling_queue_capacity=10)


def test_tensors_need_a_graph(at: At) -> None:
    with make_reader(at(CODECS), ["id"]) as reader, pytest.raises(UnsupportedError, match="make_petastorm_dataset"):
        tf_tensors(reader)


def test_a_time_beyond_nanoseconds_is_an_error() -> None:
    from bowstring.petastorm.errors import TimeRangeError
    from bowstring.petastorm.tf_utils import _value

    assert _value("at", np.datetime64("2021-03-04", "D")) == 1614816000000000000
    with pytest.raises(TimeRangeError, match="column at, row 1: 3000"):
        _value("at", np.array(["2000-01-01", "3000-01-01"], "M8[us]"))
    with pytest.raises(TimeRangeError, match="column at"):
        _value("at", np.datetime64("3000-01-01", "us"))
