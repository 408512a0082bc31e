"""Petastorm's readers."""

from __future__ import annotations

import atexit
import sys
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from threading import Event, Lock, current_thread
from time import sleep
from types import TracebackType
from typing import Any
from weakref import WeakSet

from bowstring.errors import ConfigError
from bowstring.forks import Origin
from bowstring.petastorm import _options
from bowstring.petastorm._dataset import Dataset, view, wanted
from bowstring.petastorm._feed import Feed, Filtered, Piece, Plain
from bowstring.petastorm._files import positions
from bowstring.petastorm._options import Settings
from bowstring.petastorm._plan import Patience, Plan
from bowstring.petastorm._pool import Ordered
from bowstring.petastorm._shape import BatchShape, RowShape, Shape
from bowstring.petastorm._source import Columns, Location, Source
from bowstring.petastorm._uninterrupted import Uninterrupted
from bowstring.petastorm.ngram import NGram
from bowstring.petastorm.predicates import PredicateBase
from bowstring.petastorm.selectors import RowGroupSelectorBase
from bowstring.petastorm.transform import TransformSpec, transform_schema
from bowstring.petastorm.unischema import UnischemaField

__all__ = ["Reader", "make_batch_reader", "make_reader", "normalize_dataset_url_or_urls"]


_STOPPED = "Trying to read a sample after the reader was stopped, perhaps by the end of its with block: nothing more comes from it"


def normalize_dataset_url_or_urls(dataset_url_or_urls: str | list[str]) -> str | list[str]:
    """URLs without a slash at their end."""
    if isinstance(dataset_url_or_urls, list):
        if not dataset_url_or_urls:
            raise ValueError("the list of dataset URLs is empty")
        return [_without_slash(url) for url in dataset_url_or_urls]
    return _without_slash(dataset_url_or_urls)


def _without_slash(url: Any) -> str:
    if not isinstance(url, str):
        raise ValueError(f"a dataset URL must be a string, got {url!r}")
    return url.removesuffix("/")


def make_reader(
    dataset_url: str | list[str],
    schema_fields: Sequence[UnischemaField | str] | NGram | None = None,
    reader_pool_type: str = "thread",
    workers_count: int = 10,
    pyarrow_serialize: bool = False,
    results_queue_size: int = 50,
    seed: int | None = None,
    shuffle_rows: bool = False,
    shuffle_row_groups: bool = True,
    shuffle_row_drop_partitions: int = 1,
    predicate: PredicateBase | None = None,
    rowgroup_selector: RowGroupSelectorBase | None = None,
    num_epochs: int | None = 1,
    cur_shard: int | None = None,
    shard_count: int | None = None,
    shard_seed: int | None = None,
    cache_type: str | None = "null",
    cache_location: str | None = None,
    cache_size_limit: int | None = None,
    cache_row_size_estimate: int | None = None,
    cache_extra_settings: Mapping[str, Any] | None = None,
    hdfs_driver: str = "libhdfs3",
    transform_spec: TransformSpec | None = None,
    filters: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    zmq_copy_buffers: bool = True,
    filesystem: Any = None,
    convert_early_to_numpy: bool = False,
) -> Reader:
    """Reads a dataset that Petastorm wrote, row by row, as named tuples of decoded values.

    The order of rows is a function of the arguments: with ``seed`` it is Petastorm's order with one worker.

    :param dataset_url: URL of a directory, or a list of URLs of Parquet files.
    :param schema_fields: fields or regular expressions; an :class:`NGram` for windows of rows; all fields by default.
    :param reader_pool_type: ``thread``; ``dummy`` for one decoding thread and user functions in the caller's; ``process`` is
        deprecated and means ``thread``.
    :param workers_count: decoding threads, and threads for user functions. By default all processors decode.
    :param pyarrow_serialize: deprecated, without effect.
    :param results_queue_size: deprecated: ``BOWSTRING_MEMORY_BUDGET`` bounds reading ahead, in bytes.
    :param seed: seed of all shuffling and of sharding.
    :param shuffle_rows: shuffle rows within each row group.
    :param shuffle_row_groups: shuffle row groups, anew in each epoch.
    :param shuffle_row_drop_partitions: parts into which each row group is divided; each part is read by itself.
    :param predicate: rows to deliver; see :mod:`bowstring.petastorm.predicates`.
    :param rowgroup_selector: row groups to read, by a stored index; see :mod:`bowstring.petastorm.selectors`.
    :param num_epochs: passes over the data; ``None`` for endless.
    :param cur_shard: the shard to read, from 0. Row groups are dealt to shards by number.
    :param shard_count: the number of shards.
    :param shard_seed: deprecated: ``seed``.
    :param cache_type: ``null``; ``local-disk`` is deprecated and keeps nothing.
    :param cache_location: goes with ``cache_type``.
    :param cache_size_limit: goes with ``cache_type``.
    :param cache_row_size_estimate: goes with ``cache_type``.
    :param cache_extra_settings: goes with ``cache_type``.
    :param hdfs_driver: deprecated, without effect.
    :param transform_spec: a function on rows, and its effect on the schema.
    :param filters: rows to select, as pyarrow's tuples. Unlike in Petastorm, which uses partition columns only, all columns count.
    :param storage_options: options of the store; fsspec's usual names are translated.
    :param zmq_copy_buffers: deprecated, without effect.
    :param filesystem: a file system of fsspec or ``pyarrow.fs`` that the dataset is read through, instead of a store of
        bowstring's; URLs may be paths of it. ``storage_options`` and ``hdfs_driver`` have no effect beside it.
    :param convert_early_to_numpy: without effect: no value is converted late.
    """
    given = dict(locals())
    if pyarrow_serialize:
        _options.renamed("pyarrow_serialize", "it had no effect in Petastorm either; leave it out")
    return _made(dataset_url, given, batched=False)


