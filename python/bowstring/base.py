"""The base of all loaders, for any type of array."""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NoReturn, TypeAlias, TypeVar

from bowstring import _native, display, ranks
from bowstring.arrays import arrow, objects
from bowstring.batch import Batch, Layout
from bowstring.buffers import Buffers
from bowstring.columns import Fill, Image, NGram, Pack, Padded, Vector
from bowstring.credentials import CredentialProvider, provider
from bowstring.errors import ConfigError, Error, NotFoundError, UnsupportedError
from bowstring.filesystem import through
from bowstring.options import NAMES, Filter, Url, document, plain, urls_of
from bowstring.ranges import MOST, shown, whole
from bowstring.schema import Schema
from bowstring.tails import settled
from bowstring.words import refuse

if TYPE_CHECKING:
    from bowstring.flight.gang import Gang
    from bowstring.stats import Stats

A = TypeVar("A", covariant=True)
B = TypeVar("B")
L = TypeVar("L", bound="BaseLoader[Any]")
# The treatment of a column's nulls.
Nulls: TypeAlias = Literal["error", "mask"] | Fill | float


class Rows:
    """The rows of one epoch over all ranks: only their number."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def __repr__(self) -> str:
        return f"<{self._rows} rows>"


class Epochs:
    """The sampler of a loader, for frameworks that call ``sampler.set_epoch``: it sets the loader's epoch."""

    def __init__(self, native: _native.Loader) -> None:
        self._native = native

    def set_epoch(self, epoch: int) -> None:
        """As the loader's; a loader that was resumed in a later epoch, as a short one that is repeated, stays in place too."""
        self._native.reach_epoch(whole("epoch", epoch, most=_LAST_EPOCH))


# After its last step a state has the next epoch.
_LAST_EPOCH = MOST - 1


def _member(gang: Any) -> _native.Gang:
    member = getattr(gang, "_native", None)
    if not isinstance(member, _native.Gang):
        problem = f"{shown(gang)} is a {type(gang).__name__}, where a bowstring.flight.Gang goes"
        raise ConfigError(f"option gang: {problem}", option="gang")
    return member


