"""Keras' own loops on each of its backends: they learn, measure and predict the same as over the framework's own loader."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bowstring import Loader
from habits import BATCH

pytest.importorskip("tensorflow")

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs" / "frameworks.md"

# Steps of Keras outside a graph are slow, so six of them make an epoch. The last one has fewer rows.
ROWS = 5 * BATCH + 3

# Runs every loop over every kind of data, and prints the results and the number of batches as JSON.
PROGRAM = """
import json, os, sys, warnings
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
warnings.simplefilter("ignore")
import keras
import pyarrow.parquet as pq
import tensorflow as tf
import torch
from bowstring.tensorflow import dataset
from bowstring.torch import Dataset

path, size = sys.argv[1], int(sys.argv[2])
table = pq.read_table(path)
x, y = (table[name].to_numpy() for name in "xy")


class Count(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches = {"train": 0, "test": 0, "predict": 0}

    def on_train_batch_end(self, batch, logs=None):
        self.batches["train"] += 1

    def on_test_batch_end(self, batch, logs=None):
        self.batches["test"] += 1

    def on_predict_batch_end(self, batch, logs=None):
        self.batches["predict"] += 1


def tf_own():
    return tf.data.Dataset.from_tensor_slices(({"x": x}, y)).batch(size)


def tf_ours():
    return dataset(path, batch_size=size, columns=["x", "y"], targets="y", shuffle=False)


def torch_own():
    rows = torch.utils.data.TensorDataset(torch.from_numpy(x.copy()), torch.from_numpy(y.copy()))

    def pair(found):
        xs, ys = zip(*found, strict=True)
        return {"x": torch.stack(xs)}, torch.stack(ys)

    return torch.utils.data.DataLoader(rows, batch_size=size, collate_fn=pair)


def torch_ours():
    data = Dataset(path, batch_size=size, columns=["x", "y"], shuffle=False)
    return torch.utils.data.DataLoader(data, batch_size=None, collate_fn=lambda batch: ({"x": batch["x"]}, batch["y"]))


def model():
    keras.utils.set_random_seed(3)
    inputs = keras.Input((), name="x")
    made = keras.Model({"x": inputs}, keras.layers.Dense(1)(keras.ops.expand_dims(inputs, -1)))
    # Without tracing, which takes longer than these few rows; `fit_traced` has it.
    made.compile("sgd", "mse", metrics=["mae"], run_eagerly=True)
    return made


def plain(value):
    return {name: [round(float(one), 4) for one in ones] for name, ones in value.items()}


def fit_traced(open, count):
    made = model()
    made.compile("sgd", "mse", metrics=["mae"])
    return plain(made.fit(open(), epochs=2, verbose=0, callbacks=[count]).history)


def fit(open, count):
    return plain(model().fit(open(), epochs=2, verbose=0, callbacks=[count]).history)


def fit_twice(open, count):
    made, data = model(), open()
    return [plain(made.fit(data, epochs=1, verbose=0, callbacks=[count]).history) for _ in range(2)]


def fit_with_validation(open, count):
    options = {"epochs": 2, "validation_data": open(), "verbose": 0, "callbacks": [count]}
    return plain(model().fit(open(), **options).history)


def validate_now_and_then(open, count):
    options = {"epochs": 2, "validation_data": open(), "validation_freq": 2, "validation_steps": 3}
    return plain(model().fit(open(), **options, verbose=0, callbacks=[count]).history)


def fit_some_steps(open, count):
    return plain(model().fit(open(), epochs=2, steps_per_epoch=4, verbose=0, callbacks=[count]).history)


def stop_early(open, count):
    stop = keras.callbacks.EarlyStopping("loss", min_delta=1e9, patience=1)
    return plain(model().fit(open(), epochs=4, verbose=0, callbacks=[count, stop]).history)


def go_on_at_an_epoch(open, count):
    return plain(model().fit(open(), initial_epoch=2, epochs=3, verbose=0, callbacks=[count]).history)


def evaluate(open, count):
    made, data = model(), open()
    found = [made.evaluate(data, verbose=0, callbacks=[count]) for _ in range(2)]
    return [[round(float(one), 4) for one in ones] for ones in found]


def evaluate_some_steps(open, count):
    return [round(float(one), 4) for one in model().evaluate(open(), steps=4, verbose=0, callbacks=[count])]


def predict(open, count):
    made, data = model(), open()
    return [[round(float(one), 3) for one in made.predict(data, verbose=0, callbacks=[count])[:, 0]] for _ in range(2)]


def train_on_batches(open, count):
    made, data = model(), open()
    losses = []
    for _ in range(2):
        for inputs, target, *_ in data:
            losses.append(round(float(made.train_on_batch(inputs, target)[0]), 4))
    return losses


LOOPS = [fit_traced, fit, fit_twice, fit_with_validation, validate_now_and_then, fit_some_steps, stop_early]
LOOPS += [go_on_at_an_epoch, evaluate, evaluate_some_steps, predict, train_on_batches]
STAGES = {
    "plain": lambda data: data,
    "mapped": lambda data: data.map(lambda inputs, target, *rest: ({"x": inputs["x"] * 1}, target, *rest)).prefetch(2),
    "taken": lambda data: data.take(4),
}
BEHIND = [fit, evaluate, predict]
# A tf.data.Dataset is no loader for torch's training step by hand, nor the other way round.
by_hand = keras.backend.backend().replace("tensorflow", "tf")
cases = [(loop, torch_own, torch_ours, "plain") for loop in LOOPS if loop is not train_on_batches or by_hand == "torch"]
cases += [(loop, tf_own, tf_ours, "plain") for loop in LOOPS if loop is not train_on_batches or by_hand == "tf"]
cases += [(loop, tf_own, tf_ours, stages) for loop in BEHIND for stages in ("mapped", "taken")]
report = {"backend": keras.backend.backend(), "wrong": [], "loops": len(cases)}
for loop, own, ours, stages in cases:
    said = []
    for open in (own, ours):
        count = Count()
        said.append([loop(lambda open=open: STAGES[stages](open()), count), count.batches])
    if said[0] != said[1]:
        report["wrong"].append([loop.__name__, own.__name__, stages, *said])
print()
print(json.dumps(report))
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_loops(
    backend: str, tmp_path: pathlib.Path, script: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "jax":
        pytest.importorskip("jax")
    path = tmp_path / "pairs.parquet"
    numbers = [row % 17 / 8 for row in range(ROWS)]
    columns = {"x": pa.array(numbers, pa.float32()), "y": pa.array([2 * n - 1 for n in numbers], pa.float32())}
    pq.write_table(pa.table(columns), path, row_group_size=30)
    monkeypatch.setenv("KERAS_BACKEND", backend)
    process = script(f"{PROGRAM}\nsys.stdout.flush()\nos._exit(0)\n", path, BATCH)
    out, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors[-4000:]
    found = json.loads(out.splitlines()[-1])
    assert found["backend"] == backend
    assert found["wrong"] == []
    assert found["loops"] >= 28


# Runs a program on a backend of Keras, over a file of pairs: the batches of two epochs, and what the program prints.
OverPairs = Callable[[str, str], tuple[list[Any], Any]]


@pytest.fixture
def over_pairs(tmp_path: pathlib.Path, script: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> OverPairs:
    def run(backend: str, program: str) -> tuple[list[Any], Any]:
        if backend == "jax":
            pytest.importorskip("jax")
        path = tmp_path / "pairs.parquet"
        columns = {name: pa.array(range(ROWS), pa.float32()) for name in "xy"}
        pq.write_table(pa.table(columns), path, row_group_size=30)
        with Loader(path, batch_size=BATCH, columns=["x"]) as loader:
            want = [batch["x"].tolist() for _ in range(2) for batch in loader]
        monkeypatch.setenv("KERAS_BACKEND", backend)
        process = script(program, path)
        out, errors = process.communicate(timeout=280)
        assert process.returncode == 0, errors[-4000:]
        return want, json.loads(out.splitlines()[-1])

    return run


# A model that records the rows it trains on, and the kinds of iterators that Keras has on its backend.
RECORDED = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np
import bowstring

path, seen = sys.argv[1], []
if keras.backend.backend() == "jax":
    # As on a GPU or TPU, where Keras takes a batch more than it has trained on.
    from keras.src.backend.jax.trainer import JAXEpochIterator

    def ahead(self):
        return self._one_batch_ahead_iterator(self.data_adapter.get_jax_iterator())

    kinds = [JAXEpochIterator._get_iterator, ahead]
else:
    kinds = [None]


def model():
    inputs = keras.Input((), name="x")
    made = keras.Model({"x": inputs}, keras.layers.Dense(1)(keras.ops.expand_dims(inputs, -1)))
    made.compile("sgd", "mse", run_eagerly=True)
    train = made.train_step

    def step(*arguments):
        seen.append(np.asarray(arguments[-1][0]["x"]).tolist())
        return train(*arguments)

    made.train_step = step
    return made
"""

# Trains until a kill, resumes from the position of `data.callback()`, and prints the rows of both fits as JSON.
RESUMED = """
from bowstring.tensorflow import dataset


class Stop(keras.callbacks.Callback):
    def __init__(self, data, after):
        super().__init__()
        self.data, self.left = data, after

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            self.state = self.data.state_dict()
            raise KeyboardInterrupt


def opened():
    return dataset(path, batch_size=8, columns=["x", "y"], targets="y")


stages = {"itself": lambda data: data, "prefetch": lambda data: data.prefetch(3)}
found = []
for kind in kinds:
    if kind is not None:
        JAXEpochIterator._get_iterator = kind
    for name, staged in stages.items():
        for after in (3, 6, 8):
            seen.clear()
            data = opened()
            stop = Stop(data, after)
            try:
                model().fit(staged(data), epochs=2, callbacks=[data.callback(), stop], verbose=0)
            except KeyboardInterrupt:
                pass
            place, data = [stop.state["epoch"], stop.state["step"]], opened()
            data.load_state_dict(stop.state)
            model().fit(staged(data), initial_epoch=data.epoch, epochs=2, callbacks=[data.callback()], verbose=0)
            found.append([name, after, place, list(seen), [data.epoch, data.step]])


class Beside(keras.callbacks.Callback):
    def __init__(self, data, over, hook):
        super().__init__()
        self.data, self.over = data, over
        setattr(self, hook, lambda *_, **__: self.over(self.model, self.data))


# Passes over the same data that are not of training.
passes = {
    "evaluate": lambda model, data: model.evaluate(data, verbose=0),
    "predict": lambda model, data: model.predict(data, verbose=0),
    "a part": lambda model, data: model.evaluate(data.take(4), verbose=0),
    "one batch": lambda model, data: next(iter(data)),
}
validations = {"itself": lambda data: data, "a part": lambda data: data.take(4), "ahead": lambda data: data.prefetch(9)}
cases = [({}, over, hook) for over in passes for hook in ("on_epoch_end", "on_train_batch_end") if over != "predict"]
cases += [({}, "predict", "on_epoch_end"), ({}, "evaluate", "on_epoch_begin")]
cases += [({"validation_data": kind}, None, None) for kind in validations]
beside = []
for options, over, hook in cases:
    for stop_after in (None, 8):
        seen.clear()
        data, made = opened(), model()
        options = {name: validations[kind](data) if isinstance(kind, str) else kind for name, kind in options.items()}
        others = [] if over is None else [Beside(data, passes[over], hook)]
        if stop_after is not None:
            # After a validation, it goes on at the batch.
            try:
                made.fit(data, epochs=2, callbacks=[data.callback(), Stop(data, stop_after), *others], verbose=0, **options)
            except KeyboardInterrupt:
                pass
        made.fit(data, initial_epoch=data.epoch, epochs=2, callbacks=[data.callback(), *others], verbose=0, **options)
        beside.append([over or "validation", hook, stop_after, list(seen), [data.epoch, data.step]])
print()
print(json.dumps([found, beside]))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_the_callback_follows(backend: str, over_pairs: OverPairs) -> None:
    """On TensorFlow `frameworks/test_tensorflow.py` tests it."""
    want, (found, beside) = over_pairs(backend, f"{RECORDED}\n{RESUMED}")
    assert len(found) == (12 if backend == "jax" else 6)
    for stages, after, place, seen, end in found:
        assert place == [*divmod(after, 6)], (stages, after)
        assert seen == want, (stages, after)
        assert end == [2, 0]
    assert len(beside) == 22
    for *case, seen, end in beside:
        assert (seen, end) == (want, [2, 0]), case


# Evaluates and predicts over the data of fits, before them, over a position that was loaded, and between them.
BETWEEN = """
from bowstring.tensorflow import dataset

passes = {
    "evaluate": lambda model, data: model.evaluate(data, verbose=0),
    "some steps": lambda model, data: model.evaluate(data, steps=2, verbose=0),
    "ahead": lambda model, data: model.evaluate(data.prefetch(2), verbose=0),
    "predict": lambda model, data: model.predict(data, verbose=0),
}
found = []
for name, over in passes.items():
    seen.clear()
    data, made, places = dataset(path, batch_size=8, columns=["x", "y"], targets="y"), model(), []
    for step in (2, 6):
        over(made, data)
        if step == 2:
            data.load_state_dict(data.state_at(step))
            over(made, data)
        places.append([data.epoch, data.step])
        made.fit(data, initial_epoch=data.epoch, epochs=data.epoch + 1, callbacks=[data.callback()], verbose=0)
    found.append([name, places, list(seen), [data.epoch, data.step]])
print()
print(json.dumps(found))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_evaluate_and_predict_between_fits_do_not_count(backend: str, over_pairs: OverPairs) -> None:
    """On TensorFlow `frameworks/test_tensorflow.py` tests it."""
    want, found = over_pairs(backend, f"{RECORDED}\n{BETWEEN}")
    assert len(found) == 4
    for name, places, seen, end in found:
        assert (places, seen, end) == ([[0, 2], [1, 0]], want[2:], [2, 0]), name


# The same over torch's loader, with the callback of the docs.
KEPT = """
import time
import torch
from bowstring.torch import Dataset


class Stop(keras.callbacks.Callback):
    def __init__(self, place, after, hook):
        super().__init__()
        self.place, self.left, self.hook = place, after, hook

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        # Keras may read ahead meanwhile.
        time.sleep(0.05)
        self.stop("batch")

    def on_epoch_end(self, epoch, logs=None):
        self.stop("epoch")

    def stop(self, hook):
        if hook == self.hook and self.left <= 0:
            self.state = json.loads(json.dumps(self.place.state))
            raise KeyboardInterrupt


def opened():
    rows = Dataset(path, batch_size=8, columns=["x", "y"])
    return rows, torch.utils.data.DataLoader(rows, batch_size=None, collate_fn=lambda batch: ({"x": batch["x"]}, batch["y"]))


found = []
for kind in kinds:
    if kind is not None:
        JAXEpochIterator._get_iterator = kind
    for after, hook in [(1, "batch"), (4, "batch"), (4, "epoch"), (6, "batch"), (8, "batch"), (11, "batch"), (12, "epoch")]:
        seen.clear()
        rows, data = opened()
        place = KeepPlace(rows)
        stop, made = Stop(place, after, hook), model()
        try:
            made.fit(data, epochs=2, callbacks=[place, stop], verbose=0)
        except KeyboardInterrupt:
            pass
        first, state = len(seen), stop.state
        rows, data = opened()
        place = KeepPlace(rows, state)
        # As in a new process, the model has not been built for this data.
        model().fit(data, initial_epoch=state["epoch"], epochs=2, callbacks=[place], verbose=0)
        found.append([after, hook, [state["epoch"], state["step"]], first, list(seen)])
print()
print(json.dumps(found))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_the_callback_of_the_docs_keeps_the_place_of_torchs_loader(backend: str, over_pairs: OverPairs) -> None:
    """No batch is lost and none comes twice, wherever a fit is interrupted: Keras reads ahead, and counts epochs of its own."""
    (recipe,) = re.findall(r"```python\n(class KeepPlace\(keras.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    want, found = over_pairs(backend, f"{RECORDED}\n\n{recipe}\n{KEPT}")
    assert len(found) == (14 if backend == "jax" else 7)
    for after, hook, place, first, seen in found:
        trained = after if hook == "batch" else -(-after // 6) * 6
        assert (first, place) == (trained, [*divmod(trained, 6)]), (after, hook)
        assert seen == want, (after, hook)
