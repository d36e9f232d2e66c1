"""Check a history: ``python -m queue_over_sql.testing.history FOLDER``."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import TYPE_CHECKING

from sqlalchemy import select

from queue_over_sql import QueueService, inside
from queue_over_sql.testing.history.checker import check
from queue_over_sql.testing.history.journal import read
from queue_over_sql.testing.history.verdict import Name, Rules

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table


def main(arguments: list[str]) -> int:
    """Print what is wrong, and what was noted; returns 1 if a promise was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m queue_over_sql.testing.history",
        description="Read what the recorders of all processes noted in FOLDER, and say whether the "
        "queues kept their promises. Exit code 1: they did not; each violation is printed with the "
        "events of its message. Exit code 2: there is no history. What operators do is not noted: "
        "a message that one deletes looks lost; one that is requeued, prioritized or put on hold "
        "may look ended twice or out of order.",
    )
    parser.add_argument("folder", metavar="FOLDER", help="where the recorders wrote")
    parser.add_argument(
        "--database",
        metavar="URL",
        help="read what is left, what is in the archives, and the limits and rates of the queues. "
        "Without it losses are not noticed",
    )
    parser.add_argument(
        "--consumer-timeout",
        type=float,
        metavar="SECONDS",
        help="the shortest consumer_timeout of the services, or lease of a single claim if one is "
        "shorter: then also claims that nobody settled count, for two thirds of it",
    )
    given = parser.parse_args(arguments)
    try:
        history = read(given.folder)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if not history.events:
        parser.error(f"the journals in {given.folder} have no events: is observer= given?")
    queues = {event.queue for event in history.events if event.queue}
    state = _State()
    if given.database is not None:
        # It is not started, so that no reaper of it runs.
        service = QueueService(given.database)
        try:
            state.look(service, queues & {queue.name for queue in service.queues()})
        finally:
            service.stop()
    rules = {name: state.rules_of(name, given.consumer_timeout) for name in queues}
    verdict = check(history, rules, left=state.left or None, finished=state.finished)
    print(verdict)  # noqa: T201 - this is a command
    return 1 if verdict.violations else 0


class _State:
    """What a database has, and what its queues promise."""

    def __init__(self) -> None:
        self.left: dict[str, list[Name]] = {}
        self.finished: dict[str, list[Name]] = {}
        self._rules: dict[str, Rules] = {}

    def look(self, service: QueueService, queues: set[str]) -> None:
        """Read these queues; nobody may be at work."""
        for name in queues:
            queue = service.queue(name)
            settings, tables = queue.settings, inside.tables(queue)
            self.left[name] = _ids(service, tables.live)
            # A queue that prunes its archive does not keep all.
            if settings.archive == "all" and not (settings.archive_ttl or settings.archive_limit):
                self.finished[name] = _ids(service, tables.archive)
            self._rules[name] = Rules(
                lease=settings.lease.total_seconds(),
                group_limit=settings.group_limit,
                group_order=settings.group_order,
                group_rate=settings.group_rate,
                queue_limit=settings.queue_limit,
                queue_rate=settings.queue_rate,
            )

    def rules_of(self, queue: str, consumer_timeout: float | None) -> Rules:
        """What a queue promises."""
        rules = self._rules.get(queue, Rules())
        if consumer_timeout is None:
            return dataclasses.replace(rules, lease=None)
        # The last heartbeat before a claim may be a third of it old.
        sure = consumer_timeout * 2 / 3
        return dataclasses.replace(rules, lease=min(sure, rules.lease or sure))


def _ids(service: QueueService, table: Table) -> list[Name]:
    def read_ids(connection: Connection) -> list[Name]:
        return list(connection.scalars(select(table.c.id)))

    return inside.run(service, read_ids)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
