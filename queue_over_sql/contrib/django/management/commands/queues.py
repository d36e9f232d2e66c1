"""`manage.py queues`: the command line on a database of Django."""

from __future__ import annotations

import os
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import DEFAULT_DB_ALIAS

from queue_over_sql.contrib.django.management.command_line import run
from queue_over_sql.contrib.django.services import options_of, url


class Command(BaseCommand):
    """Passes its arguments to ``queue-over-sql``, with the database of Django."""

    help = "Run a command of queue-over-sql on Django's database, as in: manage.py queues stats"

    def add_arguments(self, parser: CommandParser) -> None:
        """Take everything behind the options as arguments of ``queue-over-sql``."""
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="alias of the database")
        parser.add_argument("arguments", nargs="...", help="a command, such as: stats")

    def handle(self, *, database: str, arguments: list[str], **_: Any) -> None:
        """Run the command with the database's URL in its environment."""
        of_service = options_of(database)
        place = url(database).render_as_string(hide_password=False)
        os.environ["QUEUE_OVER_SQL_URL"] = place
        for name in ("schema", "table_prefix"):
            if name in of_service:
                os.environ[f"QUEUE_OVER_SQL_{name.upper()}"] = of_service[name]
        run(arguments or ["--help"])
