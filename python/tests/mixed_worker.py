"""Does what a test asks with the package that is on its path: a line of JSON in, a line of JSON out.

It runs with the package of a former version too, so it uses what both have.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Callable
from itertools import islice
from typing import Any

import bowstring
import numpy as np

CALLS: dict[str, Callable[..., Any]] = {}


def call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function of this module a call."""
    CALLS[function.__name__] = function
    return function


class Held:
    """What calls keep for later ones."""

    loader: Any = None
    batches: Any = None
    gang: Any = None
    model: Any = None


def gangs() -> Any:
    """The class of gangs, where this version has it."""
    try:
        from bowstring.flight import Gang
    except ImportError:
        Gang = bowstring.Gang
    return Gang


def connection(url: str) -> Any:
    from bowstring.flight import Connection

    return Connection(url, timeout=60)


def values(column: Any) -> bytes:
    """What a column of a batch holds, as bytes that are the same for the same values."""
    is_array = isinstance(column, np.ndarray)
    if not is_array or column.dtype == object:
        return json.dumps(column.tolist() if is_array else column.to_pylist(), default=repr).encode()
    array = np.asarray(column)
    return f"{array.dtype}{array.shape}".encode() + array.tobytes()


def told(batch: Any) -> dict[str, Any]:
    """A batch as what can be compared: its rows, and a digest of all columns."""
    digest = hashlib.sha256()
    for name in sorted(batch):
        digest.update(name.encode() + values(batch[name]))
    rows = batch["_row_id"].tolist() if "_row_id" in batch else []
    mask = batch["_mask"].tolist() if "_mask" in batch and rows else [True] * len(rows)
    return {"rows": [row for row, real in zip(rows, mask, strict=True) if real], "digest": digest.hexdigest()[:16]}


@call
def version() -> str:
    return str(bowstring.__version__)


@call
def has(*names: str) -> bool:
    found = bowstring
    for name in names:
        found = getattr(found, name, None)
    return found is not None


@call
def load(url: str, in_gang: bool = False, **options: Any) -> dict[str, Any]:
    if in_gang:
        options["gang"] = Held.gang
    Held.loader = bowstring.Loader(url, timeout=40, **options)
    Held.batches = None
    return {"steps": len(Held.loader), "state": Held.loader.state_dict()}


@call
def batches(count: int | None = None) -> list[dict[str, Any]]:
    if Held.batches is None:
        Held.batches = iter(Held.loader)
    found = [told(batch) for batch in islice(Held.batches, count)]
    if count is None or len(found) < count:
        Held.batches = None
    return found


@call
def state() -> Any:
    return Held.loader.state_dict()


@call
def resume(state: Any) -> None:
    Held.loader.load_state_dict(state)
    Held.batches = None


@call
def cache_counts() -> Any:
    return Held.loader.stats()["cache"]


@call
def counts() -> Any:
    found = Held.loader.stats()
    return json.loads(json.dumps(dict(found), default=repr))


@call
def certificate() -> Any:
    return Held.loader.certificate(b"0123456789abcdef")


@call
def audit(certificates: list[Any]) -> Any:
    return bowstring.audit(certificates, key=b"0123456789abcdef")


@call
def join(url: str, name: str, **options: Any) -> dict[str, Any]:
    Held.gang = gangs()(url, name, timeout=40, **options)
    return {"generation": Held.gang.generation, "resume": Held.gang.resume}


@call
def ack(epoch: int, step: int) -> str:
    return str(Held.gang.ack(epoch, step))


@call
def barrier() -> None:
    Held.gang.barrier(40)


@call
def gather(message: str) -> list[str]:
    return [message.decode() for message in Held.gang.all_gather(message.encode(), 40)]


@call
def members() -> list[Any]:
    return [[member.rank, member.device] for member in Held.gang.members()]


@call
def check() -> None:
    Held.gang.check()


@call
def leave() -> None:
    Held.loader = Held.batches = None
    Held.gang.leave()


@call
def fail() -> None:
    Held.loader = Held.batches = None
    Held.gang._native.leave("it was lost")


@call
def put(url: str, dataset: str, ids: list[int], mode: str = "create", end: str = "commit") -> Any:
    import pyarrow as pa
    from bowstring.flight import attempt_of

    batch = pa.record_batch({"id": pa.array(ids, pa.int64()), "text": [f"row {at}" for at in ids]})
    write = f"w-{ids[0]}"
    with connection(url) as client:
        staged = client.put(attempt_of(dataset, write, 0, 0), batch.schema, [batch])
        if end == "commit":
            return client.commit(dataset, write, mode, [staged["token"]])
        client.abort(dataset, write)
        return staged["rows"]


@call
def stored(url: str, dataset: str, **options: Any) -> list[int]:
    with connection(url) as client:
        return [row for batch in client.rows(dataset, **options) for row in batch["id"].to_pylist()]


@call
def exists(url: str, dataset: str) -> bool:
    with connection(url) as client:
        return bool(client.exists(dataset))


@call
def drop(url: str, dataset: str) -> bool:
    with connection(url) as client:
        return bool(client.drop(dataset))


@call
def action(url: str, name: str, body: Any) -> Any:
    with connection(url) as client:
        return client.action(name, body)


@call
def serve_model() -> str:
    from bowstring.inference import serve_model

    Held.model = serve_model(lambda batch: {"double": batch["id"] * 2}, batch_size=16, deadline_ms=5)
    return str(Held.model.url)


@call
def predict(url: str, ids: list[int]) -> list[int]:
    import pyarrow as pa
    from bowstring.inference import ModelClient

    with ModelClient(url) as client:
        asked = [client.submit(pa.record_batch({"id": pa.array([row], pa.int64())})) for row in ids]
        return [answer.result(40)["double"][0].as_py() for answer in asked]


@call
def write(path: str, ids: list[int]) -> None:
    import pyarrow as pa

    table = pa.table({"id": pa.array(ids, pa.int64()), "text": [f"row {at}" for at in ids]})
    with bowstring.DatasetWriter(path, table.schema) as writer:
        writer.write(table)


@call
def save(url: str, text: str, **options: Any) -> None:
    with bowstring.open(url, "wb", **options) as file:
        file.write(text.encode())


@call
def read(url: str, **options: Any) -> str:
    with bowstring.open(url, **options) as file:
        return bytes(file.read()).decode()


def main() -> None:
    # Libraries may print: answers go where nothing else does.
    answers, sys.stdout = sys.stdout, sys.stderr
    threading.current_thread().name = "worker"
    for line in sys.stdin:
        name, arguments, named = json.loads(line)
        try:
            answer: dict[str, Any] = {"ok": CALLS[name](*arguments, **named)}
        except Exception as error:
            answer = {"error": [type(error).__name__, str(error)]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
