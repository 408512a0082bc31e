"""`bowstring.tensorflow`: a tf.data.Dataset of whole batches whose position is that of the consumer."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import random
import subprocess
import threading
import time
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bowstring.torch import DataLoader
from conftest import EVERY_KIND, free_port

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    tf = pytest.importorskip("tensorflow")
    keras = tf.keras
    from bowstring.tensorflow import Dataset, _string_tensor, _varint, _varints, dataset

pytestmark = pytest.mark.filterwarnings("ignore")

# Two devices, before the first tensor.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


def ids(batch: Any) -> list[int]:
    """Returns the rows of a batch."""
    return [int(i) for i in batch["id"].numpy()]


def expected(path: pathlib.Path, epochs: int = 3, batch_size: int = 8, **options: Any) -> list[list[int]]:
    """Returns the rows of every step from the loader itself, epoch after epoch."""
    with bowstring.Loader(path, batch_size=batch_size, columns=["id"], **options) as loader:
        return [batch["id"].tolist() for _ in range(epochs) for batch in loader]


def opened(path: pathlib.Path, **options: Any) -> Dataset:
    return dataset(path, **{"batch_size": 8, "columns": ["id"], **options})


def test_every_kind_of_column_equals_torchs(kinds: pathlib.Path) -> None:
    data = dataset(kinds, **EVERY_KIND)
    spec = data.element_spec
    for rows, of in ((None, spec), (8, dataset(kinds, **EVERY_KIND, tail="pad").element_spec)):
        assert of["tags"] == tf.RaggedTensorSpec([rows, None], tf.int32, 1, tf.int64)
        assert of["words"] == tf.RaggedTensorSpec([rows, None], tf.string, 1, tf.int64)
        assert of["deep"] == tf.RaggedTensorSpec([rows, None, None], tf.float32, 2, tf.int64)
        assert of["half"] == tf.TensorSpec([rows], tf.bfloat16)
        assert of["padded"] == tf.TensorSpec([rows, 3], tf.int32)
        assert of["name"] == tf.TensorSpec([rows], tf.string)
    with DataLoader(kinds, **EVERY_KIND) as loader:
        assert len(data) == len(loader) == 13
        for _epoch in range(2):
            for ours, theirs in zip(data, loader, strict=True):
                assert all(of.is_compatible_with(ours[name]) for name, of in spec.items())
                assert len(ours["id"]) in (4, 8)
                for name, value in theirs.items():
                    column, _, part = name.partition("__")
                    if part == "values":
                        assert ours[column].flat_values.numpy().tolist() == value.tolist()
                    elif part.startswith("offsets"):
                        level = int(part.removeprefix("offsets").removeprefix("_") or 0)
                        assert ours[column].nested_row_splits[level].numpy().tolist() == value.tolist()
                    elif isinstance(value, list):
                        text = [b if isinstance(b, list) else b or "" for b in value]
                        got = ours[name].to_list() if isinstance(ours[name], tf.RaggedTensor) else ours[name].numpy()
                        assert [one(b) for b in got] == [one(b) for b in text]
                    else:
                        assert ours[name].dtype.name == str(value.dtype).removeprefix("torch.")
                        assert ours[name].numpy().tolist() == value.tolist()
    off = tf.data.experimental.AutoShardPolicy.OFF
    assert data.prefetch(2).options().experimental_distribute.auto_shard_policy == off
    data.close()


def one(value: Any) -> Any:
    """Text as bytes, in lists too."""
    if isinstance(value, list):
        return [one(item) for item in value]
    return value.encode() if isinstance(value, str) else value


def test_numbers_are_not_copied(kinds: pathlib.Path) -> None:
    data = dataset(kinds, **EVERY_KIND)
    made: list[dict[str, int]] = []
    inner = data._arrays

    def arrays(batch: Any) -> Any:
        made.append({name: value.data_ptr for name, value in batch.items() if isinstance(value, bowstring.Tensor)})
        return inner(batch)

    data._arrays = arrays
    for batch, address in zip(data, made, strict=False):
        for name in ("packed", "half", "fixed", "maybe", "padded", "_row_id"):
            # numpy() copies; this is the memory of the tensor.
            assert batch[name]._numpy().ctypes.data == address[name], name
        assert batch["tags"].flat_values._numpy().ctypes.data == address["tags__values"]
    assert len(made) == 13


def test_text_of_any_length() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = np.random.default_rng(seed)
    for most in (0, 5, 127, 128, 300, 40_000):
        lengths = rng.integers(0, most + 1, 200)
        values = [rng.bytes(int(n)) for n in lengths]
        array = pa.array([b"not this", *values, b"nor this"], pa.large_binary())[1:-1]
        text, splits = bowstring.arrays.Text.of(array)
        assert not splits
        assert tf.io.parse_tensor(_string_tensor(text, "x"), tf.string).numpy().tolist() == values
    numbers = [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455, 268_435_456, 2**34]
    assert _varints(np.array(numbers)) == b"".join(map(_varint, numbers))
    empty, _ = bowstring.arrays.Text.of(pa.array([], pa.large_string()))
    assert tf.io.parse_tensor(_string_tensor(empty, "x"), tf.string).shape == [0]
    lists = pa.array([["a"], None, [], ["b", None]], pa.large_list(pa.large_string()))[1:]
    text, splits = bowstring.arrays.Text.of(lists)
    assert splits[0].tolist() == [0, 0, 0, 2]
    assert tf.io.parse_tensor(_string_tensor(text, "x"), tf.string).numpy().tolist() == [b"b", b""]


def test_epochs_follow_each_other(kinds: pathlib.Path) -> None:
    want = expected(kinds)
    data = opened(kinds)
    assert [ids(batch) for _ in range(3) for batch in data] == want
    assert sorted(row for step in want[:13] for row in step) == list(range(100))
    assert [ids(batch) for batch in opened(kinds).repeat(2)] == want[:26]
    # A pass left early still counts as a pass, a peek does not, and `set_epoch` goes back to a requested one.
    data = opened(kinds)
    assert ids(data.peek()) == want[0]
    assert ids(next(iter(data))) == want[0]
    assert (data.epoch, data.step) == (0, 1)
    assert [ids(batch) for batch in data] == want[13:26]
    assert ids(data.peek()) == want[26]
    data.set_epoch(1)
    data.set_epoch(2)
    assert [ids(batch) for batch in data] == want[26:]
    data.set_epoch(0)
    assert [ids(batch) for batch in data.take(5)] == want[:5]
    assert [ids(batch) for batch in data.take(5)] == want[13:18]
    # Two passes at once: each has its own position.
    data = opened(kinds)
    both = [(ids(a), ids(b)) for a, b in tf.data.Dataset.zip((data, data))]
    assert both == list(zip(want[:13], want[13:26], strict=True))


def test_a_state_counts_the_yielded_batches(kinds: pathlib.Path) -> None:
    want = expected(kinds)
    data = opened(kinds)
    for _, batch in zip(range(5), data, strict=False):
        last = ids(batch)
    assert (last, data.epoch, data.step) == (want[4], 0, 5)
    state = json.loads(json.dumps(data.state_dict()))
    for other in (opened(kinds), opened(kinds)):
        other.load_state_dict(state)
        assert [ids(batch) for batch in other] == want[5:13]
        assert [ids(batch) for batch in other] == want[13:26]
    # The states of any other loader work here and the other way round, on other numbers of ranks too.
    with bowstring.Loader(kinds, batch_size=8, columns=["id"]) as loader:
        loader.load_state_dict(state)
        assert next(iter(loader))["id"].tolist() == want[5]
        data.load_state_dict(loader.state_dict())
        assert ids(next(iter(data))) == want[6]
        data.load_state_dict(loader.state_dict())
    halves = [opened(kinds, batch_size=4, rank=rank, world_size=2) for rank in range(2)]
    for half in halves:
        half.load_state_dict(state)
    for a, b, whole in zip(*halves, want[5:13], strict=True):
        assert ids(a) + ids(b) == whole
    # Stages that read ahead need a count: `state_at`.
    ahead = iter(data.prefetch(4))
    assert [ids(next(ahead)) for _ in range(2)] == want[6:8]
    data.load_state_dict(data.state_at(8))
    assert ids(next(iter(data))) == want[8]
    # The state after the last step leaves nothing of its epoch.
    data.load_state_dict(data.state_at(13))
    assert [[ids(batch) for batch in data] for _ in range(2)] == [[], want[13:26]]


def test_checkpoints_of_iterators(kinds: pathlib.Path, tmp_path: pathlib.Path) -> None:
    want = expected(kinds)

    def staged() -> Any:
        return opened(kinds).map(lambda batch: {**batch, "id": batch["id"] * 1}).prefetch(3)

    data = staged()
    assert [ids(batch) for batch in data] == want[:13]
    iterator = iter(data)
    assert [ids(next(iterator)) for _ in range(4)] == want[13:17]
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "checkpoint"))
    other = iter(staged())
    tf.train.Checkpoint(iterator=other).restore(path).assert_consumed()
    assert [ids(batch) for batch in other] == want[17:26]


@pytest.mark.parametrize("stages", ["itself", "prefetch", "repeat", "repeat, prefetch"])
def test_a_restored_iterator_is_followed_by_the_next_epoch(stages: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "few.parquet"
    pq.write_table(pa.table({"id": range(22)}), path)
    want = expected(path, epochs=4)

    def staged() -> tuple[Dataset, Any]:
        data = opened(path)
        behind = data.repeat() if "repeat" in stages else data
        return data, behind.prefetch(2) if "prefetch" in stages else behind

    def read(iterator: Any, until: int, following: Callable[[], Any]) -> list[list[int]]:
        """Returns so many batches, of several passes if needed."""
        found: list[list[int]] = []
        while len(found) < until:
            batch = next(iterator, None)
            if batch is None:
                iterator = following()
            else:
                found.append(ids(batch))
        return found

    saved = []
    data, behind = staged()
    iterator = iter(behind)
    for step in range(7):
        saved.append((step, tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / str(step)))))
        batch = next(iterator, None)
        if batch is None:
            saved.append((step, tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / f"end of {step}"))))
            iterator = iter(behind)
            batch = next(iterator)
        assert ids(batch) == want[step]
    for step, checkpoint in saved:
        data, behind = staged()
        iterator = iter(behind)
        tf.train.Checkpoint(iterator=iterator).restore(checkpoint)
        epochs = itertools.count(1 + max(step - 1, 0) // 3)
        # An iterator that has ended, maybe ahead of the loop, has no epoch in its checkpoint.
        has_ended = stages == "prefetch" or "end of" in checkpoint

        def following(data: Dataset = data, behind: Any = behind, of: Any = epochs, told: bool = has_ended) -> Any:
            if told:
                data.set_epoch(next(of))
            return iter(behind)

        assert read(iterator, 9 - step, following) == want[step:9], checkpoint


def test_from_a_server(kinds: pathlib.Path) -> None:
    binary = pathlib.Path(bowstring._native.__file__).resolve().parent / "bowstring"
    if not binary.exists():
        pytest.skip("no server beside this extension")
    command = [binary, "serve", f"kinds={kinds}", "--listen", "127.0.0.1:0", "--print-address"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            url = f"{server.stdout.readline().strip()}/kinds"
            far, near = dataset(url, **EVERY_KIND), dataset(kinds, **EVERY_KIND)
            assert far.element_spec == near.element_spec
            for a, b in zip(far, near, strict=True):
                assert [str(value) for value in tf.nest.flatten(a, True)] == [str(v) for v in tf.nest.flatten(b, True)]
            near.load_state_dict(far.state_dict())
            assert ids_of(next(iter(far))) == ids_of(next(iter(near)))
            far.close()
        finally:
            server.kill()


def ids_of(batch: Any) -> list[int]:
    """Returns the row numbers."""
    return [int(i) for i in batch["_row_id"].numpy()]


class Recorder(keras.Model):  # type: ignore[misc,name-defined]
    """Records the rows of training."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[int]] = []
        self.dense = keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.dense(tf.cast(inputs["x"], tf.float32)[:, None])

    def train_step(self, data: Any) -> Any:
        inputs, _ = data
        self.seen.append(inputs["id"].numpy().tolist())
        return super().train_step(data)


