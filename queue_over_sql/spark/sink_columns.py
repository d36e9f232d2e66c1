"""Converts the columns of a DataFrame to those of a queue, with the checks of `publish`."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark
from sqlalchemy import (
    TEXT,
    VARCHAR,
    Boolean,
    Date,
    DateTime,
    Float,
    Integer,
    LargeBinary,
    Numeric,
    String,
    Text,
)

from queue_over_sql import inside
from queue_over_sql.errors import PayloadInvalid, PayloadTooLarge, no_groups
from queue_over_sql.inside.columns import AT, DELAY, EXPIRES, encode_headers
from queue_over_sql.values.json_text import check_json_text
from queue_over_sql.values.limits import GROUP_LENGTH, KEY_LENGTH, KIND_LENGTH, MAX_HEADERS_BYTES
from queue_over_sql.values.options import GROUP_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlalchemy import Column

    from queue_over_sql import Queue
    from queue_over_sql.inside import QueueTables


PAYLOAD: Final = "payload"
_ALIASES: Final = {"value": PAYLOAD}
_DURATION: Final = (spark.NumericType, spark.DayTimeIntervalType)
_TEXT: Final = (spark.StringType, spark.BinaryType)


class _Accepted(NamedTuple):
    types: tuple[type, ...]
    expected: str
    stored: str


_ACCEPTED: Final[Mapping[str, _Accepted]] = {
    PAYLOAD: _Accepted(
        _TEXT,
        "a string or binary; convert other columns to JSON with to_json(struct(...))",
        "payload",
    ),
    "key": _Accepted(_TEXT, "a string", "message_key"),
    "kind": _Accepted((spark.StringType,), "a string", "kind"),
    "group": _Accepted((spark.StringType,), "a string", GROUP_KEY),
    "headers": _Accepted(
        (spark.MapType, spark.StringType, spark.ArrayType),
        "a map of strings, the text of a JSON object, or an array of key and value",
        "headers",
    ),
    "priority": _Accepted((spark.IntegralType,), "a whole number", "priority"),
    "delay": _Accepted(_DURATION, "seconds, or an interval of days to seconds", DELAY),
    "at": _Accepted((spark.TimestampType,), "a timestamp with a time zone", AT),
    "lease": _Accepted(_DURATION, "seconds, or an interval of days to seconds", "lease_us"),
    "expires": _Accepted(_DURATION, "seconds, or an interval of days to seconds", EXPIRES),
    "max_attempts": _Accepted((spark.IntegralType,), "a whole number", "max_attempts"),
}
"""The columns that every queue accepts, their types, and the columns that store them."""

_NUMBER: Final = (spark.NumericType,)
_OWN: Final[tuple[tuple[type[Any], tuple[type, ...], str], ...]] = (
    (Boolean, (spark.BooleanType,), "a boolean"),
    (Integer, (spark.IntegralType,), "a whole number"),
    (Float, _NUMBER, "a number"),
    (Numeric, (spark.IntegralType, spark.DecimalType), "a decimal"),
    (String, (spark.StringType,), "a string"),
    (LargeBinary, (spark.BinaryType,), "binary"),
    (DateTime, (spark.TimestampType, spark.TimestampNTZType), "a timestamp"),
    (Date, (spark.DateType,), "a date"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class ColumnPlan:
    """How to convert the column ``source`` of a DataFrame.

    ``role`` is a key of the accepted columns, or a queue's own column.
    """

    source: str
    role: str
    own: bool = False


def plan_of(schema: spark.StructType, tables: QueueTables) -> tuple[ColumnPlan, ...]:
    """Find the role of each column of a DataFrame; ValueError or TypeError names a wrong one."""
    plans = [_plan(field, tables) for field in schema.fields]
    found: dict[str, str] = {}
    for plan in plans:
        if plan.role in found:
            both = f"columns {found[plan.role]} and {plan.source}"
            msg = f"{both} are both used as the {plan.role}: drop one of them"
            raise ValueError(msg)
        found[plan.role] = plan.source
    _check_complete(found, tables)
    return tuple(plans)


def _plan(field: spark.StructField, tables: QueueTables) -> ColumnPlan:
    name = field.name.lower()
    if name in tables.users_columns:
        _check_own(field, tables.live.c[name])
        return ColumnPlan(field.name, name, own=True)
    role = _ALIASES.get(name, name)
    if role not in _ACCEPTED:
        raise ValueError(_unknown(field.name, tables))
    types, expected, _ = _ACCEPTED[role]
    if not isinstance(field.dataType, types) or not _elements_fit(field.dataType):
        raise TypeError(_misfit(field, expected))
    if role == "group" and not tables.grouped:
        msg = f"column {field.name}: {no_groups(tables.queue)}"
        raise ValueError(msg)
    return ColumnPlan(field.name, role)


def _check_own(field: spark.StructField, column: Column[object]) -> None:
    for family, types, expected in _OWN:
        if isinstance(column.type, family):
            if not isinstance(field.dataType, types):
                raise TypeError(_misfit(field, expected))
            return
    if not isinstance(field.dataType, spark.AtomicType):
        raise TypeError(_misfit(field, "a plain type"))


def _elements_fit(kind: spark.DataType) -> bool:
    if isinstance(kind, spark.MapType):
        return isinstance(kind.keyType, spark.StringType) and isinstance(kind.valueType, _TEXT)
    if isinstance(kind, spark.ArrayType):
        element = kind.elementType
        if not isinstance(element, spark.StructType) or element.names != ["key", "value"]:
            return False
        return all(isinstance(part.dataType, _TEXT) for part in element.fields)
    return True


def _check_complete(found: Iterable[str], tables: QueueTables) -> None:
    there, live = set(found), tables.live.c
    if PAYLOAD not in there:
        msg = "the DataFrame has no column payload (or value), which is required"
        raise ValueError(msg)
    missing = [n for n in tables.own_columns if not live[n].nullable and n not in there]
    if missing:
        msg = f"queue {tables.queue!r} requires values for its column {', '.join(missing)}"
        raise ValueError(msg)


def _unknown(name: str, tables: QueueTables) -> str:
    known = [*_ACCEPTED, *_ALIASES, *tables.users_columns]
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.7)
    hint = f": did you mean {near[0]}?" if near else ": drop it, or select the columns to write."
    return (
        f"queue {tables.queue!r} does not accept the column {name}{hint} It accepts: "
        f"{', '.join([*_ACCEPTED, *tables.users_columns])}."
    )


def _misfit(field: spark.StructField, expected: str) -> str:
    return f"column {field.name} must be {expected}, not {field.dataType.simpleString()}"


_SECOND: Final = 1_000_000
_LONGEST_US: Final = 365_250 * 86_400 * _SECOND
# Python can always read JSON with fewer nested levels than this.
_DEPTH: Final = 400
_LARGEST_ATTEMPTS: Final = 2**31 - 1


class Encoder:
    """Encodes the batches of one partition for one queue; ``columns`` are the resulting columns."""

    def __init__(self, queue: Queue, plans: Sequence[ColumnPlan]) -> None:
        self._plans = plans
        self._tables = inside.tables(queue)
        self._settings = queue.settings
        self.columns = tuple(
            plan.role if plan.own else _ACCEPTED[plan.role].stored for plan in plans
        )
        self._row = 0
        named = next((plan.source for plan in plans if plan.role == "payload"), "payload")
        self._null_payload = "" if named == "payload" else f": column {named} is NULL"
        self._encoders: Mapping[str, Callable[[Any], Any]] = {
            "payload": self._payload,
            "key": lambda column: self._name(column, "key", KEY_LENGTH),
            "kind": lambda column: self._name(column, "kind", KIND_LENGTH),
            "group": lambda column: self._name(column, "group", GROUP_LENGTH, least=0),
            "headers": self._headers,
            "priority": self._priority,
            "delay": lambda column: self._duration(column, "delay", least=0),
            "at": lambda column: column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()),
            "lease": lambda column: self._duration(column, "lease", least=1),
            "expires": lambda column: self._duration(column, "expires", least=1),
            "max_attempts": self._attempts,
        }

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Check the next batch and encode it.

        Raises as ``publish`` does; the message names the first row that cannot be published.
        """
        encoded = [
            self._own(column, plan.role) if plan.own else self._encoders[plan.role](column)
            for column, plan in zip(batch.columns, self._plans, strict=True)
        ]
        result = pa.RecordBatch.from_arrays(encoded, list(self.columns))
        if DELAY in self.columns and AT in self.columns:
            both = pc.and_(result.column(DELAY).is_valid(), result.column(AT).is_valid())
            self._refuse(both, "has both delay and at: use one of them")
        self._check_expiry(result)
        self._row += batch.num_rows
        return result

    def _check_expiry(self, batch: pa.RecordBatch) -> None:
        usual = pa.scalar(self._settings.expires_us, pa.int64())
        if DELAY not in self.columns or not (EXPIRES in self.columns or usual.is_valid):
            return
        expires = batch.column(EXPIRES) if EXPIRES in self.columns else usual
        late = pc.greater_equal(batch.column(DELAY), pc.coalesce(expires, usual))
        self._refuse(late, "would expire before it is due: its delay is not below its expires")

    # -- content

    def _payload(self, column: Any) -> Any:
        self._refuse(column.is_null(), f"has no payload{self._null_payload}")
        settings = self._settings
        largest, limit = pc.max(pc.binary_length(column)).as_py(), settings.max_payload_bytes
        if largest is not None and largest > limit:
            raise PayloadTooLarge("payload", largest, limit)
        if settings.payload == "bytes":
            return column.cast(pa.binary())
        texts = self._text(column, "payload")
        if settings.payload == "json":
            self._check_json(texts)
        elif not self._tables.features.nul_in_text:
            nul = pc.match_substring(texts, "\0")
            self._refuse(nul, "contains a NUL character, which this database cannot store in text")
        return texts

    def _check_json(self, texts: Any) -> None:
        if not self._tables.features.checks_json:
            doubtful: Sequence[int] = range(len(texts))
        else:
            doubtful = self._deep(texts)
            if self._tables.features.doubtful_json is not None:
                strange = pc.match_substring_regex(texts, self._tables.features.doubtful_json)
                doubtful = sorted({*doubtful, *_true(strange)})
        for index in doubtful:
            what = f"payload of row {self._row + index} of its partition"
            check_json_text(texts[index].as_py(), what)

    def _deep(self, texts: Any) -> Sequence[int]:
        if not len(texts) or pc.max(pc.binary_length(texts)).as_py() < _DEPTH:
            return []
        depth = pc.add(pc.count_substring(texts, "["), pc.count_substring(texts, "{"))
        return _true(pc.greater(depth, _DEPTH))

    def _name(self, column: Any, what: str, limit: int, least: int = 1) -> Any:
        texts = self._text(column, what)
        length = pc.utf8_length(texts)
        bad = pc.or_(pc.less(length, least), pc.greater(length, limit))
        bad = pc.or_(bad, pc.match_substring(texts, "\0"))
        self._refuse(bad, f"has a {what} that is not {least} to {limit} characters without NUL")
        return texts

    def _headers(self, column: Any) -> Any:
        if column.null_count == len(column):
            return pa.nulls(len(column), pa.string())
        read = _read_object if pa.types.is_string(column.type) else _read_pairs
        encoded: list[str | None] = []
        for index, given in enumerate(column.to_pylist()):
            try:
                encoded.append(None if given is None else encode_headers(read(given)))
            except (PayloadInvalid, UnicodeDecodeError) as error:
                msg = f"Row {self._row + index} of its partition: {error}"
                raise PayloadInvalid(msg) from error
        return pa.array(encoded, pa.string())

    # -- numbers

    def _priority(self, column: Any) -> Any:
        numbers = column.fill_null(0).cast(pa.int64())
        self._between(numbers, 0, self._settings.priorities - 1, "priority")
        return numbers.cast(pa.int16())

    def _attempts(self, column: Any) -> Any:
        numbers = column.cast(pa.int64())
        self._between(numbers, 1, _LARGEST_ATTEMPTS, "max_attempts")
        return numbers.cast(pa.int32())

    def _duration(self, column: Any, what: str, *, least: int) -> Any:
        if pa.types.is_duration(column.type):
            numbers = column.cast(pa.duration("us")).cast(pa.int64())
        else:
            seconds = column.cast(pa.float64())
            longest = _LONGEST_US / _SECOND
            wrong = pc.invert(
                pc.and_(pc.greater_equal(seconds, 0), pc.less_equal(seconds, longest))
            )
            self._refuse(wrong, f"has a {what} that is not zero to 1,000 years of seconds")
            numbers = pc.round(pc.multiply(seconds, float(_SECOND))).cast(pa.int64())
        self._between(numbers, least, _LONGEST_US, f"{what} in microseconds")
        return numbers

    # -- the queue's own columns

    def _own(self, column: Any, name: str) -> Any:
        target = self._tables.live.c[name]
        kind = target.type
        if not target.nullable:
            self._refuse(column.is_null(), f"has no value for column {name}")
        if isinstance(kind, String) and kind.length and type(kind) in (String, Text, VARCHAR, TEXT):
            long = pc.greater(pc.utf8_length(column), kind.length)
            self._refuse(long, f"has more than {kind.length} characters in column {name}")
        if isinstance(kind, Integer):
            return column.cast(pa.int64())
        if isinstance(kind, Float):
            return column.cast(pa.float64())
        if isinstance(kind, DateTime) and not kind.timezone:
            # As Spark stores it, in UTC, for columns without a time zone.
            return column.cast(pa.timestamp("us"))
        return column.cast(pa.date32()) if isinstance(kind, Date) else column

    # -- checks

    def _text(self, column: Any, what: str) -> Any:
        try:
            return column.cast(pa.string())
        except pa.ArrowInvalid as error:
            msg = f"A {what} of this partition, after row {self._row}, is not valid UTF-8: {error}"
            raise PayloadInvalid(msg) from error

    def _between(self, numbers: Any, least: int, most: int, what: str) -> None:
        wrong = pc.or_(pc.less(numbers, least), pc.greater(numbers, most))
        self._refuse(wrong, f"has a {what} that is not {least} to {most}")

    def _refuse(self, wrong: Any, reason: str) -> None:
        rows = _true(wrong)
        if rows:
            msg = f"Row {self._row + rows[0]} of its partition {reason}."
            raise PayloadInvalid(msg)


def _true(mask: Any) -> list[int]:
    if not pc.any(mask).as_py():
        return []
    found: list[int] = pc.indices_nonzero(mask.fill_null(False)).to_pylist()  # noqa: FBT003
    return found


def _read_object(text: str) -> Mapping[str, Any]:
    check_json_text(text, "text of the headers")
    if len(text.encode()) > MAX_HEADERS_BYTES:
        raise PayloadTooLarge("headers", len(text.encode()), MAX_HEADERS_BYTES)
    found = json.loads(text)
    if not isinstance(found, dict):
        msg = f"The headers must be a JSON object, not {text[:60]!r}."
        raise PayloadInvalid(msg)
    return found


def _read_pairs(pairs: Sequence[Any]) -> Mapping[str, Any]:
    both = ((pair["key"], pair["value"]) if isinstance(pair, dict) else pair for pair in pairs)
    return {_decoded(key): _decoded(value) for key, value in both}


def _decoded(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
