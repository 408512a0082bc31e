"""The schema of a dataset: fields with an element type, a shape and a codec."""

from __future__ import annotations

import re
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Iterable, MutableMapping
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bowstring.petastorm._lazy import needed

if TYPE_CHECKING:
    from bowstring.petastorm.codecs import DataframeColumnCodec

__all__ = ["Unischema", "UnischemaField", "dict_to_spark_row", "insert_explicit_nulls", "match_unischema_fields"]


class UnischemaField(NamedTuple):
    """One field. Two fields are equal if all but their codecs are."""

    name: str
    numpy_dtype: Any
    """NumPy's scalar class (``np.uint8``), or ``decimal.Decimal``."""
    shape: tuple[int | None, ...]
    """``()`` for a scalar; ``None`` for an axis whose length varies from row to row."""
    codec: DataframeColumnCodec | None = None
    """Codec of the stored value; ``None`` for a plain Parquet value."""
    nullable: bool | None = False

    def _identity(self) -> tuple[Any, ...]:
        return (self.name, self.numpy_dtype, self.shape, self.nullable)

    def __eq__(self, other: object) -> bool:
        # Duck-typed, so that fields made by Petastorm itself compare as well.
        fields = ("name", "numpy_dtype", "shape", "nullable")
        return all(hasattr(other, field) and getattr(self, field) == getattr(other, field) for field in fields)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._identity())


@cache
def _row_type(schema_name: str, names: tuple[str, ...]) -> Any:
    """One type per schema and fields, so that rows of two readers can be compared and concatenated."""
    return namedtuple(f"{schema_name}_view", names)


class Unischema:
    """A named, ordered set of fields. Each field is an attribute as well: ``schema.image``."""

    def __init__(self, name: str, fields: Iterable[UnischemaField]) -> None:
        self._name = name
        self._fields = OrderedDict((field.name, field) for field in fields)
        for field in self._fields.values():
            if hasattr(self, field.name):
                warnings.warn(
                    f"Can not create dynamic property {field.name}: the field hides behind a member of Unischema; use fields[]",
                    stacklevel=2,
                )
            else:
                setattr(self, field.name, field)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @property
    def fields(self) -> OrderedDict[str, UnischemaField]:
        """Name to field, in order."""
        return self._fields

    def create_schema_view(self, fields: Iterable[Any]) -> Unischema:
        """The schema of some fields: :class:`UnischemaField` objects first, then those that a regular expression matches whole."""
        fields = list(fields)
        patterns = [field for field in fields if isinstance(field, str)]
        exact: list[Any] = [field for field in fields if isinstance(field, tuple)]
        if len(patterns) + len(exact) != len(fields):
            raise ValueError(
                "a field must be either a string, which is a regular expression, or a UnischemaField; got something else"
            )
        unknown = sorted({field.name for field in exact} - self._fields.keys())
        if unknown:
            raise ValueError(f"field {', '.join(unknown)} does not belong to the schema {self}")
        # The stored field counts, not the codec and shape of the object that was passed.
        chosen = [self._fields[field.name] for field in exact]
        return Unischema(f"{self._name}_view", chosen + match_unischema_fields(self, patterns))

    def _get_namedtuple(self) -> Any:
        return _row_type(self._name, tuple(self._fields))

    def make_namedtuple(self, **kargs: Any) -> Any:
        """A row from values by name."""
        return self._get_namedtuple()(**kargs)

    def make_namedtuple_tf(self, *args: Any, **kargs: Any) -> Any:
        """A row from values by position or name."""
        return self._get_namedtuple()(*args, **kargs)

    def as_spark_schema(self) -> Any:
        """The same as a ``pyspark.sql.types.StructType``."""
        types = needed("pyspark.sql.types", "as_spark_schema()")
        return types.StructType(
            [types.StructField(field.name, _spark_type(field), bool(field.nullable)) for field in self._fields.values()]
        )

    @classmethod
    def from_arrow_schema(cls, parquet_dataset: Any, omit_unsupported_fields: bool = True) -> Unischema:
        """The schema of plain Parquet, from a ``pyarrow.Schema`` or anything that has one as ``schema``.

        Columns that Petastorm does not read are left out with a warning, or raise :class:`ValueError`.
        """
        from bowstring.petastorm._infer import from_arrow

        return from_arrow(getattr(parquet_dataset, "schema", parquet_dataset), omit_unsupported_fields)

    def __str__(self) -> str:
        lines = (
            f"  {type(field).__name__}({field.name!r}, {field.numpy_dtype.__name__}, {field.shape}, {field.codec},"
            f" {field.nullable}),\n"
            for field in self._fields.values()
        )
        return f"{type(self).__name__}({self._name}, [\n{''.join(lines)}])"