class Stop(keras.callbacks.Callback):  # type: ignore[misc,name-defined]
    """Ends training after a number of batches, as a kill would, and keeps the state of the data at that moment."""

    def __init__(self, data: Dataset, after: int) -> None:
        super().__init__()
        self.data, self.left = data, after

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            self.state = self.data.state_dict()
            raise KeyboardInterrupt


@pytest.mark.parametrize("after", [5, 13, 17])
def test_fit_resumes_at_the_batch(kinds: pathlib.Path, after: int) -> None:
    want = expected(kinds)

    def started() -> tuple[Dataset, Any, Recorder]:
        data = opened(kinds, columns=["id", "x", "flag"], targets="flag")
        model = Recorder()
        model.compile(optimizer="sgd", loss="mse", run_eagerly=True)
        # A stage that reads ahead, and hides the number of steps from Keras.
        return data, data.prefetch(3), model

    data, staged, model = started()
    stop = Stop(data, after)
    with pytest.raises(KeyboardInterrupt):
        model.fit(staged, epochs=3, callbacks=[data.callback(), stop], verbose=0)
    assert model.seen == want[:after]
    data, staged, model = started()
    data.load_state_dict(stop.state)
    model.fit(staged, initial_epoch=data.epoch, epochs=3, callbacks=[data.callback()], verbose=0)
    assert model.seen == want[after:]
    assert (data.epoch, data.step) == (3, 0)


