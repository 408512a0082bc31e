"""A data frame to training ranks, straight from the executors' memory: the driver's side.

```text
  driver    serve(df) ── barrier stage ──┐   Meeting: which task serves what, which ranks live
                                         ▼      ▲ join, beats, done
  executor  partition ─► Store (memory, spill) ─┼─► Flight ═══► rank: RankLoader
```
A barrier stage that fails ends its job, so the driver submits it again: the ranks wait, check that the rows are the same, and
continue from the step that they were at.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from bowstring.endpoint import is_everywhere, is_loopback, split_listen
from bowstring.errors import ConfigError, Error, RemoteError, TimeoutError
from bowstring.flight import Connection
from bowstring.options import NAMES, Url, plain, size
from bowstring.ranges import MOST, seconds, whole
from bowstring.spark.frame import check_frame, map_in_arrow
from bowstring.spark.meeting import Meeting, MeetingServer
from bowstring.spark.store import Store, StoreOptions, own_address
from bowstring.spark.types import conform, stored_schema
from bowstring.words import refuse

if TYPE_CHECKING:
    import pyarrow as pa

    from bowstring.spark.ranks import RankLoader

__all__ = ["Handle", "serve"]

_BEAT = 2.0
# Options of the loader that each rank sets itself, or that do not apply to a server's datasets.
_OWN = ("url", "rank", "world_size", "storage_options", "timeout", "gang", "threads", "memory_budget", "prefetch")
# Options of loaders that are not in Rust's table: of all, and of JAX's.
_OF_SOME = ("drop_last", "to")


def serve(
    df: Any,
    world_size: int,
    *,
    batch_size: int,
    seed: int = 0,
    shuffle: bool = True,
    tasks: int | None = None,
    memory: int | str = "1GiB",
    spill: str | None = None,
    listen: str = "127.0.0.1:0",
    token: str | None = None,
    tls_cert: Url | None = None,
    tls_key: Url | None = None,
    ca: Url | None = None,
    client_ca: Url | None = None,
    cert: Url | None = None,
    key: Url | None = None,
    server_name: str | None = None,
    insecure: bool = False,
    timeout: float = 600.0,
    patience: float = 60.0,
    attempts: int = 3,
    **loader: Any,
) -> Handle:
    """Serves a data frame to ``world_size`` ranks from the memory of Spark's executors, for any number of epochs.

    It returns at once; a barrier stage runs until all ranks have closed their loaders. Every partition is one task and takes a slot
    until then. Ranks call :meth:`Handle.loader` in this process, or :func:`bowstring.spark.connect` in any other, before or after.

    >>> with bowstring.spark.serve(df, world_size=4, batch_size=256, listen="127.0.0.1:8820") as handle:  # doctest: +SKIP
    ...     handle.wait()

    :param df: the frame; its rows, and their order, must be the same if Spark computes it again. Those of a frame after a shuffle
        (``orderBy``, ``groupBy``, ``join``, ``repartition``) are not: ``checkpoint()`` it.
    :param world_size: number of ranks.
    :param batch_size: rows per rank and step.
    :param seed: seed of the order of rows and of executors.
    :param shuffle: shuffle rows within each executor, and mix the executors' batches.
    :param tasks: repartition to this many first, in an order that is the same every time. By default, the frame's partitions must
        fit into the cluster's slots.
    :param memory: bytes for each task, or text such as ``"2GiB"``: half for stored rows, half for streams.
    :param spill: a local directory of the executors for rows beyond that; it is emptied at the end.
    :param listen: the meeting address of ranks and tasks. Beyond loopback, executors listen on all their addresses.
    :param token: the token of ranks, 16 characters or more; they take it from ``BOWSTRING_TOKEN`` too.
    :param tls_cert: certificate of driver and executors, a file on all of them.
    :param tls_key: its private key.
    :param ca: its CA, a file on all of them.
    :param client_ca: CA of clients, a file on all of them: driver and executors then accept callers with such a certificate only,
        which ranks give as ``cert`` and ``key`` of their ``storage_options``.
    :param cert: the certificate that tasks, and ranks of this process, show; a file on all of them.
    :param key: its private key.
    :param server_name: the name in the certificate, if it is not each host's address.
    :param insecure: be open to other machines without TLS.
    :param timeout: seconds for all ranks to arrive, once the rows are ready.
    :param patience: seconds that a rank may be silent before it counts as dead; a new process may take its place until then.
    :param attempts: most submissions of the job when a task or an executor fails.
    :param loader: other options of the ranks' loaders: ``columns``, ``nulls``, ``tail``, ... They are the same for all ranks. Every
        partition has a last step of its own, to which ``tail`` applies; the default is ``even``, which repeats no row, and ``pad``
        for JAX. In a partition with fewer rows than ranks each rank gets one, so that some are repeated.
    """
    world_size = whole("world_size", world_size, 1, (1 << 32) - 1)
    batch_size = whole("batch_size", batch_size, 1, 1 << 31)
    seed = whole("seed", seed, 0, 2 * MOST + 1)
    tasks = None if tasks is None else whole("tasks", tasks, 1, (1 << 31) - 1)
    memory = size(memory, "memory")
    timeout, patience = seconds("timeout", timeout), seconds("patience", patience)
    attempts = whole("attempts", attempts, 1, (1 << 31) - 1)
    for name in loader:
        if name in _OWN:
            raise ConfigError(f"option {name}: it is each rank's own, see connect()", option=name)
    # Before the frame is computed: ranks would see it only then.
    refuse(name for name in loader if name not in (*NAMES, *_OF_SOME))
    options = {"batch_size": batch_size, "seed": seed, "shuffle": shuffle, **loader}
    host, _ = split_listen(listen)
    wide = not is_loopback(host)
    _check_shown(client_ca, cert, key)
    tls = {"tls_cert": tls_cert, "tls_key": tls_key, "client_ca": client_ca}
    door = {"token": token, "insecure": insecure, **tls}
    server: dict[str, Any] = {"insecure": insecure, "shared_memory": not wide, **tls}
    if token is not None:
        server["tokens"] = [f"ranks:{token}"]
    client = {"token": token, "ca": ca, "cert": cert, "key": key, "server_name": server_name}
    storage = {name: str(value) for name, value in client.items() if value is not None}
    store = StoreOptions(memory, spill, "0.0.0.0:0" if wide else "127.0.0.1:0", server, storage)
    check_frame(df)
    if tasks is not None:
        df = _spread(df, tasks)
    meeting = Meeting(world_size, plain(options), timeout, patience)
    place = MeetingServer(meeting, listen, **door)
    return Handle(df, place, _reached(place.url, df.sparkSession), store, attempts)


def _spread(df: Any, tasks: int) -> Any:
    """The rows of a frame in ``tasks`` partitions, in the same order whenever Spark computes it.

    A shuffle yields rows as they arrive from other executors. Numbers that the rows have before it say in which order they were.
    """
    number = f"bowstring_{uuid.uuid4().hex}"
    numbered = df.selectExpr("*", f"monotonically_increasing_id() AS {number}")
    return numbered.repartition(tasks).sortWithinPartitions(number).drop(number)


def _check_shown(client_ca: Url | None, cert: Url | None, key: Url | None) -> None:
    """Refuses a hand-off whose own tasks would be rejected."""
    for name, given in (("cert", cert), ("key", key)):
        if given is None and (client_ca is not None or cert is not None or key is not None):
            problem = "tasks connect to the driver as clients: client_ca needs cert and key, which go together"
            raise ConfigError(f"option {name}: {problem}", option=name)


def _reached(url: str, session: Any) -> str:
    """The URL of this process with an address that executors can connect to, if it listens on all addresses."""
    scheme, _, at = url.partition("://")
    host, port = split_listen(at)
    if not is_everywhere(host):
        return url
    # Under Spark Connect, Spark's driver is the server, and this process is one of its clients.
    classic = hasattr(session, "_jsc")
    host = session.conf.get("spark.driver.host") if classic else own_address(session.client.host.strip("[]"))
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port}"


class Handle:
    """A running hand-off."""

    def __init__(self, df: Any, meeting: MeetingServer, url: str, store: StoreOptions, attempts: int) -> None:
        self._df = df
        self._meeting = meeting
        self._url = url
        self._attempts = attempts
        self._store = store
        self._tag = f"bowstring-{uuid.uuid4().hex}"
        self._job_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bowstring-serve", daemon=True)
        self._watch = threading.Thread(target=self._watched, name="bowstring-watch", daemon=True)
        self._thread.start()
        self._watch.start()

    @property
    def url(self) -> str:
        """The address for ranks."""
        return self._url

    def loader(self, rank: int, **options: Any) -> RankLoader:
        """The batches of one rank, in this process. Options are those of :func:`bowstring.spark.connect`."""
        from bowstring.spark.ranks import connect

        return connect(self.url, rank, storage_options=self._store.storage, **options)

    def wait(self, timeout: float | None = None) -> None:
        """Waits until all ranks are done and the job has ended.

        Raises :class:`bowstring.RemoteError` if a task, an executor or a rank was lost for good.
        """
        if not self._job_ended.wait(timeout):
            raise TimeoutError(f"ranks or tasks were still at work after {timeout} s")
        if self._meeting.failed is not None:
            raise RemoteError(f"the hand-off failed: {self._meeting.failed}")

    def close(self) -> None:
        """Ends it at once: tasks end, and unfinished ranks get an error."""
        self._meeting.fail("the driver closed it") if not self._meeting.over else None
        self._job_ended.wait(30)
        self._meeting.close()
        self._watch.join(10)

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _watched(self) -> None:
        while not self._meeting.wait(1.0):
            pass
        # Tasks end by themselves once they are told; those still computing do not listen.
        if self._meeting.failed is not None and not self._job_ended.wait(5):
            self._df.sparkSession.interruptTag(self._tag)

    def _run(self) -> None:
        session = self._df.sparkSession
        session.addTag(self._tag)
        try:
            for generation in range(self._attempts):
                self._meeting.change("begin", generation)
                work = _task(self._url, generation, self._store, stored_schema(self._df.schema))
                try:
                    ended = map_in_arrow(self._df, work, "parts int", barrier=True).collect()
                except Exception as error:
                    never = _refused(error)
                    if never is not None:
                        self._meeting.fail(never)
                        return
                    why = f"Spark's job failed: {_shortened(error)}"
                else:
                    why = "Spark's tasks ended before the ranks"
                    if not ended:  # a frame without partitions has no tasks: its ranks take no steps
                        self._meeting.change("post", generation, 0, 1, [], time.monotonic())
                        while not self._meeting.wait(60.0):
                            pass
                if self._meeting.over:
                    return
            self._meeting.fail(f"{why} (submitted {self._attempts} times, option attempts)")
        except BaseException as error:
            # `str`, since the `repr` of PySpark's own errors is empty.
            self._meeting.fail(f"the driver failed: {type(error).__name__}: {error}")
            raise
        finally:
            self._job_ended.set()


# By Spark's numbers for errors about barrier stages, which another attempt would repeat.
_REFUSALS = {
    "SPARK-24820": "a barrier stage cannot follow coalesce(), union(), limit() or whatever else changes the number of partitions "
    "without a shuffle; give serve(tasks=...), which repartitions the frame",
    "SPARK-24819": "the frame has more partitions than the cluster has slots, and all are served at once; give serve(tasks=...) "
    "with at most so many, or the cluster more cores",
    "SPARK-24815": "barrier stages need a fixed number of executors: set spark.dynamicAllocation.enabled to false",
}


# What Spark says of a job whose session is stopped, in the JVM and, once that is gone, in Python.
_STOPPED = ("SparkContext was shut down", "stopped SparkContext", "'NoneType' object has no attribute 'setCallSite'")

# Errors of bowstring's in tasks that come again with the same rows and options. Other errors may be those of a lost executor, and
# a user's own function may fail of something that passes.
_CERTAIN = re.compile(
    r"^bowstring\.errors\.((?:(?:Config|UnknownOption|Mismatch|Nulls|Unsupported)Error: |LimitError: rows of a task).*)$",
    re.M,
)


def _refused(error: Exception) -> str | None:
    """Why every attempt at the job would fail, and the remedy where Spark does not tell it; ``None`` if another one may help."""
    from pyspark.errors import AnalysisException

    text = str(error)
    refusal = next((f"Spark refuses the job: {told}" for number, told in _REFUSALS.items() if number in text), None)
    if refusal is not None:
        return refusal
    if any(told in text for told in _STOPPED):
        return "Spark's session was stopped before the ranks were done"
    if isinstance(error, AnalysisException):
        return f"Spark refuses the frame: {_shortened(error)}"
    certain = _CERTAIN.search(text)
    return None if certain is None else f"Spark's job failed: {certain[1][:500]}"


def _shortened(error: Exception) -> str:
    """The Python error of the task, or else the first lines of Spark's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "Error:" in line and not line.startswith(("at ", "org."))]
    return (told[-1] if told else " ".join(lines[:2]))[:500]


