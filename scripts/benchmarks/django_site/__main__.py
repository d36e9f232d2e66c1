"""Enqueues tasks of the site, and tells what became of them, as JSON.

``enqueue FIRST COUNT`` prints the ids of the results. ``states`` reads ids, and prints the state
that the library reports for each.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version

import django
from django.db import connection, transaction

django.setup()

from django.tasks import default_task_backend  # noqa: E402 - needs the setup

from scripts.benchmarks.django_site.tasks import record  # noqa: E402


def enqueue(first: int, count: int) -> list[str]:
    """Enqueue tasks with numbers from `first` on; returns the ids of their results."""
    with transaction.atomic():
        return [str(record.enqueue(number).id) for number in range(first, first + count)]


def states() -> list[str]:
    """The state of each result whose id standard input has."""
    return [str(default_task_backend.get_result(each).status) for each in json.load(sys.stdin)]


def about(package: str) -> dict[str, str]:
    """The versions of the library, of Django, and of the server."""
    server = ".".join(map(str, connection.get_database_version()))
    mine = "" if package == "ours" else version(package)
    return {"version": mine, "django": django.get_version(), "server": server}


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    if command == "enqueue":
        answer: object = enqueue(*map(int, arguments))
    else:
        answer = states() if command == "states" else about(*arguments)
    print(json.dumps(answer))
