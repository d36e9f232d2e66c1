"""The SQL API: functions and procedures beside the tables, for clients in any language.

``service.sql_api`` installs them; what they are called is in ``docs/sql-api.md``.
"""

from __future__ import annotations

from queue_over_sql.sql_api.api import SqlApi

__all__ = ["SqlApi"]
