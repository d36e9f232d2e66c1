"""The command `sql`, which prints the statements that operations send."""

from __future__ import annotations

from typing import Annotated

from queue_over_sql.cli.options import MONITORING_PANEL, QueueName, argument
from queue_over_sql.cli.session import Commands, CommandSession

commands = Commands(MONITORING_PANEL)


@commands.add("sql")
def sql(
    session: CommandSession,
    *,
    queue: QueueName,
    operations: Annotated[
        list[str] | None,
        argument("[OPERATION]...", "Only operations that begin with one of these, such as claim."),
    ] = None,
) -> None:
    """Print the SQL statements that operations on a queue send to this database.

    Review them with your DBA, or look at their plans with EXPLAIN. A word such as :p_count stands
    for a parameter. The command sends none of these statements. Exit code 3: one of
    the names is no operation's.

    A batch is shown with two messages. Statements that begin or end a transaction are left out.
    """
    from queue_over_sql.inside.sql import statements_of

    with session.connect() as service:
        found = statements_of(service.queue(queue))
    wanted = operations or [""]
    unknown = [
        name for name in wanted if not any(each.operation.startswith(name) for each in found)
    ]
    if unknown:
        names = ", ".join(dict.fromkeys(each.operation.partition(",")[0] for each in found))
        session.output.nothing(
            f"No operation begins with {unknown[0]!r}. The operations are: {names}"
        )
    for each in found:
        if not each.operation.startswith(tuple(wanted)):
            continue
        if session.output.machine:
            session.output.record(
                {
                    "operation": each.operation,
                    "place": each.place,
                    "statements": each.count,
                    "sql": each.text,
                }
            )
        else:
            session.output.line(f"{each}\n")