def _task(
    meeting: str, generation: int, options: StoreOptions, schema: pa.Schema
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The body of one task of the barrier stage."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        driver_host, _ = split_listen(meeting.partition("://")[2])
        host = "127.0.0.1" if is_loopback(driver_host) else own_address(driver_host)
        with Store(options, host) as store, Connection(meeting, options.storage, timeout=60) as driver:
            store.fill(schema, (conform(batch, schema) for batch in batches))
            mine = store.parts()
            # Without Spark's own barrier, which takes a second.
            place = {"task": context.partitionId(), "tasks": len(context.getTaskInfos())}
            driver.action("spark.post", {"generation": generation, **place, "parts": mine})
            _serve_until_over(driver, generation)
        yield pa.record_batch({"parts": pa.array([len(mine)], pa.int32())})

    return work


def _serve_until_over(driver: Connection, generation: int) -> None:
    missed = 0.0
    while True:
        asked = time.monotonic()
        try:
            if not driver.action("spark.task", {"generation": generation, "wait": _BEAT})["needed"]:
                return
            missed = 0.0
        except Error as error:
            missed += max(time.monotonic() - asked, 0.5)
            if missed > 30:
                raise RemoteError(f"the driver has not answered for {missed:.0f} s: {error}") from error
            time.sleep(0.5)
