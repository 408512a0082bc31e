"""The Keras callback that keeps the position of a TensorFlow dataset at that of training, not of stages that read ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from bowstring.tensorflow import Dataset

__all__ = ["callback"]


def callback(data: Dataset) -> Any:
    """A callback for ``fit`` over ``data`` or stages behind it."""

    class Follow(tf.keras.callbacks.Callback):  # type: ignore[misc]  # TensorFlow has no types
        """Keeps the dataset at the position that the model has trained to."""

        def __init__(self) -> None:
            super().__init__()
            with data._lock:
                self.origin = data._beginning()
            self.before = self.done = 0
            self.ended = False

        def at(self, batches: int) -> tuple[int, int]:
            epochs, step = divmod(self.origin[1] + batches, data._steps)
            return self.origin[0] + epochs, step

        def on_train_begin(self, logs: Any = None) -> None:
            # A strategy may have read a batch already, to build the model.
            data._followed = True
            data._start = data._consumed = self.origin = self.at(0)
            self.before = self.done = 0
            self.ended = False

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            # A new iterator, if Keras makes one, continues where training is; with steps_per_epoch Keras may keep the old one.
            self.before = self.done
            data._start = self.at(self.done)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            # Of several steps per execution, the last may be cut short by the end of the epoch, which Keras does not report.
            asked = self.params.get("steps")
            whole = asked in (None, data._steps)
            rest = data._steps - (self.origin[1] + self.before) % data._steps
            self.done = self.before + min(batch + 1, rest if whole else asked)
            data._consumed = self.at(self.done)
            if data._consumed[1] == 0:
                data._start = data._consumed
                # Keras would request another batch, and count an optimizer step without a batch.
                self.ended = whole and batch + 1 != asked and not self.model.stop_training
                if self.ended:
                    self.model.stop_training = True

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if self.ended:
                self.ended = self.model.stop_training = False

        def on_train_end(self, logs: Any = None) -> None:
            data._followed = False
            # Training stopped within an epoch is an abandoned pass.
            epoch, step = data._consumed
            data._start = self.origin = (epoch + (step > 0), 0)

    return Follow()
