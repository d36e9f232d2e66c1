"""Which rows can be messages: by the very checks of the sink, row by row where one fails."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from queue_over_sql.errors import QueueError
from queue_over_sql.payloads.codec import check_json_text
from queue_over_sql.queue import core_of
from queue_over_sql.spark.databases import queue_at
from queue_over_sql.spark.sink_columns import PAYLOAD, plan_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from queue_over_sql.queue import Queue
    from queue_over_sql.spark.options import Location

ROW: Final = "__row"
"""The column that keeps a row of the input as it was read."""
REASON: Final = "reason"
"""The column that says why a row can be no message; NULL where it can."""

_CORRUPT: Final = "_corrupt_record"
# The checks speak of a row by its place, which means nothing once the rows are apart.
_PLACE: Final = re.compile(
    r"^Row \d+ of its partition:? ?|, after row \d+,"
    r"| of row \d+ of its partition| of this partition"
)


def messages_of(rows: DataFrame, queue: Queue, columns: Mapping[str, str] | None) -> DataFrame:
    """The fields of messages, and each row of the input as it is.

    Raises:
        ValueError: the payload cannot be told.
    """
    from pyspark.sql import functions

    names = {name.lower() for name in rows.columns}
    whole = functions.struct(*[functions.col(_quoted(name)) for name in rows.columns]).alias(ROW)
    if columns is None and names & {PAYLOAD, "value"}:
        fields = [functions.col(_quoted(name)) for name in rows.columns if name != _CORRUPT]
        return rows.select(*fields, whole)
    given = dict(columns or {})
    fields = [functions.expr(text).alias(name) for name, text in given.items()]
    if not {name.lower() for name in given} & {PAYLOAD, "value"}:
        if PAYLOAD in names and columns is not None:
            fields.append(functions.col(PAYLOAD))
        else:
            fields.append(_everything(rows, queue))
    return rows.select(*fields, whole)


def _everything(rows: DataFrame, queue: Queue) -> Any:
    from pyspark.sql import functions

    payload = core_of(queue).context.known_settings.payload
    if payload != "json":
        msg = (
            f"queue {queue.name!r} holds {payload}, not JSON: say by columns= which column is the "
            "payload"
        )
        raise ValueError(msg)
    names = [functions.col(_quoted(name)) for name in rows.columns if name != _CORRUPT]
    content = functions.struct(*names)
    return functions.to_json(content, {"ignoreNullFields": "false"}).alias(PAYLOAD)


class Checker:
    """Adds the reason to each row; pickled to the executors.

    Args:
        place: of a database whose queue has the rules.
        queue: its name.
        schema: of the fields of messages.
    """

    def __init__(self, place: Location, queue: str, schema: StructType) -> None:
        self._place = place
        self._queue = queue
        self._schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Check batches of rows with the columns of the schema and ``ROW``."""
        import pyarrow as pa

        checks = _Checks(queue_at(self._place, self._queue), self._schema)
        for batch in batches:
            reasons = checks.reasons(batch.select(self._schema.names), _unread(batch))
            arrays = [*batch.columns, pa.array(reasons, pa.string())]
            yield pa.RecordBatch.from_arrays(arrays, [*batch.schema.names, REASON])


class _Checks:
    """The checks of one partition."""

    def __init__(self, queue: Queue, schema: StructType) -> None:
        self._context = core_of(queue).context
        self._plans = plan_of(schema, self._context.tables)
        settings, dialect = self._context.settings, self._context.tables.dialect
        # What the database would check while it is written is to be known before.
        self._reads_json = settings.payload == "json" and dialect.checks_json
        self._payload = next(p.source for p in self._plans if p.role == PAYLOAD)

    def reasons(self, batch: pa.RecordBatch, unread: list[bool]) -> list[str | None]:
        """Why each row can be no message."""
        reasons: list[str | None] = [None] * batch.num_rows
        self._search(batch, 0, reasons)
        for index, broken in enumerate(unread):
            if broken:
                reasons[index] = "the record cannot be read"
        return reasons

    def _search(self, batch: pa.RecordBatch, offset: int, reasons: list[str | None]) -> None:
        if batch.num_rows == 0:
            return
        reason = self._fault(batch)
        if reason is None:
            return
        if batch.num_rows == 1:
            reasons[offset] = reason
            return
        half = batch.num_rows // 2
        self._search(batch.slice(0, half), offset, reasons)
        self._search(batch.slice(half), offset + half, reasons)

    def _fault(self, batch: pa.RecordBatch) -> str | None:
        from queue_over_sql.spark.sink_columns import Encoder

        try:
            Encoder(self._context, self._plans).encode(batch)
            if self._reads_json:
                for payload in batch.column(self._payload).cast("string").to_pylist():
                    check_json_text(payload, "payload")
        except (QueueError, TypeError, ValueError) as error:
            return _PLACE.sub("", str(error)).strip().rstrip(".")
        return None


def _unread(batch: pa.RecordBatch) -> list[bool]:
    rows = batch.column(ROW)
    names = [rows.type.field(index).name for index in range(rows.type.num_fields)]
    if _CORRUPT not in names:
        return []
    return [text is not None for text in rows.field(_CORRUPT).to_pylist()]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
