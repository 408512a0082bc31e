"""Trains a Keras model on the 40 shipped photos, stops in the middle of an epoch, and resumes from the checkpoint.

    python examples/tf_fit.py [--epochs N]

The dataset's position is saved beside the model. The proof: a run that stops and resumes ends with the same weights as one that
never stopped, to the bit.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import tempfile
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import bowstring.tensorflow
import tensorflow as tf
from bowstring import Image

PHOTOS = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "imagenet40.parquet"
SIDE = 64


def open_data() -> bowstring.tensorflow.Dataset:
    """Opens the photos in whole batches of inputs and targets, as Keras expects."""
    image = Image(SIDE, crop="random_resized", scale=(0.35, 1.0), flip=True, layout="hwc", dtype="float32")
    options: dict[str, Any] = {"columns": ["image", "label"], "images": {"image": image}, "seed": 7}
    return bowstring.tensorflow.dataset(PHOTOS, batch_size=8, targets="label", **options)


def new_model() -> Any:
    keras = tf.keras
    keras.utils.set_random_seed(7)
    layers = [keras.layers.Input((SIDE, SIDE, 3), name="image")]
    for filters in (16, 32, 64):
        layers += [keras.layers.Conv2D(filters, 3, padding="same", activation="relu"), keras.layers.MaxPool2D()]
    model = keras.Sequential([*layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(1000)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(2e-3), loss=loss)
    return model


class Checkpoint(tf.keras.callbacks.Callback):
    """Saves model and position after `stop_at` batches in all, and stops there."""

    def __init__(self, data: bowstring.tensorflow.Dataset, folder: pathlib.Path, stop_at: int) -> None:
        super().__init__()
        self.data, self.folder, self.left = data, folder, stop_at

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            self.model.save(self.folder / "model.keras")
            (self.folder / "data.json").write_text(json.dumps(self.data.state_dict()))
            raise InterruptedError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    epochs = parser.parse_args().epochs
    started = time.perf_counter()
    tf.config.experimental.enable_op_determinism()

    data, model = open_data(), new_model()
    print(f"{len(data)} steps per epoch, {data.element_spec[0]['image'].shape} images")
    history = model.fit(data, epochs=epochs, callbacks=[data.callback()], verbose=0).history["loss"]
    print(f"never stopped: loss {history[0]:.3f} in the first epoch, {history[-1]:.3f} in the last")
    assert history[-1] < history[0], "training did not reduce the loss"

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        data, stopped = open_data(), new_model()
        # The dataset's callback comes first, so that the position others save is that of the trained batches.
        callbacks = [data.callback(), Checkpoint(data, folder, (epochs // 2) * len(data) + 2)]
        try:
            stopped.fit(data, epochs=epochs, callbacks=callbacks, verbose=0)
        except InterruptedError:
            print(f"stopped after step {data.step} of epoch {data.epoch}")

        # In practice this is a fresh process.
        resumed = tf.keras.models.load_model(folder / "model.keras")
        data = open_data()
        data.load_state_dict(json.loads((folder / "data.json").read_text()))
    resumed.fit(data, initial_epoch=data.epoch, epochs=epochs, callbacks=[data.callback()], verbose=0)
    same = all((a == b).all() for a, b in zip(model.get_weights(), resumed.get_weights(), strict=True))
    assert same, "other weights"
    print(f"resumed, and the same weights to the bit; {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
