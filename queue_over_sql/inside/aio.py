"""The door on an event loop: call synchronous functions of a guest from coroutines.

Stability: as ``queue_over_sql.inside``. It needs the extra ``asyncio``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from queue_over_sql.aio.proxies import Proxy, awaited, inward, run

if TYPE_CHECKING:
    from queue_over_sql.aio.queue import CallersConnection as CallersConnection  # noqa: PLC0414 - no alias is no export

__all__ = ["Proxy", "awaited", "inward", "run"]
