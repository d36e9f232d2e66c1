"""Pauses in the middle of an act on a connection, which must not hold up others meanwhile."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from sqlalchemy.util import await_only

if TYPE_CHECKING:
    from sqlalchemy import Connection


def pause(connection: Connection, seconds: float) -> None:
    """Sleep in the way of the connection's driver: on the event loop where it has one."""
    if connection.dialect.is_async:
        pause_on_loop(seconds)
    else:
        time.sleep(seconds)


def pause_on_loop(seconds: float) -> None:
    """Let the other tasks of the event loop run for so long."""
    await_only(asyncio.sleep(seconds))
