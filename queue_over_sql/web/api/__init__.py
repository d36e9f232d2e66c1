"""The HTTP API: an ASGI application to mount at ``/api/v1``.

``create_api`` makes it, and ``openapi_document`` describes it. The modules beside this one have its
operations.
"""

from __future__ import annotations

from queue_over_sql.web.api.app import create_api, openapi_document, standalone

__all__ = ["create_api", "openapi_document", "standalone"]
