"""Problems: errors of the library as RFC 9457 answers, without SQL, tracebacks or addresses."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from queue_over_sql import errors, inside
from queue_over_sql.values.durations import duration_text
from queue_over_sql.values.json_lines import to_json
from queue_over_sql.web.access import Refused
from queue_over_sql.web.changes import TooManyFound
from queue_over_sql.web.tables import LastAdminToken, TokenTaken

if TYPE_CHECKING:
    from queue_over_sql import QueueService

_log = logging.getLogger(__name__)

PROBLEM: Final = "application/problem+json"

STATUS: Final[Mapping[type[Exception], int]] = {
    errors.QueueNotFound: 404,
    errors.TopicNotFound: 404,
    errors.ScheduleNotFound: 404,
    errors.ConsumerNotFound: 404,
    errors.InvalidQueueName: 422,
    errors.QueueSchemaMismatch: 409,
    errors.SchemaTooNew: 503,
    errors.SchemaOutdated: 503,
    errors.DuplicateKey: 409,
    errors.GroupFull: 409,
    errors.PayloadTooLarge: 413,
    errors.PayloadInvalid: 422,
    errors.ClaimLost: 409,
    errors.UnsupportedByEngine: 422,
    errors.NotPermitted: 403,
    errors.DatabaseUnavailable: 503,
    errors.ServiceClosed: 503,
    errors.DatabaseRefused: 500,
    errors.QueueError: 409,
    TokenTaken: 409,
    LastAdminToken: 409,
    TooManyFound: 409,
}
"""The status of each error; the nearest base class counts."""

_TEXT: Final[Mapping[type[Exception], str]] = {
    errors.SchemaTooNew: (
        "A newer release created the tables of this queue: upgrade this web server."
    ),
    errors.SchemaOutdated: "An earlier release created the tables: run queue-over-sql migrate.",
    errors.DatabaseUnavailable: (
        "The database cannot be reached or does not answer. It is unknown whether a change was "
        "made."
    ),
    errors.DatabaseRefused: (
        "The database refused a statement; the log of the web server has the reason."
    ),
    errors.ServiceClosed: "The web server is shutting down.",
}
"""The texts for errors whose own text contains addresses, logins or SQL."""
_RETRY_SECONDS: Final = 5
TITLES: Final[Mapping[int, str]] = {
    400: "Not readable",
    401: "Login needed",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    408: "Too slow",
    413: "Too large",
    415: "Unsupported media type",
    422: "Not valid",
    429: "Too many requests",
    500: "Internal error",
    503: "Unavailable",
}
"""The title of each status."""


class Problem(Exception):
    """An error answer.

    Attributes:
        status: the HTTP status.
        code: the end of the type; it never changes.
        text: what happened, and what to do.
        more: further members.
    """

    def __init__(self, status: int, code: str, text: str, **more: Any) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.text = text
        self.more = more

    def response(self, headers: Mapping[str, str] | None = None) -> Response:
        """The answer."""
        content = {
            "type": f"/problems/{self.code}",
            "title": self.code.replace("-", " ").capitalize(),
            "status": self.status,
            "detail": self.text,
            **self.more,
        }
        return Response(to_json(content), self.status, headers, PROBLEM)


@contextlib.contextmanager
def reading(service: QueueService, seconds: float) -> Iterator[None]:
    """Limit the time of each search and count in this block.

    Raises:
        Problem: one took longer.
    """
    try:
        with inside.limited(service, seconds):
            yield
    except errors.DatabaseUnavailable as error:
        if not inside.was_cancelled(service, error):
            raise
        text = (
            f"This took longer than {duration_text(seconds)} and was stopped. Narrow it to a key, "
            "which has an index, or to a status. Searching for payload fields or kinds reads every "
            "message. The command queue-over-sql search has no time limit."
        )
        raise Problem(503, "search-too-slow", text) from error


def code_of(error: type[Exception]) -> str:
    """An error's class name as words joined by hyphens, such as ``queue-not-found``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", error.__name__).lower()


