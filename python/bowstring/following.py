"""The position of a TensorFlow dataset's consumer, and the Keras callback that keeps it at that of training."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections import deque
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

import tensorflow as tf

if TYPE_CHECKING:
    from bowstring.tensorflow import Dataset

__all__ = ["Course", "callback"]

# An epoch, and a number of its steps.
Position: TypeAlias = tuple[int, int]


class Course:
    """Where the passes over a dataset begin, and how far they were consumed.

    Outside ``fit``, a batch that leaves the dataset is consumed. In ``fit``, stages after the dataset may be ahead of training, so
    batches queue here until the model has trained on them. Keras says neither whether an epoch gets a new iterator nor how many
    batches an execution had; the requests show both. A pass that follows the end of the last one is ``repeat()`` going on, maybe
    long before training gets there. Otherwise, the first pass that begins with Keras' epoch is that of a new iterator, and begins
    where training is. Passes of validation and of callbacks are beside training, and those of Keras' ``evaluate`` and ``predict``
    in and outside of ``fit``: they change nothing here.
    """

    def __init__(self, steps: int, position: Position) -> None:
        # Apart from the dataset's own, which is held while a batch is waited for.
        self._lock = threading.Lock()
        self._steps = steps
        self.consumed = position
        # Where the next pass begins, if it was set, and the next fit.
        self.start: Position | None = None
        self.origin: Position | None = None
        # Something was taken, or trained on, since the position was set.
        self._taken = False
        # A pass beside training has moved the loader since the last other one began. Guarded by the dataset's lock.
        self.moved = False
        self.training = False
        # The last fit, which may have been interrupted.
        self._fit: Fit | None = None
        # A callback for the next fit exists, and has set the origin.
        self.awaited = False
        # While Keras validates, the former value of ``_ended``.
        self._validating: tuple[int | None] | None = None
        # Keras is about to make an iterator, if it does not keep its own.
        self.opening = False
        # Keras makes it when it takes the first batch, as on JAX.
        self.late = False
        # Nothing was requested from the iterator since Keras' epoch began.
        self._fresh = False
        # Passes in fits have numbers from 1. Those from ``_first`` on are of the iterator that training takes from.
        self._passes = 0
        self._first = 1
        self._ahead: deque[Position] = deque()
        # The epoch that comes next, if the last request was for the end of one.
        self._ended: int | None = None
        # Everything before the last pass was trained on when it began, and nothing of it.
        self._untried = False

    def place(self, position: Position) -> None:
        """Makes the next pass and the next fit begin at ``position``."""
        with self._lock:
            self._leave()
            self.start = self.consumed = self.origin = position
            self._taken = False

    def due(self) -> Position | None:
        """Where the next pass begins, if not where the loader is."""
        with self._lock:
            return self._due()

    def _due(self) -> Position | None:
        if self.start is not None or not self.moved:
            return self.start
        # An abandoned pass is not continued.
        epoch, step = self.consumed
        return (epoch + 1, 0) if self._taken and step else (epoch, step)

    def _leave(self) -> None:
        self.training = self.opening = False
        self._validating = None
        self._cut()

    def _cut(self) -> None:
        """Leaves the passes that have begun: what is requested from them later does not count."""
        self._first = self._passes + 1
        self._ahead.clear()
        self._ended = None

    # ---- what the dataset reports -----------------------------------------------------------------------------------------

    def iterated(self) -> bool:
        """Somebody iterates over the dataset itself: Keras, a callback, or a loop after a fit that was interrupted.

        True if it is beside training.
        """
        with self._lock:
            beside = _beside(self._fit if self.training else None)
            if beside is None and self.training and not self.opening and not (self.late and self._fresh):
                self._give_up()
            return beside is True

    def _give_up(self) -> None:
        """The fit was interrupted, and somebody takes batches after it."""
        self.training = False
        if not self.awaited:
            self.origin = None

    def begin(self, beside: bool, data: Dataset) -> tuple[int, Position | None]:
        """The number of a pass that begins now: 0 outside of ``fit``, -1 beside training. And where, if not at the next epoch."""
        with self._lock:
            at, goes_on = self.start, False
            if beside:
                return -1, (self.consumed[0], 0)
            if self.training:
                ended = None if self._validating is None else self._validating[0]
                if ended is not None and self._ended is None and not _is_tested(data):
                    # `repeat()` was between two passes when Keras began to validate, which takes from other data.
                    self._ended, self._validating = ended, (None,)
                opens = self._validating is None and (self._fresh or at is not None)
                if not opens and self._ended is None:
                    if self._fit is None or self._fit.runs() or _is_tested(data):
                        # Of stages behind the dataset.
                        return -1, (self.consumed[0], 0)
                    self._give_up()
                    at = self._due()
                elif at is None and self._ended is not None and not (self._fresh and self._untried):
                    at, goes_on = (self._ended, 0), True
                elif at is None:
                    at = self.consumed
            elif _is_tested(data):
                return -1, (self.consumed[0], 0)
            else:
                at = self._due()
            self.start = self._ended = None
            if not self.training:
                return 0, at
            if not goes_on:
                self._cut()
            self._passes += 1
            self._untried = not self._ahead
            return self._passes, at

    def take(self, number: int, epoch: int, step: int) -> None:
        """The batch ``step`` of ``epoch`` leaves the dataset in the pass ``number``."""
        with self._lock:
            if number >= self._first:
                self._ahead.append((epoch, step))
                self._fresh = False
            elif number == 0 and not self.training:
                self.consumed = (epoch, step + 1)
                self._taken = True

    def end(self, number: int, epoch: int, restored: bool) -> None:
        """A batch after the last one of ``epoch`` was requested in the pass ``number``, maybe of a restored iterator."""
        with self._lock:
            if number >= self._first:
                self._ended = epoch + 1
                self._fresh = False
            elif number == 0 and not self.training:
                self.consumed = max(self.consumed, (epoch + 1, 0))
                if restored and self.start is None:
                    # The checkpoint may have had all batches that were left, and the loader is where it was opened.
                    self.start = (epoch + 1, 0)

    # ---- what Keras reports -----------------------------------------------------------------------------------------------

    def train(self, origin: Position) -> None:
        """A fit begins, at ``origin``: called by a hook of its callback."""
        with self._lock:
            self._leave()
            self.start = self.consumed = self.origin = self._opened(origin)
            self._taken = False
            self._fit = _fit()
            self.awaited = False
            self.training = True

    def expect(self, opening: bool) -> None:
        """Keras' epoch begins, or its first batch: older iterators are gone by then, unless Keras keeps one."""
        with self._lock:
            # The end of an epoch has no batch to train on.
            self.consumed = self._opened(self.consumed)
            self.start = None if self.start is None else self._opened(self.start)
            self.training = self._fresh = True
            self.opening = opening
            self._validating = None

    def _opened(self, position: Position) -> Position:
        epochs, step = divmod(position[1], self._steps)
        return position[0] + epochs, step

    def validate(self, begins: bool) -> None:
        """Keras begins to validate, or has done so."""
        with self._lock:
            if begins and self.training:
                self._validating, self._ended = (self._ended,), None
            elif self._validating is not None:
                (former,), self._validating = self._validating, None
                self._ended = former if self._ended is None else self._ended

    def trained(self, batches: int) -> None:
        """The model has trained on so many more batches, or on all that there were."""
        with self._lock:
            # What training takes from has begun.
            self._fresh = False
            for _ in range(min(batches, len(self._ahead))):
                epoch, step = self._ahead.popleft()
                self.consumed = (epoch, step + 1) if step + 1 < self._steps else (epoch + 1, 0)
                self._taken, self._untried = True, False
            self.origin = self.consumed

    def finish(self) -> None:
        """The fit ends. Training stopped within an epoch is an abandoned pass."""
        with self._lock:
            self._leave()
            epoch, step = self.consumed
            self.start = self.origin = (epoch + (step > 0), 0)


