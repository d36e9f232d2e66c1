"""AsyncSqlApi: install the functions for clients of any language, on an event loop."""

from __future__ import annotations

from queue_over_sql.aio.faces import Face, awaited, face_of
from queue_over_sql.sqlapi import SqlApi


@face_of(SqlApi)
class AsyncSqlApi(Face[SqlApi]):
    """The SQL API of a service's queues; ``SqlApi`` with verbs to be awaited."""

    __slots__ = ()

    install = awaited(SqlApi.install)
    uninstall = awaited(SqlApi.uninstall)
    script = awaited(SqlApi.script)
