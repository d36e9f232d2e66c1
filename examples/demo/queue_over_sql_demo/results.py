"""The demo's results table; servers write to it in the acknowledging transaction."""

from __future__ import annotations

from uuid import uuid4

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    func,
    insert,
    select,
)

from queue_over_sql import Message
from queue_over_sql_demo.account import Result


def results_table(name: str, schema: str | None) -> Table:
    """The table `name`.

    Its key is new for each delivery, and the file's number is not unique. So if two deliveries of
    one message were ever committed, both rows would show.
    """
    return Table(
        name,
        MetaData(schema=schema),
        Column("delivery", String(32), primary_key=True),
        Column("message_id", BigInteger, nullable=False),
        Column("file_number", BigInteger, nullable=False),
        Column("file_path", Text, nullable=False),
        Column("sha256", String(64), nullable=False),
        Column("file_size", BigInteger, nullable=False),
        Column("server_name", String(40), nullable=False),
        Column("attempt", Integer, nullable=False),
        Column("customer", String(40)),
        Column("done_before", Integer),
        Index(f"{name}_ix", "customer"),
    )


def write_result(
    table: Table, connection: Connection, message: Message, digest: tuple[str, int], server: str
) -> None:
    """Insert the result of `server` for `message`, in the caller's transaction.

    Of a customer's file it notes how many results there are of this customer. They are the proof of
    the order: if two files of one customer were done beside each other, or a later one first, then
    a number would be missing.
    """
    checksum, size = digest
    before = None
    if message.group is not None:
        of_customer = select(func.count()).where(table.c.customer == message.group)
        before = connection.execute(of_customer).scalar_one()
    connection.execute(
        insert(table),
        {
            "delivery": uuid4().hex,
            "message_id": message.id,
            "file_number": message.payload["number"],
            "file_path": message.payload["path"],
            "sha256": checksum,
            "file_size": size,
            "server_name": server,
            "attempt": message.attempt,
            "customer": message.group,
            "done_before": before,
        },
    )


def read_results(table: Table, connection: Connection) -> list[Result]:
    """All committed rows."""
    rows = connection.execute(
        select(
            table.c.message_id,
            table.c.file_number,
            table.c.sha256,
            table.c.file_size,
            table.c.server_name,
            table.c.attempt,
            table.c.customer,
            table.c.done_before,
        )
    )
    return [Result(*row) for row in rows]


def count_by_server(table: Table, connection: Connection) -> dict[str, tuple[int, int]]:
    """Rows and redelivered rows, by the server that wrote them."""
    attempts = select(table.c.server_name, table.c.attempt, func.count().label("n")).group_by(
        table.c.server_name, table.c.attempt
    )
    counts: dict[str, tuple[int, int]] = {}
    for server, attempt, count in connection.execute(attempts):
        done, again = counts.get(server, (0, 0))
        counts[server] = (done + count, again + (count if attempt > 1 else 0))
    return counts
