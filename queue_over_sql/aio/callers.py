"""What a caller may give as ``connection=``."""

from __future__ import annotations

from typing import Any, TypeAlias

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

CallersConnection: TypeAlias = AsyncConnection | AsyncSession | async_scoped_session[Any]
"""The caller's own transaction."""
