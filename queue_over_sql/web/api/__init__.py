"""The HTTP API: an ASGI application to be mounted at ``/api/v1``.

``create_api`` makes it. Its operations are functions of the modules beside this one.
"""

from __future__ import annotations

from queue_over_sql.web.api.app import create_api, standalone

__all__ = ["create_api", "standalone"]
