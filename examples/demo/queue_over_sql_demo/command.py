"""The command `demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queue_over_sql.cli.options import RUNNING_PANEL, duration, number
from queue_over_sql.cli.session import Commands, CommandSession
from queue_over_sql.cli.signals import ExitCode

commands = Commands(RUNNING_PANEL)


@commands.add("demo")
def demo(
    session: CommandSession,
    *,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="FOLDER",
            exists=True,
            file_okay=False,
            show_default="the standard library of this Python",
            help="Every file below this folder becomes a message.",
        ),
    ] = None,
    limit: Annotated[int | None, number("Only the first N files.")] = None,
    groups: Annotated[
        bool,
        typer.Option(
            "--groups",
            help="Deal the files to 200 customers, do those of each in order, in eight processes, "
            "and kill three of them.",
        ),
    ] = False,
    servers: Annotated[
        int | None, number("Number of worker processes.", show_default="3, or 8 with --groups")
    ] = None,
    threads: Annotated[int, number("Threads per worker process.")] = 2,
    batch: Annotated[int, number("Number of messages that a thread claims at a time.")] = 8,
    kill: Annotated[
        bool, typer.Option("--kill/--no-kill", help="Kill processes while they hold messages.")
    ] = True,
    sample: Annotated[
        int,
        typer.Option(
            "--sample", metavar="N", min=0, help="Number of checksums to verify at the end."
        ),
    ] = 200,
    consumer_timeout: Annotated[
        float,
        duration(
            "A process with no heartbeat for this long is considered dead.", show_default="3s"
        ),
    ] = 3.0,
    deadline: Annotated[
        float, duration("Stop and check the results after this long.", show_default="5m")
    ] = 300.0,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve", help="Also serve the dashboard, on a free port, until SIGTERM or SIGINT."
        ),
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the queue, the results table and the logs.")
    ] = False,
) -> None:
    """Compute the checksum of every file below a folder, and survive the death of a process.

    Every file is a message. Worker processes compute the SHA-256 and the size of each file. They
    write both in the same transaction as the acknowledgement. The demo kills one process with kill
    -9 while the process holds messages. The reaper gives these messages to the others. At the end
    the demo checks that each file was processed exactly once. If not, the exit code is 5.

    With --groups each file belongs to a customer, and the demo also checks that the files of each
    customer were done one after the other, in order.

    Without --url the database is a SQLite file in a temporary folder, even if QUEUE_OVER_SQL_URL is
    set. With --url the demo uses its own queue and table in that database, and drops both at the
    end.
    """
    # Loaded where they run: no other command needs them.
    from queue_over_sql.values.texts import hide_passwords
    from queue_over_sql_demo.databases import PRIVATE, is_private
    from queue_over_sql_demo.run import run

    servers = servers or (8 if groups else 3)
    kills = (3 if groups else 1) if kill else 0
    if servers <= kills:
        raise typer.BadParameter(
            f"{kills} of {servers} would be killed, and no other could take over: use "
            f"--servers {kills + 1} or --no-kill"
        )
    # A schema and a prefix from the environment belong to the environment's database.
    connection = session.connection if session.given.url else session.given
    if connection.url is not None and is_private(connection.url):
        problem = PRIVATE.format(url=hide_passwords(connection.url))
        raise typer.BadParameter(problem, param_hint="--url")
    balanced = run(
        session.output,
        connection,
        folder=folder,
        limit=limit,
        servers=servers,
        threads=threads,
        batch=batch,
        kills=kills,
        customers=200 if groups else None,
        sample=sample,
        consumer_timeout=consumer_timeout,
        deadline=deadline,
        serve=serve,
        keep=keep,
    )
    if not balanced:
        raise typer.Exit(ExitCode.INCOMPLETE)