def test_fit_without_stages_in_one_call(kinds: pathlib.Path) -> None:
    want = expected(kinds)
    data = opened(kinds, columns=["id", "x", "flag"], targets="flag")
    data.load_state_dict(data.state_at(9))
    model = Recorder()
    model.compile(optimizer="sgd", loss="mse", run_eagerly=True)
    follow = data.callback()
    model.fit(data, epochs=2, callbacks=[follow], verbose=0)
    assert model.seen == want[9:26]
    assert int(model.optimizer.iterations) == 17
    model.fit(data, epochs=1, callbacks=[follow], verbose=0)
    assert model.seen == want[9:]
    assert data.state_dict()["epoch"] == 3
    # Keras' own epochs may be shorter than the data's.
    data = opened(kinds, columns=["id", "x", "flag"], targets="flag")
    model.seen.clear()
    model.fit(data.repeat(), epochs=4, steps_per_epoch=5, callbacks=[data.callback()], verbose=0)
    assert model.seen == want[:20]
    assert (data.epoch, data.step) == (1, 7)


def test_a_fit_over_no_steps_is_an_error(kinds: pathlib.Path) -> None:
    for options in ({"filter": "id > 1000"}, {"batch_size": 128, "tail": "drop"}):
        with pytest.raises(bowstring.NotFoundError, match="an epoch of this dataset has no steps; check filter"):
            opened(kinds, **options).callback()


class Reader(Recorder):
    """Records the rows, and learns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.tested: list[list[int]] = []

    def train_step(self, data: Any) -> Any:
        self.seen.append(data[0]["id"].numpy().tolist())
        return {"loss": tf.constant(0.0)}

    def test_step(self, data: Any) -> Any:
        self.tested.append(data[0]["id"].numpy().tolist())
        return {"loss": tf.constant(0.0)}


class Tally(keras.callbacks.Callback):  # type: ignore[misc,name-defined]
    """Keeps the number of batches trained on in each epoch of Keras, and the position of the data after each execution."""

    def __init__(self, data: Dataset, model: Recorder, stop_after: int | None = None) -> None:
        super().__init__()
        self.data, self.recorder, self.stop_after = data, model, stop_after
        self.lengths: list[int] = []
        self.positions: list[tuple[int, dict[str, Any]]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.before = len(self.recorder.seen)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.positions.append((len(self.recorder.seen), self.data.state_dict()))
        if self.stop_after is not None and len(self.recorder.seen) >= self.stop_after:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.lengths.append(len(self.recorder.seen) - self.before)


def recorded(steps_per_execution: int = 1) -> Recorder:
    model = Reader()
    model.compile(optimizer="sgd", loss="mse", run_eagerly=True, steps_per_execution=steps_per_execution)
    return model


def labelled(path: pathlib.Path, **options: Any) -> Dataset:
    return opened(path, columns=["id", "x", "flag"], targets="flag", **options)


STAGES: dict[str, Callable[[Dataset], Any]] = {
    "itself": lambda data: data,
    "prefetch": lambda data: data.prefetch(3),
    "prefetch more than an epoch": lambda data: data.prefetch(30),
    "map": lambda data: data.map(lambda x, y: (x, y)),
    "map ahead": lambda data: data.map(lambda x, y: (x, y), num_parallel_calls=4, deterministic=True),
    "repeat": lambda data: data.repeat(),
    "repeat, prefetch": lambda data: data.repeat().prefetch(3),
    "repeat, prefetch more than an epoch": lambda data: data.repeat().prefetch(30),
    "repeat, map, prefetch": lambda data: data.repeat().map(lambda x, y: (x, y)).prefetch(2),
    "repeat twice": lambda data: data.repeat(2).prefetch(3),
}
ONCE = ["itself", "prefetch", "prefetch more than an epoch"]
REPEATED = ["repeat", "repeat, prefetch", "repeat, prefetch more than an epoch"]
# Stages, options of fit, steps per execution, and the batches in each epoch of Keras; an epoch of the data has 13.
FITS: list[tuple[str, dict[str, Any], int, list[int]]] = [
    *((stages, {"epochs": 3}, 1, [13] * 3) for stages in [*ONCE, *REPEATED, "map", "map ahead"]),
    *((stages, {"epochs": 3, "initial_epoch": 1}, 1, [13] * 2) for stages in ("prefetch", "repeat, prefetch")),
    *((stages, {"epochs": 4, "steps_per_epoch": 5}, 1, [5, 5, 3, 5]) for stages in ONCE),
    *((stages, {"epochs": 2, "steps_per_epoch": 13}, 1, [13] * 2) for stages in ONCE),
    *((stages, {"epochs": 2, "steps_per_epoch": 20}, 1, [13] * 2) for stages in ONCE),
    *((stages, {"epochs": 8, "steps_per_epoch": 5}, 1, [5] * 8) for stages in [*REPEATED, "repeat, map, prefetch"]),
    *((stages, {"epochs": 3, "steps_per_epoch": 13}, 1, [13] * 3) for stages in REPEATED),
    *((stages, {"epochs": 3, "steps_per_epoch": 20}, 1, [20] * 3) for stages in REPEATED),
    ("repeat twice", {"epochs": 2}, 1, [26] * 2),
    *((stages, {"epochs": 3}, 4, [13] * 3) for stages in ONCE),
    # Keras' executions are whole.
    *((stages, {"epochs": 3}, 4, [16, 12, 12]) for stages in REPEATED),
    *((stages, {"epochs": 4, "steps_per_epoch": 5}, 4, [8, 5, 8, 5]) for stages in ONCE),
    *((stages, {"epochs": 5, "steps_per_epoch": 8}, 4, [8] * 5) for stages in REPEATED),
    ("repeat, prefetch", {"epochs": 3, "steps_per_epoch": 5}, 4, [8] * 3),
    ("repeat, prefetch", {"epochs": 2, "steps_per_epoch": 13}, 4, [16] * 2),
]


@pytest.mark.parametrize(("stages", "options", "per_execution", "lengths"), FITS)
def test_fit_has_every_batch_once_behind_any_stages(
    kinds: pathlib.Path, stages: str, options: dict[str, Any], per_execution: int, lengths: list[int]
) -> None:
    want = expected(kinds, epochs=6)
    data, model = labelled(kinds), recorded(per_execution)
    tally = Tally(data, model)
    # Readers run ahead while a model is validated.
    options = {**options, "validation_data": labelled(kinds, shuffle=False), "validation_steps": 2}
    model.fit(STAGES[stages](data), **options, callbacks=[data.callback(), tally], verbose=0)
    assert model.seen == want[: len(model.seen)]
    assert tally.lengths == lengths
    assert [(s["epoch"], s["step"]) for _, s in tally.positions] == [divmod(n, 13) for n, _ in tally.positions]
    assert (data.epoch, data.step) == divmod(sum(lengths), 13)


def test_a_repeat_goes_on_when_validation_begins_between_two_of_its_passes(kinds: pathlib.Path) -> None:
    """A reader that is ahead of training requests the end of a pass and begins the next one, with anything in between."""
    data = opened(kinds)
    course = data._course
    course.train((0, 0))
    course.expect(opening=True)
    number, at = course.begin(False, data)
    assert at == (0, 0)
    course.take(number, 0, 12)
    course.end(number, 0, restored=False)
    course.validate(begins=True)
    assert course.begin(False, data) == (number + 1, (1, 0))
    # Another one without such an end is beside training.
    assert course.begin(False, data)[0] == -1
    course.validate(begins=False)
    course.finish()


@pytest.mark.parametrize("per_execution", [1, 4])
@pytest.mark.parametrize(
    ("stages", "options", "lengths"),
    [
        *((stages, {"epochs": 3}, [[4, 13, 13], [4, 13, 16]]) for stages in ONCE),
        *((stages, {"epochs": 4, "steps_per_epoch": 8}, [[8] * 4] * 2) for stages in REPEATED),
    ],
)
def test_fits_go_on_where_the_last_one_was_stopped(
    kinds: pathlib.Path, stages: str, options: dict[str, Any], lengths: list[list[int]], per_execution: int
) -> None:
    want = expected(kinds, epochs=9)
    data, model = labelled(kinds), recorded(per_execution)
    data.load_state_dict(data.state_at(9))
    follow, tally = data.callback(), Tally(data, model)
    model.fit(STAGES[stages](data), **options, callbacks=[follow, tally], verbose=0)
    count = len(model.seen)
    assert model.seen == want[9 : 9 + count]
    assert [(s["epoch"], s["step"]) for _, s in tally.positions] == [divmod(9 + n, 13) for n, _ in tally.positions]
    assert tally.lengths == lengths[0][: len(tally.lengths)]
    # The next fit begins an epoch: an abandoned pass is not continued.
    start = -(-(9 + count) // 13)
    model.seen.clear()
    tally = Tally(data, model, stop_after=4)
    model.fit(STAGES[stages](data), **options, callbacks=[follow, tally], verbose=0)
    assert model.seen == want[13 * start : 13 * start + 4]
    assert (data.epoch, data.step) == (start, 4)
    if stages == "repeat, prefetch more than an epoch":
        # The abandoned iterator may begin an epoch of its own just now.
        return
    model.seen.clear()
    model.fit(STAGES[stages](data), epochs=1, steps_per_epoch=8, callbacks=[follow], verbose=0)
    assert model.seen == want[13 * (start + 1) :][:8]
    assert (data.epoch, data.step) == (start + 1, 8)
    # So does a loop.
    assert [ids(x) for x, _ in data] == want[13 * (start + 2) :][:13]
    assert (data.epoch, data.step) == (start + 3, 0)


@pytest.mark.parametrize("behind", [lambda data: data, lambda data: data.filter(lambda x, y: True)])
def test_a_stop_by_another_callback_at_the_end_of_an_epoch_holds(
    kinds: pathlib.Path, behind: Callable[[Dataset], Any]
) -> None:
    data, model = labelled(kinds), recorded()
    data.load_state_dict(data.state_at(9))
    callbacks = [data.callback(), Tally(data, model, stop_after=4)]
    model.fit(behind(data), epochs=3, callbacks=callbacks, verbose=0)
    assert model.seen == expected(kinds)[9:13]


class Reading(keras.callbacks.Callback):  # type: ignore[misc,name-defined]
    """Adds what it knows to ``stop_training``, which is never a reason to stop, and reads it as a number."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_training |= False
        self.model.stop_training &= True
        assert float(self.model.stop_training) in (0.0, 1.0)


