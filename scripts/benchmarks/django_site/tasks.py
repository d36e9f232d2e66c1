"""The task of the site, which tells a journal when it begins and ends."""

from __future__ import annotations

import os
import time

from django.tasks import task

SECONDS = 0.02


@task()  # type: ignore[untyped-decorator]  # Django has no types
def record(number: int) -> int:
    """Say in the journal that the task begins, work a moment, and say that it ends."""
    journal = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND)
    try:
        os.write(journal, f"began {number} {time.monotonic()}\n".encode())
        time.sleep(SECONDS)
        os.write(journal, f"ended {number} {time.monotonic()}\n".encode())
    finally:
        os.close(journal)
    return number