def _is_hook(code: CodeType) -> bool:
    # Keras' list of callbacks has underscores before some of its hooks.
    return code.co_name.lstrip("_").startswith("on_")


class Fit:
    """One call of Keras' ``fit``: other calls run the same code, but each has callbacks of its own."""

    def __init__(self, code: CodeType, callbacks: Any) -> None:
        self._code = code
        self._callbacks = weakref.ref(callbacks)

    def is_at(self, frame: FrameType) -> bool:
        """Whether ``frame`` is of this call."""
        if frame.f_code is not self._code:
            return False
        callbacks = self._callbacks()
        return callbacks is not None and any(value is callbacks for value in frame.f_locals.values())

    def runs(self) -> bool:
        """Whether the call is under way in a thread. A traceback may keep the callbacks of one that is not."""
        for top in sys._current_frames().values():
            frame: FrameType | None = top
            while frame is not None:
                if self.is_at(frame):
                    return True
                frame = frame.f_back
        return False


def _fit() -> Fit | None:
    """The call of ``fit`` that runs the hook of a callback which the caller's caller is."""
    frame, callbacks = sys._getframe(2), None
    while frame.f_back is not None and _is_hook(frame.f_code):
        # The last is Keras' list of callbacks.
        callbacks = frame.f_locals.get("self", callbacks)
        frame = frame.f_back
    return None if callbacks is None else Fit(frame.f_code, callbacks)


