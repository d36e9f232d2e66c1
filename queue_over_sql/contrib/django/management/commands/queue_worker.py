"""`manage.py queue_worker`."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from queue_over_sql.contrib.django.backend import backend_named
from queue_over_sql.contrib.django.management.command_line import run


class Command(BaseCommand):
    """Runs the tasks of a backend until SIGTERM or Ctrl-C."""

    help = "Run the tasks of a backend until SIGTERM or Ctrl-C; a second one stops immediately."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options, which are those of ``queue-over-sql worker``."""
        parser.add_argument("--backend", default="default", help="name of the backend in TASKS")
        parser.add_argument("--queues", help="run only these queues, separated by commas")
        parser.add_argument("--concurrency", type=int, help="threads in each process (4)")
        parser.add_argument("--processes", type=int, default=1, help="number of processes (1)")
        parser.add_argument("--reload", action="store_true", help="start again when a file changes")
        parser.add_argument("--until-empty", action="store_true", help="exit when none is due")
        parser.add_argument("--max-tasks", type=int, help="end each process after so many tasks")
        parser.add_argument("--http", help="answer health probes at HOST:PORT")
        parser.add_argument("--hung-after", help="/livez fails if all threads are busy longer")
        parser.add_argument("--log-format", help="text or json (text)")
        parser.add_argument("--log-level", default="info", help="debug, info, warning or error")

    def handle(self, **options: Any) -> None:
        """Run ``queue-over-sql worker`` with the module that makes the worker."""
        try:
            backend_named(options["backend"])
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        most = options["max_tasks"]
        if most is not None and most < 1:
            raise CommandError(f"--max-tasks must be 1 or more, not {most}")
        os.environ["QUEUE_OVER_SQL_DJANGO_BACKEND"] = options["backend"]
        os.environ["QUEUE_OVER_SQL_DJANGO_MAX_TASKS"] = "" if most is None else str(most)
        # Its processes import the settings, as this one does.
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        arguments = ["worker", "queue_over_sql.contrib.django.worker:worker"]
        for name in (
            "queues",
            "concurrency",
            "processes",
            "http",
            "hung_after",
            "log_format",
            "log_level",
        ):
            if options[name] is not None:
                arguments += [f"--{name.replace('_', '-')}", str(options[name])]
        arguments += [
            f"--{name.replace('_', '-')}" for name in ("reload", "until_empty") if options[name]
        ]
        run(arguments)