def make_batch_reader(
    dataset_url_or_urls: str | list[str],
    schema_fields: Sequence[UnischemaField | str] | None = None,
    reader_pool_type: str = "thread",
    workers_count: int = 10,
    results_queue_size: int = 50,
    seed: int | None = None,
    shuffle_rows: bool = False,
    shuffle_row_groups: bool = True,
    shuffle_row_drop_partitions: int = 1,
    predicate: PredicateBase | None = None,
    rowgroup_selector: RowGroupSelectorBase | None = None,
    num_epochs: int | None = 1,
    cur_shard: int | None = None,
    shard_count: int | None = None,
    shard_seed: int | None = None,
    cache_type: str | None = "null",
    cache_location: str | None = None,
    cache_size_limit: int | None = None,
    cache_row_size_estimate: int | None = None,
    cache_extra_settings: Mapping[str, Any] | None = None,
    hdfs_driver: str = "libhdfs3",
    transform_spec: TransformSpec | None = None,
    filters: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    zmq_copy_buffers: bool = True,
    filesystem: Any = None,
    convert_early_to_numpy: bool = False,
) -> Reader:
    """Reads plain Parquet, a row group at a time, as named tuples of arrays.

    :param dataset_url_or_urls: URL of a file or directory, or a list of URLs of files.
    :param schema_fields: fields or regular expressions; all by default.
    :param transform_spec: a function on a ``pandas.DataFrame`` of a row group, and its effect on the schema.

    The other parameters are those of :func:`make_reader`.
    """
    return _made(dataset_url_or_urls, dict(locals()), batched=True)


_OF_LOCATION = (
    "workers_count",
    "results_queue_size",
    "hdfs_driver",
    "zmq_copy_buffers",
    "storage_options",
    "filesystem",
    "filters",
)
_OF_CACHE = ("cache_type", "cache_location", "cache_size_limit", "cache_row_size_estimate", "cache_extra_settings")