def _beside(fit: Fit | None) -> bool | None:
    """Whether a call within ``fit`` is of validation or a callback, and not of training.

    Outside of it: ``True`` within Keras' own ``evaluate`` or ``predict``, else ``None``.
    """
    frame, beside, tests = sys._getframe(2), False, False
    while fit is None or not fit.is_at(frame):
        beside = beside or frame.f_code.co_name == "evaluate" or _is_hook(frame.f_code)
        tests = tests or _tests(frame)
        if frame.f_back is None:
            return True if tests else None
        frame = frame.f_back
    return beside


def _tests(frame: FrameType) -> bool:
    """Whether ``frame`` is a call of Keras' ``evaluate`` or ``predict``, and not of a function of the user's."""
    if frame.f_code.co_name not in ("evaluate", "predict"):
        return False
    return str(frame.f_globals.get("__name__")).partition(".")[0] in ("keras", "tf_keras")


def _is_tested(data: Dataset) -> bool:
    """Whether Keras evaluates or predicts over stages behind ``data``, in any thread: TensorFlow begins their passes in its own."""
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            if _tests(frame):
                given = frame.f_locals.get("x")
                # That of a strategy knows what it distributes.
                of = getattr(given, "_original_dataset", given)
                if _is_behind(of, data):
                    return True
                if of is data and (of is not given or _distributes(frame.f_locals.get("self"))):
                    return True
            frame = frame.f_back
    return False


def _is_behind(stages: Any, data: Dataset) -> bool:
    return isinstance(stages, tf.data.Dataset) and any(of is data or _is_behind(of, data) for of in stages._inputs())


def _distributes(model: Any) -> bool:
    """Whether ``model`` has a strategy, which makes stages of any dataset."""
    strategy = getattr(model, "distribute_strategy", None)
    # Outside of every scope.
    with tf.Graph().as_default():
        return strategy is not None and strategy is not tf.distribute.get_strategy()


class Mark(int):
    """A ``1`` for ``stop_training`` that can be told from the ``True`` of another callback."""

    def __or__(self, other: Any) -> Any:
        return int(self) | other if other else self

    def __and__(self, other: Any) -> Any:
        return self if other else int(self) & other


def callback(data: Dataset) -> Any:
    """A callback for ``fit`` over ``data`` or stages behind it."""
    course = data._course
    course.late = tf.keras.backend.backend() == "jax"

    class Follow(tf.keras.callbacks.Callback):  # type: ignore[misc]  # TensorFlow has no types
        """Keeps the dataset at the position that the model has trained to."""

        def __init__(self) -> None:
            super().__init__()
            # A fit that was interrupted goes on. Known before the fit: a strategy may read a batch first, to build the model.
            course.origin = course.consumed if course.training else data._next()
            course.awaited = True
            self.counted = self.epoch = 0
            # Ends Keras' epoch, and is told from the ``True`` of another callback, which ends the fit.
            self.mark = Mark(1)

        def on_train_begin(self, logs: Any = None) -> None:
            # An iterator that an interrupted fit left behind waits for its threads when it is destroyed, and they may wait for the
            # dataset. So it goes here, and not wherever the collector runs next, which may be a thread that has locked the dataset.
            gc.collect()
            course.train(data._next() if course.origin is None else course.origin)

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.counted = 0
            course.expect(opening=True)
            self.epoch = course.consumed[0]

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if self.counted == 0:
                course.expect(opening=False)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            # Of several steps per execution, the last may be cut short by the end of the epoch, which Keras does not report.
            course.trained(batch + 1 - self.counted)
            self.counted = batch + 1
            if course.consumed[0] > self.epoch:
                # Keras would request another batch, and count an optimizer step without a batch.
                asked = self.params.get("steps")
                left = asked is None or (asked == data._steps and batch + 1 < asked and course.consumed[1] == 0)
                if left and not self.model.stop_training:
                    self.model.stop_training = self.mark

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if self.model.stop_training is self.mark:
                self.model.stop_training = False

        def on_test_begin(self, logs: Any = None) -> None:
            course.validate(begins=True)

        def on_test_end(self, logs: Any = None) -> None:
            course.validate(begins=False)

        def on_train_end(self, logs: Any = None) -> None:
            course.finish()

    return Follow()