def problem_of(error: Exception) -> Problem:
    """The public form of an error; an unknown error is logged but not revealed."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, Refused):
        return Problem(error.status, error.code, error.text)
    if isinstance(error, HTTPException):
        title = TITLES.get(error.status_code, "Refused")
        return Problem(error.status_code, title.lower().replace(" ", "-"), error.detail)
    if isinstance(error, msgspec.ValidationError):
        return Problem(422, "not-valid", f"{error}.")
    if isinstance(error, TimeoutError) and not isinstance(error, errors.QueueError):
        return Problem(408, "too-slow", "The body did not arrive in time.")
    return _of_library(error)


def _of_library(error: Exception) -> Problem:
    for kind in type(error).__mro__:
        if kind in STATUS:
            status = STATUS[kind]
            if status >= 500:  # noqa: PLR2004 - what the server's people have to know of
                _log.warning(
                    "The web server answered a request with HTTP status %d: %s", status, error
                )
            text = _TEXT.get(kind) or _absent(error) or _first_line(error)
            if isinstance(error, errors.NotPermitted):
                text = _rights(error)
            text = " ".join([text, *getattr(error, "__notes__", ())])
            return Problem(status, code_of(kind), text, **_more(error))
    if isinstance(error, ValueError | TypeError):
        # The library's error for an invalid argument, which came with the request here.
        return Problem(422, "not-valid", _first_line(error))
    _log.error("A request failed with an unexpected error.", exc_info=error)
    return Problem(
        500, "internal-error", "The request failed; the log of the web server has the reason."
    )


def _first_line(error: Exception) -> str:
    # Drivers add the statement in further lines.
    return (str(error) or type(error).__name__).partition("\n")[0][:1000]


def _absent(error: Exception) -> str | None:
    # The library's own texts tell how to create it in Python.
    if isinstance(error, errors.QueueNotFound):
        near = f"; {errors.did_you_mean(error.near)}?" if error.near else "."
        return f"There is no queue {errors.shown(error.queue)} in this database{near}"
    if isinstance(error, errors.TopicNotFound):
        return f"There is no topic {errors.shown(error.topic)} in this database."
    if isinstance(error, errors.ScheduleNotFound):
        return f"There is no schedule {errors.shown(error.schedule)} in this database."
    return None


def _rights(error: errors.NotPermitted) -> str:
    what = f" {', '.join(error.rights)} on {error.table}" if error.table else ""
    roles = f" These roles have it: {', '.join(error.roles)}." if error.roles else ""
    return (
        f"The database login of this web server lacks the right{what}. Nothing was changed.{roles}"
    )


def _more(error: Exception) -> dict[str, Any]:
    if isinstance(error, errors.QueueNotFound):
        return {"queue": str(error.queue)[:100]}
    if isinstance(error, errors.DuplicateKey):
        holder = None if error.id is None else str(error.id)
        return {"queue": error.queue, "key": error.key, "id": holder}
    if isinstance(error, errors.GroupFull):
        return {"queue": error.queue, "group": error.group, "limit": error.limit}
    if isinstance(error, TooManyFound):
        return {"found": error.found}
    if isinstance(error, errors.PayloadTooLarge):
        return {"size": error.size, "limit": error.limit}
    return {}


def headers_of(problem: Problem, error: Exception) -> dict[str, str]:
    """The headers of an error answer."""
    headers = dict(getattr(error, "headers", None) or {})
    if problem.status == 401:  # noqa: PLR2004 - as HTTP has it
        headers["WWW-Authenticate"] = 'Bearer realm="queue_over_sql"'
    if isinstance(error, Refused) and error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    elif problem.status == 503 and error is not problem:  # noqa: PLR2004 - as HTTP has it
        headers["Retry-After"] = str(_RETRY_SECONDS)
    return headers