def _made(url: Any, given: Mapping[str, Any], *, batched: bool) -> Reader:
    _options.check_numbers(given)
    place, workers = _options.location(
        url, pool=given["reader_pool_type"], **{name: given[name] for name in _OF_LOCATION}
    )
    cached = _options.check_cache(*(given[name] for name in _OF_CACHE))
    dataset = Dataset(place)
    if dataset.is_petastorm and batched:
        warnings.warn(
            "make_batch_reader does not decode fields of a dataset that Petastorm wrote; use make_reader, or bowstring.Loader",
            stacklevel=3,
        )
    elif not dataset.is_petastorm and not batched:
        warnings.warn(
            "make_reader is for datasets that Petastorm wrote; use make_batch_reader, or bowstring.Loader, for plain Parquet",
            stacklevel=3,
        )
    return Reader._of(dataset, _settings(place, given, workers, cached=cached, batched=batched))


def _settings(place: Location, given: Mapping[str, Any], workers: int, *, cached: bool, batched: bool) -> Settings:
    return Settings(
        location=place,
        schema_fields=given["schema_fields"],
        seed=given["seed"],
        shuffle_rows=given["shuffle_rows"],
        shuffle_row_groups=given["shuffle_row_groups"],
        parts=given["shuffle_row_drop_partitions"],
        predicate=given["predicate"],
        selector=given["rowgroup_selector"],
        num_epochs=given["num_epochs"],
        zmq_copy_buffers=given.get("zmq_copy_buffers", True),
        cur_shard=given["cur_shard"],
        shard_count=given["shard_count"],
        shard_seed=given["shard_seed"],
        transform=given["transform_spec"],
        workers=workers,
        cached=cached,
        batched=batched,
    )


# Without the lock of the interpreter, only a call takes a row from several threads at once.
_IS_FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()
_running: WeakSet[Reader] = WeakSet()
_ended = Event()