def test_a_fit_goes_on_after_a_pass_for_callbacks_that_add_to_the_stop(kinds: pathlib.Path) -> None:
    data, model = labelled(kinds), recorded()
    data.load_state_dict(data.state_at(9))
    model.fit(data, epochs=3, callbacks=[data.callback(), Reading()], verbose=0)
    assert model.seen == expected(kinds)[9:]


@pytest.mark.parametrize("stages", ["itself", "prefetch", "repeat, prefetch"])
def test_a_position_set_after_the_callback_was_made_holds(kinds: pathlib.Path, stages: str) -> None:
    want = expected(kinds)
    data, model = labelled(kinds), recorded()
    follow = data.callback()
    data.load_state_dict(data.state_at(9))
    model.fit(STAGES[stages](data), epochs=2, callbacks=[follow], verbose=0)
    assert model.seen == want[9:26]
    for epoch in (2, 1, 1):
        model.seen.clear()
        data.set_epoch(epoch)
        model.fit(STAGES[stages](data), epochs=1, callbacks=[follow], verbose=0)
        assert model.seen == want[13 * epoch :][:13]
    # Setting the epoch that is due changes nothing, in fit too.
    model.seen.clear()
    data.set_epoch(0)
    setting = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: data.set_epoch(epoch))
    model.fit(STAGES[stages](data), epochs=3, callbacks=[follow, setting], verbose=0)
    assert model.seen == want


class Beside(keras.callbacks.Callback):  # type: ignore[misc,name-defined]
    """Makes a pass of its own over the data in each hook of a name, and keeps the positions before and after it."""

    def __init__(self, data: Dataset, hook: str, pass_over: Callable[[Any, Dataset], Any]) -> None:
        super().__init__()
        self.data, self.found, self.positions = data, [], []

        def during(number: Any = None, logs: Any = None) -> None:
            if "batch" in hook and number % 6 != 0:
                return
            before = (data.epoch, data.step)
            self.found.append(pass_over(self.model, data))
            self.positions.append((before, (data.epoch, data.step)))

        setattr(self, hook, during)


def evaluated(model: Any, data: Any) -> list[list[int]]:
    model.tested = []
    model.evaluate(data, verbose=0)
    return list(model.tested)


def rows_of(batches: list[list[int]]) -> list[int]:
    return sorted(row for batch in batches for row in batch)


PASSES: dict[str, Callable[[Any, Dataset], Any]] = {
    "evaluate": evaluated,
    "evaluate a part": lambda model, data: evaluated(model, data.take(4)),
    "evaluate ahead": lambda model, data: evaluated(model, data.prefetch(30)),
    "predict": lambda model, data: model.predict(data, verbose=0).shape,
    "a loop": lambda model, data: [ids(x) for x, _ in data],
    "one batch": lambda model, data: ids(next(iter(data))[0]),
}
HOOKS = ["on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end"]


