"""The SQL API: database functions and procedures, for clients in any language.

``service.sql_api`` installs them; ``docs/sql-reference.md`` lists them.
"""

from __future__ import annotations

from queue_over_sql.sql_api.api import SqlApi

__all__ = ["SqlApi"]