def match_unischema_fields(schema: Unischema, field_regex: Iterable[str]) -> list[UnischemaField]:
    """The fields that any of the regular expressions matches whole, in the schema's order."""
    patterns = list(field_regex or ())
    whole = [field for name, field in schema.fields.items() if any(re.fullmatch(p, name) for p in patterns)]
    begun = [field for name, field in schema.fields.items() if any(re.match(p, name) for p in patterns)]
    if len(whole) != len(begun):
        names = {field.name for field in begun} ^ {field.name for field in whole}
        warnings.warn(
            f"a regular expression must match the whole name; {', '.join(sorted(names))} only begin with one",
            stacklevel=2,
        )
    return whole


def insert_explicit_nulls(unischema: Unischema, row_dict: MutableMapping[str, Any]) -> None:
    """Sets nullable fields that ``row_dict`` lacks to ``None``; :class:`ValueError` for others."""
    for name, field in unischema.fields.items():
        if name not in row_dict:
            if not field.nullable:
                raise ValueError(f"field {name} is missing and not nullable")
            row_dict[name] = None


def dict_to_spark_row(unischema: Unischema, row_dict: MutableMapping[str, Any]) -> Any:
    """Encodes a row and returns it as a ``pyspark.Row`` in the schema's order."""
    pyspark = needed("pyspark", "dict_to_spark_row()")
    assert isinstance(unischema, Unischema)
    row = dict(row_dict)
    insert_explicit_nulls(unischema, row)
    if row.keys() != unischema.fields.keys():
        unknown = ", ".join(sorted(row.keys() - unischema.fields.keys()))
        raise ValueError(f"{unknown} are not fields of the schema; it has {', '.join(unischema.fields)}")
    encoded = pyspark.Row(*(_encoded(field, row[name]) for name, field in unischema.fields.items()))
    encoded.__fields__ = list(unischema.fields)
    return encoded


def _encoded(field: UnischemaField, value: Any) -> Any:
    if value is None:
        if not field.nullable:
            raise ValueError(f"field {field.name} is not nullable, but the value is None")
        return None
    if field.codec is not None:
        return field.codec.encode(field, value)
    return value.tolist() if isinstance(value, np.generic) else value


# By the class of the element; Spark has no unsigned integers, so these take the next larger type.
_SPARK = {
    np.int8: "ByteType",
    np.uint8: "ShortType",
    np.int16: "ShortType",
    np.uint16: "IntegerType",
    np.int32: "IntegerType",
    np.int64: "LongType",
    np.float32: "FloatType",
    np.float64: "DoubleType",
    np.bytes_: "StringType",
    np.str_: "StringType",
    np.bool_: "BooleanType",
}


def _spark_type(field: UnischemaField) -> Any:
    if field.codec is not None:
        return field.codec.spark_dtype()
    if field.shape != ():
        raise ValueError(f"field {field.name!r} is an array and has codec set to None; name one, e.g. NdarrayCodec()")
    name = _SPARK.get(field.numpy_dtype)
    if name is None:
        hint = "ScalarCodec(DecimalType(...))" if field.numpy_dtype is Decimal else "a ScalarCodec"
        raise ValueError(
            f"Was not able to map type {field.numpy_dtype} of field {field.name!r}: it has no Spark type of its own; give it {hint}"
        )
    return getattr(needed("pyspark.sql.types", "a Spark schema"), name)()