@pytest.mark.parametrize(
    ("stages", "hook", "passes"),
    [
        *(("itself", "on_epoch_end", passes) for passes in PASSES),
        *(("itself", hook, "evaluate") for hook in HOOKS),
        ("prefetch", "on_epoch_end", "evaluate a part"),
        # An iterator that Keras keeps goes on with the next epoch meanwhile.
        *(("repeat, prefetch", hook, "evaluate") for hook in ("on_train_batch_end", "on_epoch_end")),
    ],
)
def test_passes_of_callbacks_are_beside_training(kinds: pathlib.Path, stages: str, hook: str, passes: str) -> None:
    want = expected(kinds)
    data, model = labelled(kinds), recorded()
    beside, tally = Beside(data, hook, PASSES[passes]), Tally(data, model)
    options = {"steps_per_epoch": 13} if stages.startswith("repeat") else {}
    model.fit(STAGES[stages](data), epochs=3, callbacks=[data.callback(), beside, tally], verbose=0, **options)
    assert model.seen == want
    assert tally.lengths == [13] * 3
    assert [(s["epoch"], s["step"]) for _, s in tally.positions] == [divmod(n, 13) for n, _ in tally.positions]
    assert all(before == after for before, after in beside.positions)
    assert len(beside.found) == {"on_train_begin": 1}.get(hook, 9 if "batch" in hook else 3)
    if passes in ("evaluate", "evaluate ahead", "a loop"):
        assert all(rows_of(found) == rows_of(want[:13]) for found in beside.found)


VALIDATION: dict[str, Callable[[Dataset], dict[str, Any]]] = {
    "itself": lambda data: {"validation_data": data},
    "a part": lambda data: {"validation_data": data.take(4)},
    "some steps": lambda data: {"validation_data": data, "validation_steps": 2},
    "ahead": lambda data: {"validation_data": data.prefetch(30), "validation_steps": 2},
    "now and then": lambda data: {"validation_data": data.map(lambda x, y: (x, y)), "validation_freq": 2},
}


@pytest.mark.parametrize("stages", ["itself", "prefetch", "repeat, prefetch"])
@pytest.mark.parametrize("validation", VALIDATION)
def test_validation_over_the_same_data_is_beside_training(kinds: pathlib.Path, stages: str, validation: str) -> None:
    want = expected(kinds)

    def fit(data: Dataset, model: Recorder, *callbacks: Any) -> None:
        options = {**VALIDATION[validation](data), "initial_epoch": data.epoch, "epochs": 3, "verbose": 0}
        model.fit(STAGES[stages](data), **options, callbacks=[data.callback(), *callbacks])

    data, model = labelled(kinds), recorded()
    tally = Tally(data, model)
    ends: list[tuple[int, int]] = []
    end = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ends.append((data.epoch, data.step)))
    fit(data, model, tally, end)
    assert model.seen == want
    assert tally.lengths == [13] * 3
    assert [(s["epoch"], s["step"]) for _, s in tally.positions] == [divmod(n, 13) for n, _ in tally.positions]
    assert ends == [(1, 0), (2, 0), (3, 0)]
    assert (data.epoch, data.step) == (3, 0)
    if validation == "itself":
        assert rows_of(model.tested[:13]) == rows_of(want[:13])
        assert len(model.tested) == 39
    # Stopped in the epoch after a validation, it goes on at the batch: in this process, and in another one.
    data, model = labelled(kinds), recorded()
    stop = Stop(data, 17)
    with pytest.raises(KeyboardInterrupt):
        fit(data, model, stop)
    assert (model.seen, data.epoch, data.step) == (want[:17], 1, 4)
    fit(data, model)
    assert model.seen == want
    data, model = labelled(kinds), recorded()
    data.load_state_dict(stop.state)
    fit(data, model)
    assert model.seen == want[17:]
    assert (data.epoch, data.step) == (3, 0)


class Broken(Exception):
    """Raised by a model under test."""


def broken(model: Any, data: Any) -> list[list[int]]:
    def test_step(batch: Any) -> Any:
        if len(model.tested) == 3:
            raise Broken
        return Reader.test_step(model, batch)

    model.test_step, model.test_function = test_step, None
    with pytest.raises(Broken):
        evaluated(model, data)
    del model.test_step
    model.test_function = None
    return list(model.tested)


# Passes of Keras' own over the data, outside of fit.
TESTS: dict[str, Callable[[Any, Dataset], Any]] = {
    **{name: PASSES[name] for name in ("evaluate", "evaluate a part", "evaluate ahead", "predict")},
    "evaluate some steps": lambda model, data: model.evaluate(data, steps=2, verbose=0),
    "predict ahead": lambda model, data: model.predict(data.map(lambda x, y: x).prefetch(2), verbose=0).shape,
    "broken": broken,
    "broken ahead": lambda model, data: broken(model, data.prefetch(2)),
}


@pytest.mark.parametrize(
    ("stages", "tests"),
    [
        *(("itself", tests) for tests in TESTS),
        *(
            (stages, tests)
            for stages in ("prefetch", "repeat, prefetch")
            for tests in ("evaluate some steps", "predict ahead")
        ),
    ],
)
def test_evaluate_and_predict_between_fits_are_beside_training(kinds: pathlib.Path, stages: str, tests: str) -> None:
    want = expected(kinds, epochs=5)
    options: dict[str, Any] = {"steps_per_epoch": 13} if stages.startswith("repeat") else {}
    data, model = labelled(kinds), recorded()
    for epochs in (2, 4):
        # A callback that was made before counts the same.
        for follow in (data.callback(), None):
            before = data.state_dict()
            assert (data.epoch, data.step) == (epochs - 2, 0)
            found = TESTS[tests](model, data)
            assert data.state_dict() == before
            if tests == "evaluate":
                assert found == want[13 * data.epoch :][:13]
            if follow is not None:
                kept = follow
        assert ids(data.peek()[0]) == want[13 * data.epoch]
        TESTS[tests](model, data)
        model.fit(STAGES[stages](data), initial_epoch=data.epoch, epochs=epochs, callbacks=[kept], verbose=0, **options)
        assert model.seen == want[: 13 * epochs]
    # So it is for a loop, which itself counts, and for a fit without the callback.
    TESTS[tests](model, data)
    assert [ids(x) for x, _ in data] == want[52:]
    assert (data.epoch, data.step) == (5, 0)


@pytest.mark.parametrize("tests", TESTS)
def test_a_restored_position_outlasts_evaluate_and_predict(kinds: pathlib.Path, tests: str) -> None:
    want = expected(kinds)

    def restored() -> tuple[Dataset, Recorder]:
        data, model = labelled(kinds), recorded()
        TESTS[tests](model, data)
        data.load_state_dict(data.state_at(9))
        TESTS[tests](model, data)
        assert (data.epoch, data.step) == (0, 9)
        assert ids(data.peek()[0]) == want[9]
        TESTS[tests](model, data)
        # It is due already.
        data.set_epoch(0)
        assert (data.epoch, data.step) == (0, 9)
        return data, model

    data, model = restored()
    model.fit(data.prefetch(2), epochs=2, callbacks=[data.callback()], verbose=0)
    assert model.seen == want[9:26]
    data, _ = restored()
    assert [ids(x) for x, _ in data] == want[9:13]
    data, model = restored()
    model.fit(data, epochs=1, verbose=0)
    assert model.seen == want[9:13]


