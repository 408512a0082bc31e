"""Windows of consecutive rows."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bowstring.petastorm.unischema import Unischema, UnischemaField, match_unischema_fields

__all__ = ["NGram"]


class NGram:
    """Requests windows of rows that follow each other in time, within a row group.

    A reader with one yields ``{offset: row}``; each row has the fields requested at its offset.

    :param fields: offset -> fields (or regular expressions) to deliver at that offset. Offsets without fields deliver empty rows.
    :param delta_threshold: the largest time from one row to the next, inclusive.
    :param timestamp_field: the field (or a regular expression) that rows are sorted by.
    :param timestamp_overlap: permit windows that share rows.
    """

    def __init__(
        self,
        fields: dict[int, list[Any]],
        delta_threshold: Any,
        timestamp_field: UnischemaField | str,
        timestamp_overlap: bool = True,
    ) -> None:
        if not isinstance(fields, dict):
            raise ValueError("fields must be a dictionary from offsets to lists of fields")
        for names in fields.values():
            if not isinstance(names, list):
                raise ValueError("each value of fields must be a list of fields or regular expressions")
            if not all(isinstance(name, (str, UnischemaField)) for name in names):
                raise ValueError("a field is a UnischemaField or a regular expression")
        if not isinstance(delta_threshold, numbers.Number):
            raise ValueError(f"delta_threshold must be a number, got {delta_threshold!r}")
        if not isinstance(timestamp_field, (str, UnischemaField)):
            raise ValueError("timestamp_field must be a UnischemaField or a regular expression")
        if not isinstance(timestamp_overlap, bool):
            raise ValueError(f"timestamp_overlap must be True or False, got {timestamp_overlap!r}")
        self._fields: dict[int, list[Any]] = fields
        self._delta_threshold = delta_threshold
        self._timestamp_field: Any = timestamp_field
        self.timestamp_overlap = timestamp_overlap

    @property
    def length(self) -> int:
        """Rows in a window."""
        return max(self._fields) - min(self._fields) + 1

    @property
    def fields(self) -> dict[int, list[Any]]:
        """Fields by offset."""
        return self._fields

    @property
    def delta_threshold(self) -> Any:
        """The largest time from one row to the next."""
        return self._delta_threshold

    @property
    def timestamp_name(self) -> str:
        """The name of the field that rows are sorted by, once regular expressions are resolved."""
        return str(self._timestamp_field.name)

    def convert_fields(self, unischema: Unischema, field_list: Sequence[Any]) -> list[UnischemaField]:
        """The fields themselves, then those that the regular expressions match."""
        patterns = [field for field in field_list if isinstance(field, str)]
        exact: list[Any] = [field for field in field_list if isinstance(field, tuple)]
        if len(patterns) + len(exact) != len(field_list):
            raise ValueError("a field is a UnischemaField or a regular expression")
        return [*exact, *match_unischema_fields(unischema, patterns)]

    def resolve_regex_field_names(self, schema: Unischema) -> None:
        """Replaces regular expressions by the fields of ``schema`` that they match."""
        self._fields = {offset: self.convert_fields(schema, fields) for offset, fields in self._fields.items()}
        found = self.convert_fields(schema, [self._timestamp_field])
        if len(found) != 1:
            names = ", ".join(field.name for field in found) or "no field"
            raise ValueError(f"timestamp_field must be one field, {self._timestamp_field!r} matches {names}")
        self._timestamp_field = found[0]

    def get_field_names_at_timestep(self, timestep: int) -> list[str]:
        """Names of the fields at an offset."""
        return [field.name for field in self._fields.get(timestep, [])]

    def get_field_names_at_all_timesteps(self) -> list[Any]:
        """The fields of all offsets, each once."""
        return list(dict.fromkeys(field for fields in self._fields.values() for field in fields))

    def get_schema_at_timestep(self, schema: Unischema, timestep: int) -> Unischema:
        """The part of ``schema`` at an offset."""
        wanted = set(self.get_field_names_at_timestep(timestep))
        return schema.create_schema_view([field for name, field in schema.fields.items() if name in wanted])

    def offsets(self) -> range:
        """All offsets, including those in between without requested fields."""
        return range(min(self._fields), max(self._fields) + 1)

    def starts(self, timestamps: Sequence[Any]) -> list[int]:
        """First rows of windows within a row group.

        :raises NotImplementedError: if the rows are not sorted.
        """
        count, length = len(timestamps), self.length
        if count < length:
            return []
        times = np.asarray(timestamps)
        if times.dtype.kind in "iu":
            # Differences must not wrap around.
            wide = times.dtype == np.uint64 or int(times.max()) - int(times.min()) >= 1 << 63
            times = times.astype(object if wide else np.int64)
        # Not any(<), which is false beside NaN.
        if length > 1 and not (times[1:] >= times[:-1]).all():
            raise NotImplementedError(
                f"an NGram needs row groups sorted by {self.timestamp_name}; this one is not: sort before writing"
            )
        # broken[i]: the step from row i to row i + 1 is too long; a window must not hold one.
        broken = np.concatenate([[0], np.cumsum(np.asarray(np.diff(times) > self._delta_threshold, dtype=np.int64))])
        whole = np.flatnonzero(broken[length - 1 :] == broken[: count - length + 1])
        return whole.tolist() if self.timestamp_overlap else self._disjoint(whole, times)

    def _disjoint(self, starts: npt.NDArray[Any], times: npt.NDArray[Any]) -> list[int]:
        chosen: list[int] = []
        for start in starts.tolist():
            if not chosen or times[start] > times[chosen[-1] + self.length - 1]:
                chosen.append(start)
        return chosen

    def form_ngram(self, data: Sequence[Mapping[str, Any]], schema: Unischema) -> list[dict[int, dict[str, Any]]]:
        """The windows of a list of rows."""
        names = {offset: set(self.get_field_names_at_timestep(offset)) for offset in self.offsets()}
        base = min(self._fields)
        return [
            {
                offset: {name: value for name, value in data[start + offset - base].items() if name in names[offset]}
                for offset in self.offsets()
            }
            for start in self.starts([row[self.timestamp_name] for row in data])
        ]

    def make_namedtuple(self, schema: Unischema, ngram_as_dicts: Mapping[int, Mapping[str, Any]]) -> dict[int, Any]:
        """A window with rows in place of dictionaries."""
        return {
            offset: self.get_schema_at_timestep(schema, offset).make_namedtuple(**row)
            for offset, row in ngram_as_dicts.items()
        }

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, NGram)
            and self.fields.keys() == other.fields.keys()
            and all(set(fields) == set(other.fields[offset]) for offset, fields in self.fields.items())
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]  # its fields change when regular expressions are resolved
