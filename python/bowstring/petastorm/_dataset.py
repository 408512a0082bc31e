"""A dataset opened for a reader: its schema, its row groups in Petastorm's order, and the selection of them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from bowstring.petastorm import _metadata
from bowstring.petastorm._plan import sharded
from bowstring.petastorm._source import Location, numbered, partition_values
from bowstring.petastorm.etl import RowGroupIndexerBase
from bowstring.petastorm.ngram import NGram
from bowstring.petastorm.predicates import PredicateBase
from bowstring.petastorm.selectors import RowGroupSelectorBase
from bowstring.petastorm.unischema import Unischema

__all__ = ["Dataset", "view", "wanted"]


class Dataset:
    """The metadata of a dataset, before any row is read."""

    def __init__(self, location: Location) -> None:
        self.location = location
        single = isinstance(location.urls, str)
        options: Mapping[str, str] = location.options.get("storage_options") or {}
        self.metadata = _metadata.load(str(location.urls), options) if single else None
        self._inferred: Unischema | None = None

    @property
    def is_petastorm(self) -> bool:
        """True if Petastorm wrote a schema."""
        return self.metadata is not None

    @property
    def schema(self) -> Unischema:
        """The schema that Petastorm wrote, or would derive from the Parquet files."""
        if self.metadata is not None:
            return self.metadata.schema
        if self._inferred is None:
            self._inferred = self.location.infer()
        return self._inferred

    def indexes(self) -> dict[str, RowGroupIndexerBase]:
        """The stored indexes of row groups by name."""
        if self.metadata is None or not self.metadata.indexes:
            raise ValueError("the dataset has no index of row groups; build one with build_rowgroup_index")
        return self.metadata.indexes


def view(schema: Unischema, schema_fields: Any) -> tuple[Unischema, NGram | None]:
    """The requested fields, and the NGram if there is one."""
    if isinstance(schema_fields, NGram):
        schema_fields.resolve_regex_field_names(schema)
        fields = schema_fields.get_field_names_at_all_timesteps()
        # Refuses fields that the dataset lacks.
        chosen = schema.create_schema_view(fields).fields
        fields = [field for name, field in schema.fields.items() if name in chosen]
        return schema.create_schema_view(fields) if fields else schema, schema_fields
    if schema_fields is None:
        return schema, None
    try:
        fields = list(schema_fields)
    except TypeError:
        raise ValueError(
            "schema_fields must be None, a collection of fields and regular expressions, or an NGram"
        ) from None
    if not fields:
        return schema, None
    found = schema.create_schema_view(fields)
    if not found.fields:
        raise RuntimeError(
            f"No fields matching the criteria {schema_fields!r}: no field of the dataset matches; it has {', '.join(schema.fields)}"
        )
    return found, None


def _by_partition(groups: list[tuple[str, int, int]], predicate: PredicateBase, schema: Unischema) -> list[int] | None:
    """The row groups that a predicate on the partition column accepts; ``None`` if it uses anything else."""
    partitions = partition_values(groups)
    fields = set(predicate.get_fields())
    if not partitions or fields != set(partitions):
        return None
    if len(partitions) != 1:
        return None  # by row, as for any other column
    ((name, values),) = partitions.items()
    dtype = schema.fields[name].numpy_dtype
    known = {
        value: bool(predicate.do_include({name: value if value is None else dtype(value)})) for value in set(values)
    }
    return [group for group, value in enumerate(values) if known[value]]


def _selected(
    dataset: Dataset, selector: Any, groups: list[tuple[str, int, int]], counts: Mapping[str, int]
) -> set[int]:
    """The row groups that a selector chooses, by their numbers in ``groups``; ``counts`` are those of the files' footers."""
    if not isinstance(selector, RowGroupSelectorBase):
        raise ValueError("rowgroup_selector must be derived from RowGroupSelectorBase")
    indexes = dataset.indexes()
    missing = set(selector.get_index_names()) - indexes.keys()
    if missing:
        raise ValueError(f"the dataset has no index {', '.join(sorted(missing))}; it has {', '.join(indexes)}")
    ordinals = set(selector.select_row_groups(indexes))
    stored = dataset.metadata.row_group_counts if dataset.metadata is not None else None
    total = sum(counts.values())
    if (stored is not None and stored != counts) or any(number >= total for number in ordinals):
        raise ValueError(
            "the index of row groups was made when the dataset had other files: its numbers mean other row groups now; "
            "build it anew with build_rowgroup_index"
        )
    # The index counts row groups without rows too.
    first = numbered(counts)
    return {at for at, (path, ordinal, _) in enumerate(groups) if first[path] + ordinal in ordinals}


def wanted(
    dataset: Dataset,
    groups: list[tuple[str, int, int]],
    counts: Mapping[str, int],
    *,
    predicate: Any,
    selector: Any,
    cur_shard: Any,
    shard_count: Any,
    seed: int | None,
) -> tuple[list[int], PredicateBase | None]:
    """The row groups to read, by their numbers in ``groups``, and the predicate if it still has to examine rows.

    ``counts`` gives the number of row groups of each file.
    """
    order = (
        [group for group, (_, _, rows) in enumerate(groups) if rows]
        if dataset.location.options.get("filter")
        else (list(range(len(groups))))
    )
    # As in Petastorm, filters come before the numbers that deal row groups to shards; predicates and selectors after them.
    numbers = {group: at for at, group in enumerate(order)}
    left: PredicateBase | None = None
    if predicate:
        if not isinstance(predicate, PredicateBase):
            raise ValueError("predicate must be derived from PredicateBase")
        left = predicate
        by_partition = _by_partition(groups, predicate, dataset.schema)
        if by_partition is not None:
            kept, left = set(by_partition), None
            order = [group for group in order if group in kept]
    if selector:
        kept = _selected(dataset, selector, groups, counts)
        order = [group for group in order if group in kept]
    if cur_shard is not None or shard_count is not None:
        order = sharded(order, numbers, cur_shard, shard_count, seed)
    if not order:
        warnings.warn(
            "No matching data is available for loading: predicate, selector and shard leave no row group, and the reader is empty",
            stacklevel=5,
        )
    return order, left