@pytest.mark.parametrize("tests", TESTS)
def test_an_interrupted_fit_outlasts_evaluate_and_predict(kinds: pathlib.Path, tests: str) -> None:
    want = expected(kinds)
    for stages in ("itself", "prefetch"):
        data, model = labelled(kinds), recorded()
        with pytest.raises(KeyboardInterrupt):
            model.fit(STAGES[stages](data), epochs=2, callbacks=[data.callback(), Stop(data, 5)], verbose=0)
        for _ in range(2):
            TESTS[tests](model, data)
            assert (data.epoch, data.step) == (0, 5)
        model.fit(STAGES[stages](data), epochs=2, callbacks=[data.callback()], verbose=0)
        assert model.seen == want[:26]
        assert (data.epoch, data.step) == (2, 0)


def test_loops_of_a_user_count_beside_evaluate(kinds: pathlib.Path) -> None:
    want = expected(kinds, epochs=5)
    data, model = labelled(kinds), recorded()

    def evaluate(data: Any) -> list[list[int]]:
        return [ids(x) for x, _ in data]

    assert evaluate(data.prefetch(2)) == want[:13]
    for count, (x, _) in enumerate(data):
        assert ids(x) == want[13 + count]
        model.evaluate(data, steps=2 + count, verbose=0)
        assert (data.epoch, data.step) == (1, count + 1)
        if count == 4:
            break
    # An abandoned pass is not continued.
    assert evaluate(data) == want[26:39]
    model.evaluate(data, steps=2, verbose=0)
    assert evaluate(data.repeat(2)) == want[39:]
    assert (data.epoch, data.step) == (5, 0)


@pytest.mark.parametrize("kind", ["a loop", "a fit", "a fit without the callback"])
def test_evaluate_in_another_thread_is_beside_training(kinds: pathlib.Path, kind: str) -> None:
    want = expected(kinds)
    data, model, tested = labelled(kinds), recorded(), recorded()
    turns = threading.Semaphore(0)

    def test_step(batch: Any) -> Any:
        assert turns.acquire(timeout=60)
        return Reader.test_step(tested, batch)

    tested.test_step = test_step
    seen = 0

    def had(*_: Any, logs: Any = None) -> None:
        """It is under way for all of three epochs."""
        nonlocal seen
        seen += 1
        if seen % 3 == 0:
            turns.release()
            while len(tested.tested) < seen // 3:
                time.sleep(0.001)

    thread = threading.Thread(target=tested.evaluate, args=(data,), kwargs={"verbose": 0})
    thread.start()
    if kind == "a loop":
        for _ in range(3):
            for x, _ in data:
                model.seen.append(ids(x))
                had()
    else:
        follow = [] if "without" in kind else [data.callback()]
        count = keras.callbacks.LambdaCallback(on_train_batch_end=had)
        model.fit(data, epochs=3, callbacks=[*follow, count], verbose=0)
    thread.join(60)
    assert not thread.is_alive()
    assert model.seen == want
    assert rows_of(tested.tested) == rows_of(want[:13])
    assert data.state_dict() in (data.state_at(0, 3), data.state_at(13, 2))


def test_evaluate_over_one_of_several_datasets_is_beside_training(kinds: pathlib.Path) -> None:
    want = expected(kinds)
    data, other, model = labelled(kinds), labelled(kinds), recorded()
    evaluate = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: model.evaluate(data.prefetch(2), verbose=0))
    model.fit(other, epochs=2, callbacks=[other.callback(), evaluate], validation_data=data, verbose=0)
    assert model.seen == want[:26]
    assert (data.epoch, data.step) == (0, 0)
    assert model.tested == want[:13] * 4
    # A loop over another one counts meanwhile.
    loop = keras.callbacks.LambdaCallback(on_test_begin=lambda *_: [ids(x) for x, _ in other.prefetch(2)])
    model.evaluate(data, callbacks=[loop], verbose=0)
    assert (other.epoch, other.step) == (3, 0)
    model.seen.clear()
    model.fit(data, epochs=1, callbacks=[data.callback()], verbose=0)
    assert model.seen == want[:13]


def test_evaluate_and_predict_on_two_devices_are_beside_training(kinds: pathlib.Path) -> None:
    data = opened(kinds, columns=["p", "half"], pack={"p": ["x"]}, targets="half")
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
    for epochs in (1, 2):
        # The first one builds the model.
        model.evaluate(data, verbose=0)
        model.predict(data, verbose=0)
        model.evaluate(data.prefetch(2), steps=2, verbose=0)
        model.evaluate(strategy.experimental_distribute_dataset(data), steps=2, verbose=0)
        assert (data.epoch, data.step) == (epochs - 1, 0)
        model.fit(data, initial_epoch=data.epoch, epochs=epochs, callbacks=[data.callback()], verbose=0)
        assert int(model.optimizer.iterations.numpy()) == 13 * epochs
        assert (data.epoch, data.step) == (epochs, 0)


def test_a_fit_opens_the_epoch_after_one_that_has_ended(kinds: pathlib.Path) -> None:
    data, model = labelled(kinds), recorded()
    load = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: data.load_state_dict(data.state_at(13, epoch)) if epoch == 1 else None
    )
    model.fit(data, epochs=2, callbacks=[load, data.callback()], verbose=0)
    assert model.seen == [*expected(kinds)[:13], *expected(kinds)[26:]]


@pytest.mark.parametrize("stages", ["itself", "prefetch more than an epoch", "repeat", "repeat, prefetch"])
def test_an_interrupted_fit_goes_on_at_the_batch(kinds: pathlib.Path, stages: str) -> None:
    want = expected(kinds)

    def interrupted() -> tuple[Dataset, Any, Recorder]:
        data, model = labelled(kinds), recorded()
        follow = data.callback()
        with pytest.raises(KeyboardInterrupt):
            model.fit(STAGES[stages](data), epochs=2, callbacks=[follow, Stop(data, 5)], verbose=0)
        assert (model.seen, data.epoch, data.step) == (want[:5], 0, 5)
        return data, follow, model

    data, follow, model = interrupted()
    model.fit(STAGES[stages](data), epochs=2, callbacks=[follow], verbose=0)
    assert model.seen == want[:26]
    data, _, model = interrupted()
    model.fit(STAGES[stages](data), epochs=2, callbacks=[data.callback()], verbose=0)
    assert model.seen == want[:26]
    assert (data.epoch, data.step) == (2, 0)
    # A loop counts its own batches, and fit begins the next epoch.
    data, follow, model = interrupted()
    for count, (x, _) in enumerate(data):
        assert ids(x) == want[13 + count]
        assert (data.epoch, data.step) == (1, count + 1)
        if count == 6:
            break
    model.seen.clear()
    model.fit(STAGES[stages](data), epochs=1, callbacks=[follow], verbose=0)
    assert model.seen == want[26:]
    # A state that is loaded, too.
    data, follow, model = interrupted()
    data.load_state_dict(data.state_at(3))
    assert ids(next(iter(data.prefetch(2)))[0]) == want[3]


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("stages", ["itself", "prefetch"])
def test_a_fit_without_the_callback_after_an_interrupted_one_has_every_epoch(
    kinds: pathlib.Path, stages: str, is_held: bool
) -> None:
    want = expected(kinds, epochs=5)
    data, model = labelled(kinds), recorded()
    held = None
    try:
        model.fit(STAGES[stages](data), epochs=2, callbacks=[data.callback(), Stop(data, 5)], verbose=0)
    except KeyboardInterrupt as error:
        # As a notebook does, which keeps the callbacks of the fit.
        held = error if is_held else None
    model.seen.clear()
    model.fit(STAGES[stages](data), epochs=3, verbose=0)
    assert model.seen == want[13:52]
    # The next one that has it goes on after them.
    model.seen.clear()
    model.fit(STAGES[stages](data), epochs=1, callbacks=[data.callback()], verbose=0)
    assert model.seen == want[52:]
    assert (data.epoch, data.step) == (5, 0)
    assert (held is not None) == is_held