class Reader:
    """Rows, windows of rows, or batches, one after another. Made by :func:`make_reader` and :func:`make_batch_reader`.

    :ivar schema: the schema of its samples.
    :ivar ngram: the NGram, if windows are yielded.
    :ivar last_row_consumed: the end has been reached.
    """

    def __init__(
        self,
        pyarrow_filesystem: Any,
        dataset_path: str | list[str],
        schema_fields: Sequence[UnischemaField | str] | NGram | None = None,
        seed: int | None = None,
        shuffle_rows: bool = False,
        shuffle_row_groups: bool = True,
        shuffle_row_drop_partitions: int = 1,
        predicate: PredicateBase | None = None,
        rowgroup_selector: RowGroupSelectorBase | None = None,
        reader_pool: Any = None,
        num_epochs: int | None = 1,
        cur_shard: int | None = None,
        shard_count: int | None = None,
        cache: Any = None,
        worker_class: Any = None,
        transform_spec: TransformSpec | None = None,
        is_batched_reader: bool = False,
        filters: Any = None,
        shard_seed: int | None = None,
        convert_early_to_numpy: bool = False,
    ) -> None:
        given = dict(locals())
        for name in ("reader_pool", "cache", "worker_class"):
            if given[name] is not None:
                raise ConfigError(
                    f"option {name}: bowstring has threads of its own; use make_reader or make_batch_reader without it",
                    option=name,
                )
        paths = dataset_path if isinstance(dataset_path, list) else [dataset_path]
        bare = pyarrow_filesystem is not None  # which knows what a path means
        urls = [path if bare or "://" in path else f"file://{path}" for path in paths]
        place, workers = _options.location(
            urls if isinstance(dataset_path, list) else urls[0], filesystem=pyarrow_filesystem, filters=filters
        )
        self._begin(Dataset(place), _settings(place, given, workers, cached=False, batched=is_batched_reader))

    @classmethod
    def _of(cls, dataset: Dataset, settings: Settings) -> Reader:
        reader = cls.__new__(cls)
        reader._begin(dataset, settings)
        return reader

    def _begin(self, dataset: Dataset, settings: Settings) -> None:
        self.num_epochs = settings.num_epochs
        self.is_batched_reader = settings.batched
        stored, self.ngram = view(dataset.schema, settings.schema_fields)
        self._check(settings)
        self.schema = transform_schema(stored, settings.transform) if settings.transform else stored
        seed = settings.seed
        if settings.shard_seed:
            _options.renamed(
                "shard_seed was deprecated and will be removed in future versions", "use seed", UserWarning
            )
            seed = settings.shard_seed

        shape: Shape
        if settings.batched:
            shape = BatchShape(stored, self.schema, settings)
        else:
            shape = RowShape(stored, self.schema, settings, self.ngram, dataset.schema)
        source = Source(settings.location, shape.fields, stored=settings.batched, max_rows=shape.max_rows)
        try:
            # Petastorm numbers row groups in the order of the list, a repeated one repeatedly.
            listed = positions(settings.location.urls, source.groups)
            chosen, predicate = wanted(
                dataset,
                [source.groups[group] for group in listed],
                source.row_group_counts,
                predicate=settings.predicate,
                selector=settings.selector,
                cur_shard=settings.cur_shard,
                shard_count=settings.shard_count,
                seed=seed,
            )
            plan = Plan(
                (listed[at] for at in chosen),
                parts=settings.parts,
                epochs=settings.num_epochs,
                shuffle=settings.shuffle_row_groups,
                seed=settings.seed,
            )
            if settings.cached and predicate is not None:
                raise RuntimeError("a cache does not go with a predicate, unless it is on the partition column")
            self._feed: Feed[Any] = _feed(source, plan, shape, predicate, settings)
        except BaseException:
            source.close()
            raise
        self._shape = shape
        self._patience = Patience(plan)
        self._settings = settings
        self._pieces = 0
        self._unordered: Piece[Any] | None = None
        self._ordered: Piece[Any] | None = None
        self._work: Ordered[Piece[Any], deque[Any]] = Ordered(
            self._read, shape.finish, settings.workers if shape.calls_user else 0, self._kept
        )
        # A pool of `dummy` calls the user's functions in the caller's thread.
        self._uninterrupted = Uninterrupted(self._work.next) if settings.workers else None
        self._rows: deque[Any] = deque()
        self._lock = Lock()
        self._origin = Origin("reader")
        self._failed: BaseException | None = None
        self.last_row_consumed = False
        self.stopped = False
        _running.add(self)

    def _read(self) -> Piece[Any] | None:
        """The next piece, with its rows in their final order: the same one until it is kept elsewhere."""
        if self._ordered is not None:
            return self._ordered
        # Kept until it is ordered, so that an interrupt in between does not lose it.
        if self._unordered is None:
            self._unordered = self._feed.next()
        if self._unordered is None:
            return None
        self._ordered = self._shape.ordered(self._unordered)
        self._unordered = None
        self._pieces += 1
        return self._ordered

    def _kept(self) -> None:
        self._ordered = None

    def _check(self, settings: Settings) -> None:
        if self.ngram is not None and settings.batched:
            raise NotImplementedError("make_batch_reader has no NGram; use make_reader")
        if self.ngram is not None and not self.ngram.timestamp_overlap and settings.parts > 1:
            raise NotImplementedError(
                "an NGram with timestamp_overlap=False does not go with shuffle_row_drop_partitions above 1"
            )
        if settings.cached and settings.parts != 1:
            raise RuntimeError("a cache does not go with shuffle_row_drop_partitions above 1")

    @property
    def batched_output(self) -> bool:
        """True if it yields batches rather than rows."""
        return self.is_batched_reader

    @property
    def diagnostics(self) -> dict[str, Any]:
        """Rows, or row groups with a function of the user's, that are ready or in progress; and row groups begun and finished.

        Row groups that come in pieces count once for each.
        """
        waiting = len(self._work)
        return {
            "output_queue_size": len(self._rows) + waiting,
            "items_consumed": self._pieces,
            "items_produced": self._pieces - waiting,
            "items_inprocess": waiting,
            "zmq_copy_buffers": self._settings.zmq_copy_buffers,
        }

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> Any:
        if self.stopped:
            raise _stopped()
        # In a forked child, the rows are its parent's.
        self._origin.check()
        while True:
            rows = self._rows
            if _IS_FREE_THREADED:
                try:
                    return rows.popleft()
                except IndexError:  # none left, or another thread was faster
                    pass
            elif rows:
                # Not popleft(): Python looks for interrupts when a call returns, and the row would be lost. It does not change
                # threads before that either.
                row = rows[0]
                del rows[0]
                return row
            self._more()

    def next(self) -> Any:
        """The next sample."""
        return self.__next__()

    def _more(self) -> None:
        """Gets more rows; those of an interrupted call are gotten by the next one."""
        with self._lock:
            if self._failed is not None:
                raise self._failed
            while not self._rows:  # another thread may have been faster
                try:
                    found = self._work.next() if self._uninterrupted is None else self._uninterrupted.next()
                    if found is not None:
                        self._rows = found
                    if found:
                        self._patience.came()
                    elif found is not None:
                        self._patience.nothing()
                except StopIteration as error:
                    # A user's function raised it; to whoever iterates it would be the end of the data.
                    self._failed = RuntimeError(
                        "a function of the predicate or transform raised StopIteration, which is no end of the data: catch it "
                        "in the function"
                    )
                    raise self._failed from error
                except Exception as error:
                    if self.stopped:  # by another thread meanwhile
                        raise _stopped() from error
                    self._failed = error
                    raise
                if found is None:
                    self.last_row_consumed = True
                    raise StopIteration

    def reset(self) -> None:
        """Begins again; only after the last row, and without effect on a reader that was stopped."""
        if not self.last_row_consumed:
            raise NotImplementedError("reset() is possible only after all rows have been read")
        self.last_row_consumed = False
        self._feed.reset()
        self._work.again()

    def stop(self) -> None:
        """Stops everything at once. Rows already yielded stay valid."""
        self.stopped = True
        self._rows = deque()
        self._work.close()
        self._feed.close()
        if self._uninterrupted is not None:
            self._uninterrupted.close()

    def join(self) -> None:
        """Waits for user functions that are still running."""
        if self._uninterrupted is not None and self.stopped:
            self._uninterrupted.join()
        self._work.join()

    def cleanup_cache(self) -> None:
        """Nothing is kept that would have to be removed."""

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self.stop()
        self.join()


