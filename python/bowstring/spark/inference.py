"""A model over a data frame: one model per task, tensors in, columns out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bowstring.errors import ConfigError
from bowstring.inference.arrays import Model, predicted, rebatched, tensors
from bowstring.ranges import whole
from bowstring.spark.frame import check_frame, map_in_arrow
from bowstring.spark.types import arrow_schema

__all__ = ["predict"]


def predict(
    df: Any,
    model_fn: Callable[[], Model],
    *,
    batch_size: int,
    schema: str | Any,
    columns: Sequence[str] | None = None,
    device: str | None = None,
) -> Any:
    """The frame with columns that a model adds; rows, their order within partitions and all other columns stay.

    >>> def load():
    ...     model = torch.jit.load("model.pt").eval()
    ...     def run(batch):
    ...         with torch.inference_mode():
    ...             return {"score": model(batch["features"])[:, 0]}
    ...     return run
    >>> scored = bowstring.spark.predict(df, load, batch_size=256, schema="score float", device="cpu")  # doctest: +SKIP

    :param df: the frame.
    :param model_fn: called once in each task; returns the model, a function of ``{column: array}`` that returns
        ``{column: array}`` with as many rows, or one array if ``schema`` has one column. Numbers and lists of them of one
        length come as NumPy arrays, or with ``device`` as torch tensors; other columns as ``pyarrow.Array``.
    :param batch_size: rows passed to the model at once; the last batch of a task may have fewer.
    :param schema: the columns that it adds, as DDL (``"score float, embedding array<float>"``) or a ``StructType``.
    :param columns: columns passed to the model; all by default.
    :param device: the tensors' device: ``"cpu"``, ``"cuda"``, ``"gpu"`` for the GPU that Spark assigned to the task.
    """
    from pyspark.sql.types import StructType

    at_once = whole("batch_size", batch_size, 1, 1 << 31)
    check_frame(df)
    added = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
    if not isinstance(added, StructType):
        raise ConfigError(f"option schema: {schema!r} has no names; write e.g. 'score float'", option="schema")
    if not df.columns:
        raise ConfigError("option columns: the frame has none, and a model takes some", option="columns")
    there = {name.lower(): name for name in df.columns}
    for name in added.names:
        # Spark takes names that differ only in case for one.
        if (found := there.get(name.lower())) is not None:
            raise ConfigError(f"option schema: the frame has a column {found!r} already", option="schema")
    frame = StructType([*df.schema.fields, *added.fields])
    wanted = arrow_schema(added)
    names = None if columns is None else list(columns)

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        model: Model | None = None
        place = _device(device)
        for batch in rebatched(batches, at_once):
            if model is None:  # not for a partition without rows
                model = model_fn()
            made = predicted(model(tensors(batch, names, place)), batch.num_rows, wanted)
            fields = [*batch.schema, *made.schema]
            yield pa.RecordBatch.from_arrays([*batch.columns, *made.columns], schema=pa.schema(fields))

    return map_in_arrow(df, work, frame)


def _device(device: str | None) -> str | None:
    if device != "gpu":
        return device
    from pyspark import TaskContext

    context = TaskContext.get()
    gpus = context.resources().get("gpu") if context is not None else None
    if gpus is None:
        raise ConfigError(
            "option device: Spark gave this task no GPU; set spark.task.resource.gpu.amount", option="device"
        )
    return f"cuda:{gpus.addresses[0]}"