def test_a_fit_that_builds_another_model_goes_on_at_the_batch(kinds: pathlib.Path) -> None:
    data = opened(kinds, columns=["p", "half"], pack={"p": ["x"]}, targets="half")

    def built() -> Any:
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            model = keras.Sequential([keras.layers.Dense(1)])
            model.compile(optimizer="sgd", loss="mse")
        return model

    with pytest.raises(KeyboardInterrupt):
        built().fit(data, epochs=2, callbacks=[data.callback(), Stop(data, 5)], verbose=0)
    # Keras reads a batch to build the model.
    model = built()
    model.fit(data, epochs=1, callbacks=[data.callback()], verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 13 - 5
    assert (data.epoch, data.step) == (1, 0)


def test_fit_on_two_devices(kinds: pathlib.Path) -> None:
    data = opened(kinds, columns=["p", "half"], pack={"p": ["x"]}, targets="half")
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
    data.load_state_dict(data.state_at(9))
    # Keras reads a batch to build the model, and devices read ahead: neither changes the position.
    model.fit(data, epochs=2, callbacks=[data.callback()], verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 4 + 13
    assert (data.epoch, data.step) == (2, 0)


def test_padding_weighs_nothing(kinds: pathlib.Path) -> None:
    data = opened(kinds, columns=["id", "x"], targets="x", shuffle=False, weights_from_mask=True)
    model = keras.Sequential([keras.layers.Lambda(lambda inputs: tf.zeros_like(inputs["id"], tf.float32)[:, None])])
    model.compile(loss=keras.losses.MeanAbsoluteError(), weighted_metrics=["mae"])
    _, mean = model.evaluate(data, verbose=0)
    assert abs(mean - np.mean([row / 2 for row in range(100)])) < 1e-3
    two = next(iter(opened(kinds, columns=["id", "x", "flag"], targets=["x", "flag"], weights_from_mask=True)))
    assert (list(two[0]), list(two[1]), len(two)) == (["id"], ["x", "flag"], 3)
    plain = next(iter(opened(kinds, columns=["id", "x"], targets="x", tail="pad")))
    assert (sorted(plain[0]), len(plain)) == (["_mask", "id"], 2)
    for tail in ({"tail": "short"}, {"drop_last": True}):
        with pytest.raises(bowstring.ConfigError, match="weights_from_mask: tail="):
            opened(kinds, columns=["id", "x"], targets="x", weights_from_mask=True, **tail)


def test_keras_gets_every_row_once(tmp_path: pathlib.Path) -> None:
    """250 rows in batches of 32: Keras' counts are exact, with nothing but inputs and targets."""
    rows = np.arange(250)
    labels = (rows % 3 == 0).astype(np.int64)
    pq.write_table(
        pa.table({"x": rows.astype(np.float32), "label": labels}), tmp_path / "rows.parquet", row_group_size=70
    )
    data = dataset(tmp_path / "rows.parquet", batch_size=32, shuffle=False, targets="label")
    inputs, targets = data.element_spec
    assert inputs == {"x": tf.TensorSpec([None], tf.float32)}
    assert targets == tf.TensorSpec([None], tf.int64)
    # Wrong for the 34 multiples of three from 150 on.
    even = keras.layers.Lambda(lambda given: tf.cast((given["x"] % 3 == 0) & (given["x"] < 150), tf.float32)[:, None])
    model = keras.Sequential([even])
    model.compile(loss="binary_crossentropy", metrics=["accuracy"])
    predictions = model.predict(data, verbose=0)
    assert predictions.shape == (250, 1)
    right = (predictions[:, 0] == labels).mean()
    assert right == 216 / 250
    _, accuracy = model.evaluate(data, verbose=0)
    assert abs(accuracy - right) < 1e-6
    trained = keras.Sequential([keras.layers.Lambda(lambda given: given["x"][:, None] / 250), keras.layers.Dense(1)])
    trained.compile(loss="mse", optimizer="sgd")
    trained.fit(data, epochs=2, class_weight={0: 1.0, 1: 2.0}, callbacks=[data.callback()], verbose=0)
    assert int(trained.optimizer.iterations.numpy()) == 16
    pairs = data.map(lambda x, y: (x["x"] + 1, y))
    found = [(a.numpy(), b.numpy()) for a, b in pairs]
    assert [len(a) for a, _ in found] == [32] * 7 + [26]
    assert np.concatenate([a for a, _ in found]).tolist() == (rows + 1).tolist()
    assert np.concatenate([b for _, b in found]).tolist() == labels.tolist()
    # The counts of all ranks add up, and no shape is compiled for a single batch.
    ranks = [dataset(tmp_path / "rows.parquet", batch_size=32, tail="even", rank=r, world_size=3) for r in range(3)]
    assert sorted(int(x) for data in ranks for batch in data for x in batch["x"]) == rows.tolist()


def test_a_model_of_one_tensor_takes_one_input_by_name(kinds: pathlib.Path) -> None:
    data = opened(kinds, columns=["p", "id"], pack={"p": ["x", "half"]}, inputs="p", targets="id")
    assert data.element_spec[0] == tf.TensorSpec([None, 2], tf.float32)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    assert len(model.fit(data, epochs=2, verbose=0).history["loss"]) == 2
    assert opened(kinds, columns=["x", "id"], inputs="x").element_spec == tf.TensorSpec([None], tf.float32)
    named = opened(kinds, columns=["x", "id", "half"], inputs=["half", "x"], targets="id").element_spec
    assert list(named[0]) == ["half", "x"]


def test_the_number_of_steps_is_known_behind_stages(kinds: pathlib.Path) -> None:
    data = opened(kinds)
    for stage, steps in (
        (data, 13),
        (data.map(lambda batch: batch["id"]).prefetch(2), 13),
        (data.take(5), 5),
        (data.skip(5), 8),
        (data.enumerate().cache(), 13),
        (tf.data.Dataset.zip(data, data.take(7)), 7),
        (data.repeat(3), 39),
        (data.concatenate(data), 26),
    ):
        assert int(stage.cardinality()) == len(stage) == steps
    # A pass that begins in the middle has fewer steps, and ends.
    data.load_state_dict(data.state_at(9))
    assert [ids(batch) for batch in data.prefetch(2)] == expected(kinds)[9:13]
    assert len(list(data.map(lambda batch: batch["id"]))) == 13


def test_mistakes_are_reported(kinds: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(bowstring.ConfigError, match=r"targets: there is no column 'label'; there are id$"):
        opened(kinds, targets="label")
    with pytest.raises(bowstring.ConfigError, match="inputs: there is no column 'labels'"):
        opened(kinds, inputs=["id", "labels"])
    pq.write_table(pa.table({"price": pa.array([1, 2], pa.decimal128(9, 2))}), tmp_path / "price.parquet")
    with pytest.raises(bowstring.ConfigError, match=r"'price' is Decimal128\(9, 2\)"):
        dataset(tmp_path / "price.parquet", batch_size=1, arrow="price")
    with pytest.raises(bowstring.NullsError, match="maybe"):
        opened(kinds, columns=["maybe"])
    with pytest.raises(tf.errors.OpError, match="tags"):
        list(opened(kinds, columns=["tags"], lists=bowstring.Padded(1)))
    closed = opened(kinds)
    closed.close()
    with pytest.raises(tf.errors.OpError, match="closed"):
        next(iter(closed))
    other = opened(kinds)
    with pytest.raises(bowstring.MismatchError):
        other.load_state_dict({**other.state_dict(), "fingerprint": "00" * 32})


WORKERS = """
import json, os, sys, warnings
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
warnings.simplefilter("ignore")
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else of TensorFlow runs
from bowstring.tensorflow import dataset

data = dataset(sys.argv[1], batch_size=4, columns=["id"])
distributed = strategy.distribute_datasets_from_function(lambda context: data)


@tf.function
def step(batch):
    rows = tf.shape(batch["id"], tf.int64)[0]
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, rows)


seen, totals = [], []
for _ in range(2):
    for batch in distributed:
        totals.append(int(strategy.run(step, args=(batch,))))
        seen.append(strategy.experimental_local_results(batch["id"])[0].numpy().tolist())
print(json.dumps({"rank": data.rank, "world": data.world_size, "steps": len(data), "seen": seen, "totals": totals}))
"""


@pytest.mark.timeout(150)
def test_two_workers_share_the_rows(kinds: pathlib.Path, ranks: Callable[..., list[Any]]) -> None:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]

    def cluster(rank: int) -> dict[str, str]:
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
        return {"TF_CONFIG": json.dumps(task)}

    found = ranks(WORKERS, kinds, env=cluster)
    assert [(one["rank"], one["world"], one["steps"]) for one in found] == [(0, 2, 13), (1, 2, 13)]
    want = expected(kinds, epochs=2)
    assert [a + b for a, b in zip(found[0]["seen"], found[1]["seen"], strict=True)] == want
    assert found[0]["totals"] == found[1]["totals"] == [len(step) for step in want]


def test_keras_does_not_divide_a_share_once_more(kinds: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``keras.distribution.DataParallel()`` does to every dataset in each of several processes."""
    of = SimpleNamespace(num_processes=2, auto_shard_dataset=True)
    monkeypatch.setattr("keras.distribution.distribution", lambda: of)
    share = dataset(kinds, batch_size=8, columns=["id"], rank=1, world_size=2, tail="drop")
    for divided in (share.rebatch(4), share.map(lambda batch: batch).rebatch(4)):
        with pytest.raises(tf.errors.OpError, match="rank 1 of 2, which Keras would divide"):
            next(iter(divided))
    whole = dataset(kinds, batch_size=8, columns=["id"], rank=0, world_size=1, tail="drop")
    assert next(iter(whole.rebatch(4)))["id"].shape == (4,)
    of.auto_shard_dataset = False
    assert next(iter(share.rebatch(4)))["id"].shape == (4,)


def test_a_dataset_is_not_opened_before_its_process_is_one_of_several(
    kinds: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = opened(kinds)
    monkeypatch.setattr("bowstring.ranks._torch", lambda: (1, 2))
    with pytest.raises(tf.errors.OpError, match="before the process became rank 1 of 2"):
        next(iter(data))


def test_a_model_of_layers_takes_a_packed_matrix(kinds: pathlib.Path) -> None:
    data = opened(kinds, columns=["p", "flag"], pack={"p": ["x", "half"]}, targets="flag")
    assert data.element_spec[0].shape[1:] == [2]
    model = keras.Sequential([keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    model.fit(data, verbose=0)
    assert model.predict(data.map(lambda inputs, *_: inputs), verbose=0).shape[1] == 1
    several = opened(kinds, columns=["p", "id", "flag"], pack={"p": ["x", "half"]}, targets="flag")
    assert set(several.element_spec[0]) == {"p", "id"}


def test_a_misspelt_target_is_reported_once(kinds: pathlib.Path) -> None:
    columns = ["id", "x", "flag", "tags"]
    with pytest.raises(bowstring.ConfigError, match="did you mean 'flag'") as caught:
        opened(kinds, columns=columns, targets="flga")
    names = str(caught.value).partition("there are ")[2].split(", ")
    assert len(names) == len(set(names))
    assert set(columns) <= set(names)


def test_eager_text_is_a_tensor(kinds: pathlib.Path) -> None:
    with bowstring.tensorflow.Loader(
        kinds, batch_size=8, shuffle=False, nulls="mask", columns=["name", "words"]
    ) as loader:
        batch = next(iter(loader))
    assert batch["name"].dtype == tf.string
    assert batch["name"].numpy()[:2].tolist() == [b"", "row 1 ä".encode()]
    assert batch["words"].to_list()[:3] == [[], [b"word 0"], [b"word 0", b"word 1"]]


def test_rows_of_a_sparse_matrix_are_ragged() -> None:
    url = pathlib.Path(__file__).resolve().parents[3] / "fixtures" / "features" / "vectors_sparse.parquet"
    data = dataset(url, batch_size=10, shuffle=False, lists={"features": "csr"}, tail="drop")
    batch = next(iter(data))
    assert tf.nest.map_structure(tf.type_spec_from_value, batch) == data.element_spec
    assert batch["features__indices"].to_list()[:2] == [[0, 500], [1, 501]]
    assert batch["features"].to_list()[4] == [1.0, 1.0]


def test_an_iterator_of_addresses_is_read_once(kinds: pathlib.Path) -> None:
    data = dataset(iter([kinds]), batch_size=8, columns=["id"])  # type: ignore[arg-type]
    assert [row for batch in data for row in ids(batch)] == [row for step in expected(kinds, 1) for row in step]