def _without_secrets(url: str) -> str:
    """``url`` without credentials and query."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        return url
    authority = re.split(r"[/?]", rest, maxsplit=1)[0]
    host = f"***@{authority.rpartition('@')[2]}" if "@" in authority else authority
    path, query, _ = rest[len(authority) :].partition("?")
    return f"{scheme}://{host}{path}{'?***' if query else ''}"


class BaseLoader(ABC, Generic[A]):
    """One rank's batches: every ``iter()`` is a pass of its own, as with torch's ``DataLoader``.

    A loader is at a position: an epoch, and the number of steps of it that were already yielded. The first ``iter()`` begins
    there: at the first step, or after :meth:`load_state_dict` in the middle. Every later one begins the next epoch, wherever the
    previous loop ended; a pass from which nothing was taken does not count. To continue an interrupted loop, keep its iterator,
    or save :meth:`state_dict` and load it. :meth:`peek` looks at a batch without taking it.

    A new ``iter()`` ends the previous iterator, as do :meth:`set_epoch` and :meth:`load_state_dict` once a batch was taken from it:
    its ``next()`` raises :class:`bowstring.ClosedError`. Several threads may take from one iterator.

    Every option may also be given as ``BOWSTRING_<NAME>`` in the environment; a keyword overrides it. Lists are separated by
    commas, ``storage_options`` are ``key=value,...``, and ``nulls``, ``lists``, ``pack``, ``images``, ``cast`` and ``limits`` are
    JSON, as for the command line.

    :param url: file, directory, glob or URL, or a list of them: parts of one dataset, or with ``weights`` one dataset each. Or a
        dataset of a server, ``grpc://host:port/name`` (``grpc+tls://``); several of these are replicas.
    :param batch_size: rows per rank and step. Give this or ``global_batch_size``.
    :param global_batch_size: rows of all ranks together per step; it must stay the same to resume on another number of ranks. Where
        they do not divide it, the first ranks have one row more in every step.
    :param columns: columns by name, glob or nested path (``a.b``), in this order; all by default.
    :param exclude: columns to leave out.
    :param filter: rows to select: text such as ``"label >= 3 and country in ('de', 'us')"``, or pyarrow's tuples;
        or a ``pyarrow.compute.Expression`` of comparisons, ``isin``, ``is_null``, ``is_valid``, ``&``, ``|`` and ``~``.
    :param shuffle: shuffle rows (``True``); ``False`` is file order: a step of all ranks together has consecutive rows. Files
        are in the order of their names, also those of a list.
    :param seed: seed of the order and of random augmentation (0).
    :param tail: what to do with the last, incomplete step. ``short``, the default of all loaders but JAX's: every rank has as many
        of the rows left, ceil(rows / ranks), so that one rank gets exactly these; where they do not divide, fewer rows than there
        are ranks come twice, in file order behind all others. ``even``: no row comes twice, ranks differ by one row at most, and
        no batch is empty; collectives that need equal shapes, such as a plain ``all_gather``, do not take the last batches.
        ``pad``: batches keep their size, and ``_mask`` is false on what fills them. ``repeat``: rows from the start of the epoch
        fill them. ``drop``: the step is left out.
    :param mask: deliver ``_mask`` under any ``tail``. It is false on padding, so true everywhere but under ``pad``, which always
        has it.
    :param drop_last: torch's word: ``True`` is ``tail="drop"``, ``False`` any other.
    :param nulls: ``error``, ``mask`` (``<column>__valid``), or what is filled in: a number, or :class:`Fill` for
        texts; for all, or a mapping by column.
    :param lists: ``ragged`` (``<column>__values``, ``<column>__offsets``) or :class:`Padded`; for all, or a mapping by column.
        Vectors of Spark are a matrix, of a length that :class:`Vector` may say, or with ``csr`` the rows of a sparse one
        (``<column>__values``, ``<column>__indices``, ``<column>__offsets``).
    :param pack: name -> columns, a :class:`Pack`, or a mapping with its fields: groups of columns delivered as one matrix each.
    :param images: column -> :class:`Image`; a column with the members ``bytes`` and ``path``, as Hugging Face has them, by name.
    :param arrow: columns delivered as Arrow arrays, not as the framework's strings: text and binary, without a copy; and of their
        own type, as they are stored: decimals, dates.
    :param cast: column -> element type: ``"float16"``, or a type of NumPy or torch.
    :param row_id: deliver ``_row_id``, the row's number in the dataset.
    :param selector: row groups to read: ``{"index": name, "values": [...]}`` by an index that Petastorm stored,
        ``{"row_groups": [0, 3]}``, or ``{"any": [...]}``, ``{"all": [...]}`` of them.
    :param ngram: :class:`NGram`: windows of consecutive rows as samples.
    :param rank: this rank; the default comes from ``torch.distributed``'s process group if there is one, else from the launcher's
        environment (torchrun, MPI, SLURM, ``TF_CONFIG``, ...: docs/frameworks.md has the list in order).
    :param world_size: number of ranks; set together with ``rank``.
    :param memory_budget: bytes for everything in flight, or text such as ``"2GiB"``.
    :param threads: CPU threads for decoding; by default all that the process may use.
    :param prefetch: batches prepared ahead of the consumer (4).
    :param bad_rows: how to handle a row that cannot be decoded: ``error``, ``skip`` or ``zero``.
    :param device: where tensors are delivered: ``cpu``, ``pinned`` (page-locked host memory), ``auto`` (this process's GPU
        if there is one), ``cuda``, ``cuda:N``, ``cuda:GPU-<uuid>`` or ``cuda:MIG-<uuid>``. Copies run ahead of the consumer.
    :param device_slots: batches in device memory at once (4), in use or prepared.
    :param device_fence: when a batch's device memory is reused: after the work queued on the streams that received it
        (``stream``), after all work queued on the device (``context``), or after waiting for that on the host (``sync``).
    :param device_overflow: allocate more device memory when all slots are held, instead of waiting.
    :param timeout: seconds to wait for a batch before an error that names the cause (600).
    :param storage_options: options of the store, under object_store's names; for a server ``token`` or ``token_file`` (or
        ``BOWSTRING_TOKEN``), ``ca``, ``cert``, ``key``, ``server_name``.
    :param credential_provider: a callable, sync or ``async``, that gives credentials of the store: a mapping as
        ``storage_options`` has them (``access_key_id``, ``secret_access_key``, ``token``, ...) with ``expires_at``, or a pair of a
        mapping and seconds since 1970. It is called on a thread of its own when credentials are needed, before they expire, and
        once where a store refuses them. See docs/storage.md.
    :param filesystem: a file system of fsspec or ``pyarrow.fs``, or an object with fsspec's ``ls``, ``info`` and ``cat_file``, that
        ``url``, an address or a path of it, is read through. Each read is a call of Python; bowstring's own stores are faster. See
        docs/storage.md.
    :param mounts: the TOML file whose ``[mounts.NAME]`` tables say what ``bow://`` addresses lead to, each with options of its own;
        by default ``BOWSTRING_MOUNTS``. See docs/storage.md.
    :param index: source of the footers' content: ``auto``, the file ``_bowstring_index`` beside the dataset, for the files that
        are unchanged (see :func:`write_index`); ``none``, the footers; the address of such a file; or the ``bytes`` of
        :func:`bowstring.index`, made by another process for the same ``url``.
    :param cache: cache for data of remote stores, kept for later epochs and processes: a local directory, which the processes of
        the machine share, or ``memory`` (docs/cache.md).
    :param cache_bytes: maximum size of the cache, in bytes or text such as ``"500GiB"``; by default half of the free space on its
        disk.
    :param cache_ahead: bytes that are fetched into the cache ahead of their use, beyond as many as have been read; by default
        ``"256MiB"``, ``0`` for none.
    :param cache_peers: hosts whose caches (``bowstring cache serve``) form one with this one and are asked before the store:
        ``host:port``, ``grpc+tls://host:port``, or ``dns://name:port`` for all hosts behind a name.
    :param cache_peer_options: credentials for these hosts: ``token`` or ``token_file``, ``ca``, ``cert``, ``key``,
        ``server_name``.
    :param version: version of a Delta table or snapshot of an Iceberg table; by default the latest.
    :param ref: branch or tag of an Iceberg table.
    :param timestamp: read a table as of this time: a ``datetime``, or text such as ``"2026-01-31 12:30:00"``, in UTC unless it has
        a zone.
    :param partitioning: how ``key=value`` directories become columns: ``hive`` (integers and text), ``dates`` (also dates, where
        all values are ISO dates, as Spark reads them) or ``none``.
    :param decode: decode cells by the schema stored in the dataset, bowstring's or Petastorm's; ``False`` leaves them bytes.
    :param weights: proportions in which the datasets in ``url`` are mixed.
    :param stop: when an epoch of a mixture ends: ``first_exhausted`` or ``all_exhausted``.
    :param lanes: number of lanes; by default chosen from the global batch size and the data. As many as ranks, or a multiple, make
        each rank read row groups of its own; with ``shuffle=False`` it then has a part of the file order. :func:`bowstring.plan`
        says what they cost.
    :param window_rows: rows of a lane that are shuffled together.
    :param order_version: version of the order. By default, new epochs use the latest one, and a resumed loader that of its state.
    :param limits: limits that protect against hostile files.
    :param gang: :class:`Gang`: rank and share of the data come from there, and batches end with its generation. For servers only.
    """

    _tail: ClassVar[str] = "short"
    """The treatment of the last step by default."""

    def __init__(
        self,
        url: Url | Sequence[Url],
        *,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        columns: str | Sequence[str] | None = None,
        exclude: str | Sequence[str] | None = None,
        filter: Filter | None = None,
        shuffle: bool | None = None,
        seed: int | None = None,
        tail: Literal["short", "even", "pad", "repeat", "drop"] | None = None,
        mask: bool | None = None,
        drop_last: bool | None = None,
        nulls: Nulls | Mapping[str, Nulls] | None = None,
        lists: Literal["ragged", "csr"]
        | Padded
        | Mapping[str, Literal["ragged", "csr"] | Padded | Vector]
        | None = None,
        pack: Mapping[str, str | Sequence[str] | Mapping[str, Any] | Pack] | None = None,
        images: Mapping[str, Image] | None = None,
        arrow: str | Sequence[str] | None = None,
        cast: Mapping[str, Any] | None = None,
        row_id: bool | None = None,
        selector: Mapping[str, Any] | None = None,
        ngram: NGram | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        memory_budget: int | str | None = None,
        threads: int | None = None,
        prefetch: int | None = None,
        bad_rows: Literal["error", "skip", "zero"] | None = None,
        device: str | None = None,
        device_slots: int | None = None,
        device_fence: Literal["stream", "context", "sync"] | None = None,
        device_overflow: bool | None = None,
        timeout: float | None = None,
        storage_options: Mapping[str, str] | None = None,
        credential_provider: CredentialProvider | None = None,
        filesystem: Any = None,
        mounts: str | os.PathLike[str] | None = None,
        index: str | os.PathLike[str] | bytes | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
        cache_ahead: int | str | None = None,
        cache_peers: str | Sequence[str] | None = None,
        cache_peer_options: Mapping[str, str] | None = None,
        version: int | None = None,
        ref: str | None = None,
        timestamp: str | datetime | None = None,
        partitioning: Literal["hive", "dates", "none"] | None = None,
        decode: bool | None = None,
        weights: Sequence[float] | None = None,
        stop: Literal["first_exhausted", "all_exhausted"] | None = None,
        lanes: int | None = None,
        window_rows: int | None = None,
        order_version: int | None = None,
        limits: Mapping[str, int] | None = None,
        gang: Gang | None = None,
        **unknown: NoReturn,
    ) -> None:
        refuse(unknown)
        values = locals()
        given = {name: values[name] for name in NAMES} | {"tail": settled(tail, drop_last)}
        made = bytes(index) if isinstance(index, (bytes, bytearray, memoryview)) else None
        if made is not None:
            given["index"] = "auto"
        # Where nothing gives its rank, it is that of the process, which may be another one at a later pass.
        its_own = gang is None and not ranks.told(rank, world_size)
        if gang is None:
            ranks.not_in_workers(rank)
            given |= ranks.options(rank, world_size)
        url = self._urls = urls_of(url)
        # Addresses of the store are valid for as long as it is kept.
        self._store: _native.OwnStore | None = None
        if filesystem is not None:
            beside = {**given, "credential_provider": credential_provider}
            url, self._store = through(filesystem, url, beside)
        options = document(url, given)
        member = None if gang is None else _member(gang)
        credentials = provider(credential_provider)
        self._native = _native.Loader(options, member, made, credentials, pads=self._tail == "pad")
        self._opened_as = (self._native.rank, self._native.world_size) if its_own else None
        self._column_options: dict[str, Any] = json.loads(options)["columns"]
        # The options may be a server's.
        self._kept_arrow = frozenset(field["name"] for field in self._native.fields if field["stays_arrow"])

    @abstractmethod
    def _array(self, tensor: _native.Tensor) -> A:
        """``tensor`` as the framework's array, over the same memory."""

    def _text(self, name: str, array: _native.ArrowArray) -> Any:
        """Text or binary, or lists of it, that the option ``arrow`` does not name."""
        return objects(array.to_pylist())

    def _batch(self, columns: dict[str, _native.Tensor | _native.ArrowArray]) -> dict[str, A]:
        return {
            name: self._array(value) if isinstance(value, _native.Tensor) else self._other(name, value)
            for name, value in columns.items()
        }

    def _other(self, name: str, array: _native.ArrowArray) -> Any:
        return arrow(array) if name in self._kept_arrow else self._text(name, array)

    def __iter__(self) -> Iterator[dict[str, A]]:
        """A pass: from the current position if nothing was taken since the loader was opened or moved there, else the next epoch.

        A ``for`` loop that Ctrl-C ends has received every batch up to :attr:`step`, and its iterator continues with the next one.
        Only a bare ``next()`` may be interrupted after it has the batch and before the batch is assigned.
        """
        return self._pass(self._batch)

    def _pass(self, convert: Callable[[Any], Any], *into: Any) -> Iterator[Any]:
        """A pass of the native loader, as a loop gets it: in a Python frame between them an interrupt would cost a batch."""
        self._still_its_rank()
        return self._native.begin(convert, *into)

    def _still_its_rank(self) -> None:
        """Refuses the share of a rank that the process is not, or no longer."""
        if self._opened_as is not None:
            ranks.unchanged(self._opened_as)

    def peek(self) -> dict[str, A]:
        """A copy of the next batch, to look at or to build a model with; at the end of an epoch, the first of the next one.

        Position and state stay the same, no pass begins or ends, and the batch is still delivered.
        """
        return self._found(self._native.peek(self._batch))

    def _found(self, batch: B | None) -> B:
        if batch is None:
            raise NotFoundError("there is no batch to look at: an epoch of this loader has no steps")
        return batch

    def batches(self) -> Iterator[Batch]:
        """A pass as ``iter()`` begins it, of :class:`bowstring.Batch`: to be converted to arrays of any library, or shown.

        >>> for batch in loader.batches():  # doctest: +SKIP
        ...     writer.write_batch(batch.to_pyarrow())
        """
        return self._pass(self._whole())

    def preview(self) -> Batch:
        """As :meth:`peek`, a :class:`bowstring.Batch`: a notebook shows its columns and the first of its images."""
        return self._found(self._native.peek(self._whole()))

    def _whole(self) -> Callable[[dict[str, _native.Tensor | _native.ArrowArray]], Batch]:
        layout = Layout(self._native, self._column_options, self._kept_arrow)
        return lambda columns: Batch(columns, layout)

    def next_into(self, buffers: Mapping[str, Any], *, stream: Any = None) -> dict[str, Any] | None:
        """The next batch, copied into your tensors; ``None`` at the end of the epoch. See :meth:`into`.

        It begins no pass: each call continues at the current position.
        """
        self._still_its_rank()
        return self._native.next_into(*self._into(buffers, stream))

    def into(self, buffers: Mapping[str, Any], *, stream: Any = None) -> Iterator[dict[str, Any]]:
        """As ``iter()``, with each batch copied into tensors that you allocated: the static inputs of a CUDA graph, say.

        In a batch, the columns in ``buffers`` are your own tensors; all others come as usual. A batch counts as yielded once it is
        copied. A column that does not fit is an error before anything is written, and loses no batch. The last batch of an epoch
        fits if it has as many rows as the others: open the loader with ``tail="pad"``, ``"repeat"`` or ``"drop"``. Each batch is
        written where the tensors' memory is then: between two steps it may move, as ``share_memory_`` moves it.

        :param buffers: column -> a row-major tensor of the column's own type and shape that may be written: of torch, NumPy, CuPy,
            or anything else with ``__dlpack__``. For a loader on the CPU in host memory, page-locked or not; on a GPU there.
        :param stream: on a GPU, the stream that the tensors are used on, as in DLPack (a number, or an object with
            ``__cuda_stream__``): the copy is queued there, without waiting. With ``-1`` it is done when this returns, and the
            tensors must not be used until then. The default is the legacy default stream, for torch the current one.
        """
        static, on, filled = self._into(buffers, stream)
        return self._pass(filled, static, on)

    def _into(
        self, buffers: Mapping[str, Any], stream: Any
    ) -> tuple[Buffers, Callable[[], Any], Callable[[dict[str, _native.Tensor | _native.ArrowArray]], dict[str, Any]]]:
        given = dict(buffers)
        if stream is not None and self.device == "cpu":
            raise ConfigError("option stream: batches are in host memory, so it must be None", option="stream")
        static = Buffers(given)
        # What cannot be filled is an error before a pass begins.
        static()

        def filled(columns: dict[str, _native.Tensor | _native.ArrowArray]) -> dict[str, Any]:
            rest = self._batch({name: value for name, value in columns.items() if name not in given})
            return {name: given[name] if name in given else rest[name] for name in columns}

        return static, self._stream if stream is None else lambda: stream, filled

    def _stream(self) -> Any:
        """The stream on which a consumer that names none uses tensors of a GPU, as in DLPack."""
        return None

    def __len__(self) -> int:
        """Steps of one epoch: exact, and the same on every rank."""
        return self._native.steps

    def __repr__(self) -> str:
        """The source of the rows, and the position of the loader."""
        name = f"{type(self).__module__}.{type(self).__qualname__} of {', '.join(map(_without_secrets, self._urls))}"
        try:
            ranks = f"rank {self.rank} of {self.world_size}"
            batch = f"{self.batch_size} of {self._native.state()['spec']['global_batch']} rows a step"
            return f"<{name}: {self.rows} rows, {ranks}, {batch}, epoch {self.epoch}, step {self.step} of {len(self)}>"
        except Error as error:
            return f"<{name}: {error}>"

    def _repr_html_(self) -> str:
        """For notebooks: the position of the loader, its columns, and :meth:`report` once batches were taken."""
        try:
            report = self.report() if self.stats()["bottleneck"] is not None else ""
        except Error:
            report = ""
        return self.schema._table(repr(self).strip("<>"), [display.text(report)] if report else [])

    @property
    def dataset(self) -> Rows:
        """For frameworks that ask for the number of rows: ``len(loader.dataset)`` is :attr:`rows`."""
        return Rows(self.rows)

    @property
    def batch_size(self) -> int:
        """Rows of a step on this rank; the last one of an epoch may have fewer, and under ``tail="even"`` the last two."""
        each, more = divmod(int(self._native.state()["spec"]["global_batch"]), self.world_size)
        return each + (self.rank < more)

    @property
    def drop_last(self) -> bool:
        """True if the incomplete last step is dropped."""
        return bool(self._native.state()["spec"]["tail"] == "drop")

    @property
    def sampler(self) -> Epochs:
        """For frameworks that set the epoch on the sampler, as Lightning does. There is nothing to replace."""
        return Epochs(self._native)

    @property
    def batch_sampler(self) -> Any:
        """``None``: ranks, order and position are the loader's own."""
        return None

    @property
    def num_workers(self) -> int:
        """0: batches are made by threads of this process."""
        return 0

    @property
    def rows(self) -> int:
        """Rows of one epoch over all ranks."""
        return self._native.rows

    @property
    def table_version(self) -> int | None:
        """The version of the Delta table, or the snapshot of the Iceberg table, that is open.

        A state continues with it as ``version``. ``None`` for other data, for mixtures, and for data of a server.
        """
        return self._native.table_version

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self._native.epoch

    @property
    def step(self) -> int:
        """Steps of the current epoch already yielded."""
        return self._native.step

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        return self._native.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._native.world_size

    @property
    def device(self) -> str:
        """The device of the tensors: ``cpu``, ``cuda:0``."""
        return self._native.device

    @property
    def schema(self) -> Schema:
        """The columns of each batch: a mapping from names to fields, and an Arrow schema by ``__arrow_c_schema__``."""
        return Schema(self._native)

    @property
    def classes(self) -> dict[str, list[str]]:
        """Class names by column, in the order of their integers, for columns that are Hugging Face's ``ClassLabel``."""
        return {field["name"]: field["classes"] for field in self._native.fields if field["classes"] is not None}

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next pass: goes to its first step.

        Only a loader that was opened or resumed in this very epoch, and from which nothing was taken since, stays in place: a loop
        over ``range(loader.epoch, epochs)`` may begin with ``set_epoch`` and still continue in the middle.
        """
        self._native.set_epoch(whole("epoch", epoch, most=_LAST_EPOCH))

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch yielded: a small JSON document, the same on every rank and for every world size.

        After the last batch of an epoch it is the end of this epoch: a loader that continues from there has an empty pass before
        the next epoch, so that ``for epoch in range(saved, epochs)`` counts correctly.
        """
        return self._native.state()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Moves to a position that :meth:`state_dict` returned, on any rank of any world size."""
        self._still_its_rank()
        self._native.load_state(plain(state_dict))

    def stats(self) -> Stats:
        """Counters of every stage since the loader was opened, memory, and the ``bottleneck``.

        ``spent`` has the seconds of the consumer's time by what they went to. ``bottleneck`` is the one of most waiting,
        or ``consumer`` if it waits for less than 5 % of its time. ``waiting`` is the fraction, from 0 to 1, that it waited.
        """
        found: Stats = self._native.stats()  # type: ignore[assignment]  # a document of that shape; a test compares the keys
        return found

    def report(self) -> str:
        """The numbers of :meth:`stats` as text: what limits this loader, with advice, and where the time of a step goes.

        Memory, caches, slow origins (of the whole process) and bad rows follow. A served dataset is read by its server, which
        knows about those: ``bowstring top`` shows it.

        >>> print(loader.report())  # doctest: +SKIP
        """
        return self._native.report()

    def ledger(self) -> dict[str, Any]:
        """The bad rows found so far: counts, and an entry for each."""
        return self._native.ledger()

    def certificate(self, key: bytes | None = None) -> dict[str, Any]:
        """A record of what this loader consumed since it was opened: a small JSON document for :func:`bowstring.audit`.

        It names the dataset, the plan, the rank and the positions that the loader passed; batches that were given back do not
        count. Save it with each checkpoint and at the end of a run, one file for each rank and each start.

        :param key: signs the document with HMAC-SHA-256; at least 16 bytes.
        """
        return self._native.certificate(key)

    def close(self) -> None:
        """Stops everything at once. Batches already yielded stay valid."""
        self._native.close()

    def __enter__(self: L) -> L:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            f"a {type(self).__name__} holds threads and cannot be sent to another process; open one there "
            "(with torch.utils.data.DataLoader: num_workers=0)"
        )
