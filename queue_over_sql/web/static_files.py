"""Static files, which browsers keep: their addresses change with their content."""

from __future__ import annotations

import functools
import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from starlette.staticfiles import StaticFiles

if TYPE_CHECKING:
    import os

    from starlette.responses import Response
    from starlette.types import Scope

_PACKAGE: Final = "queue_over_sql.web"
_KEEP: Final = "public, max-age=31536000, immutable"


@functools.cache
def _mark(file: str) -> str:
    content = files(_PACKAGE).joinpath("static", file).read_bytes()
    return hashlib.sha256(content).hexdigest()[:16]


def static_path(file: str) -> str:
    """The path of a file below the application, with a mark of its content."""
    return f"/static/{quote(file)}?{_mark(file)}"


class KeptFiles(StaticFiles):
    """The static files. An address with the mark of another version is answered, but not kept."""

    def __init__(self) -> None:
        super().__init__(packages=[(_PACKAGE, "static")])

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        """A file, or that the browser has it already."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        name = str(full_path).replace("\\", "/").rpartition("/static/")[2]
        if scope["query_string"] == _mark(name).encode():
            response.headers["cache-control"] = _KEEP
        return response
