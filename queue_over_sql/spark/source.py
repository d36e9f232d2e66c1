"""The format ``queue_over_sql``: the reader or writer for each use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from queue_over_sql.spark.databases import queue_at
from queue_over_sql.spark.options import ReadOptions, StreamOptions, gives_any_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from queue_over_sql.spark.batch import QueueBatchReader
    from queue_over_sql.spark.sink import QueueBatchWriter, QueueStreamWriter
    from queue_over_sql.spark.stream.reader import QueueStreamReader


class QueueDataSource(DataSource):
    """Queues as a data source of Spark, under the name ``queue_over_sql``."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "queue_over_sql"

    def schema(self) -> StructType:
        """The columns of the queue's messages.

        Invalid options raise here, in the user's call of ``load()``.

        Raises:
            ValueError: an option is unknown, missing or invalid.
            UnsupportedByEngine: the database does not support an option.
            QueueNotFound, DatabaseUnavailable: the queue does not exist, or the database cannot be
                reached.
        """
        from queue_over_sql.spark.columns import message_columns
        from queue_over_sql.spark.stream.parts import check_claim_mode, consumer_at

        # Spark does not say here whether it will read a batch or a stream. A write does not call
        # this.
        options = ReadOptions.parse(self.options, others=(StreamOptions,))
        location, epoch = next(iter(options.locations.values())), None
        if gives_any_of(self.options, StreamOptions):
            stream = StreamOptions.parse(self.options)
            check_claim_mode(consumer_at(location, stream), stream)
            epoch = 0 if stream.include_epoch else None
        queue = queue_at(location, options.queue)
        return message_columns(queue, options, archived=options.archived, epoch=epoch).struct

    def reader(self, schema: StructType) -> QueueBatchReader:
        """The reader of a queue or its archive."""
        from queue_over_sql.spark.batch import QueueBatchReader, QueuePushdownReader

        options = ReadOptions.parse(self.options)
        return (QueuePushdownReader if options.pushdown else QueueBatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> QueueStreamReader:  # noqa: N802
        """The reader that consumes a queue as a stream."""
        from queue_over_sql.spark.stream.reader import QueueStreamReader

        del schema
        try:
            return QueueStreamReader(StreamOptions.parse(self.options))
        except ValueError as error:
            return QueueStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> QueueBatchWriter:
        """The writer of a DataFrame to a queue."""
        from queue_over_sql.spark.sink import QueueBatchWriter

        return QueueBatchWriter(dict(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> QueueStreamWriter:  # noqa: N802
        """The writer of a stream to a queue."""
        from queue_over_sql.spark.sink import QueueStreamWriter

        return QueueStreamWriter(dict(self.options), schema, overwrite=overwrite)


def register(spark: SparkSession) -> None:
    """Register the format with a session.

    Only needed if Spark cannot find the format, because the module ``pyspark_queue_over_sql`` is
    not on the driver's path, such as on a Connect server.
    """
    spark.dataSource.register(QueueDataSource)