def _stopped() -> RuntimeError:
    # A daemon thread that still reads when the program ends is frozen by Python a moment later.
    while _ended.is_set() and current_thread().daemon:
        sleep(1)
    return RuntimeError(_STOPPED)


@atexit.register
def _stop_all() -> None:
    """Ends the threads of readers that were never stopped: those that still run would fail while the interpreter is torn down."""
    _ended.set()
    for reader in list(_running):
        if reader._origin.is_here and not reader.stopped:
            reader.stop()
            reader.join()


def _feed(source: Source, plan: Plan, shape: Shape, predicate: PredicateBase | None, settings: Settings) -> Feed[Any]:
    convert: Callable[[Columns], Any] = lambda columns: shape.convert(source, columns)  # noqa: E731
    if predicate is None:
        return Plain(source, plan, convert, None)
    names = set(predicate.get_fields())
    if not names:
        raise ValueError("the predicate's get_fields() must name at least one field")
    unknown = names - shape.stored.fields.keys()
    if unknown:
        raise ValueError(f"the predicate asks for {', '.join(sorted(unknown))}, which the reader does not read")
    if names >= {field.name for field in shape.fields}:
        return Plain(source, plan, convert, lambda columns, made: shape.mask(predicate, source, columns, made))
    fields = [field for field in shape.fields if field.name in names]
    looked_at = Source(settings.location, fields, stored=settings.batched)
    return Filtered(
        looked_at,
        source,
        plan,
        convert,
        lambda columns: shape.mask(predicate, looked_at, columns, shape.convert(looked_at, columns)),
    )
