"""Endpoints: each is a function whose declaration checks requests and makes the document.

A function's parameters declare its input: ``call``, parts of the path by name, and ``query`` and
``body``, whose classes check them. Its result type declares the answer. What operators do has its
method, path, role and description from ``OPERATIONS``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import math
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_type_hints

import anyio
import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from queue_over_sql.errors import InvalidQueueName, QueueNotFound, near_queue_name, shown
from queue_over_sql.management.operation import Http, OperatorVerb
from queue_over_sql.management.operations import OPERATIONS
from queue_over_sql.values.cached import cached_property
from queue_over_sql.values.json_lines import to_json
from queue_over_sql.values.json_text import InexactJson, read_exactly
from queue_over_sql.web.access import (
    ANY_QUEUE,
    CSRF_HEADER,
    SAFE_METHODS,
    Access,
    Principal,
    Refused,
)
from queue_over_sql.web.changes import Changes, Result
from queue_over_sql.web.idempotency import Answer, Idempotency
from queue_over_sql.web.problems import Problem, headers_of, problem_of, reading
from queue_over_sql.web.security_headers import NDJSON
from queue_over_sql.web.settings import Role, WebSettings
from queue_over_sql.web.threads import Threads

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from starlette.types import Receive, Scope, Send

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.web.api.clients import Clients
    from queue_over_sql.web.api.counts import SharedStats
    from queue_over_sql.web.masking import Mask

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

JSON: Final = "application/json"
IDEMPOTENCY: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotent-Replayed"
DEEPEST: Final = 100
"""The deepest allowed nesting of a request's JSON."""
BODY_SECONDS: Final = 60.0
"""How long the arrival of a body, or of a line of NDJSON, may take."""
_PARAMETER: Final = re.compile(r"\{(\w+)(?::path)?\}")
# JSON strings; an unterminated one matches to the end, so each byte is read only once.
_TEXTS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
# From this size on, parsing takes longer than the switch to a thread.
_SMALL: Final = 65_536
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_BRACKETS: Final = re.compile(rb"[\[\]{}]")


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """One method of one path: its role, its input and its answer."""

    method: str
    path: str
    role: Role | None
    """Who may use it; None: every caller."""
    tag: str
    function: Callable[..., Any]
    id: str
    """Its name in the document."""
    text: str
    """Its description."""
    status: int = 200
    writes: bool = False
    operation: OperatorVerb | None = None
    quick: bool = False
    """Whether it must not wait behind searches."""
    lines_in: bool = False
    """Whether the body is NDJSON, which the function reads itself."""
    lines_out: bool = False
    """Whether it answers line by line to ``Accept: application/x-ndjson``."""
    problems: tuple[int, ...] = ()
    """The statuses of its own errors, besides the common ones."""
    idempotent: bool = False
    """Whether it does a request with an Idempotency-Key only once; see ``Call.once``."""
    shape: Any = None
    """The class of the body, if not that of the function."""
    of_some_queues: bool = False
    """Whether it shows a caller only the caller's own queues, although its path names none."""

    @cached_property
    def takes(self) -> dict[str, Any]:
        """The types of the function's parameters, and of its result as ``return``."""
        return get_type_hints(self.function, include_extras=True)

    @cached_property
    def body(self) -> Any:
        """The class of the body; None if it has no body."""
        return self.shape or self.takes.get("body")

    @cached_property
    def query(self) -> type[msgspec.Struct] | None:
        """The class of the query; None if it has no query."""
        return self.takes.get("query")

    @cached_property
    def in_path(self) -> list[str]:
        """The names of the path's parameters."""
        return _PARAMETER.findall(self.path)

    @cached_property
    def body_may_be_left_out(self) -> bool:
        """Whether all fields of the body have defaults."""
        fields = msgspec.structs.fields(self.body) if isinstance(self.body, type) else ()
        return bool(fields) and not any(field.required for field in fields)


class Endpoints:
    """The endpoints of one part of the API.

    Args:
        tag: the name of the part in the document.
        quick: whether they must not wait behind searches.
    """

    def __init__(self, tag: str, *, quick: bool = False) -> None:
        self._tag = tag
        self._quick = quick
        self.all: list[Endpoint] = []

    def add(self, method: str, path: str, role: Role | None, **more: Any) -> Callable[[F], F]:
        """Declare the following function as an endpoint; its docstring describes it."""

        def declare(function: F) -> F:
            text = inspect.getdoc(function) or ""
            self._add(method, path, role, function, id=function.__name__, text=text, **more)
            return function

        return declare

    def operation(self, name: str, function: Callable[..., Any], **more: Any) -> None:
        """Declare the endpoint of one of ``OPERATIONS``; the function calls ``Call.do`` once."""
        operation = OPERATIONS[name]
        assert isinstance(operation.http, Http)  # noqa: S101 - a mistake of the table
        declared = dataclasses.asdict(operation.http) | more
        self._add(role=operation.role, function=function, operation=operation, **declared)

    def _add(
        self, method: str, path: str, role: Role | None, function: Callable[..., Any], **more: Any
    ) -> None:
        options = {"writes": method not in SAFE_METHODS, "quick": self._quick, **more}
        self.all.append(Endpoint(method, path, role, self._tag, function, **options))


@dataclasses.dataclass
class Api:
    """The shared state of all endpoints."""

    service: QueueService
    access: Access
    changes: Changes
    settings: WebSettings
    threads: Threads
    clients: Clients
    mask: Mask
    stats: SharedStats
    idempotency: Idempotency


@dataclasses.dataclass
class Call:
    """One request in progress.

    Attributes:
        api: the shared state of all endpoints.
        endpoint: the requested endpoint.
        request: the request.
        principal: the caller.
        status: the status of a successful answer.
        headers: the headers of the answer.
        searches: whether it only reads, and may have to read many messages for what it finds.
    """

    api: Api
    endpoint: Endpoint
    request: Request
    principal: Principal
    status: int
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    searches: bool = False

    @property
    def service(self) -> QueueService:
        """The queues."""
        return self.api.service

    def do(self, name: str, **arguments: Any) -> Result:
        """Run the endpoint's operation for the caller; see ``Changes.make``."""
        operation = self.endpoint.operation
        assert operation is not None  # noqa: S101 - only called for one
        return self.api.changes.make(operation, self.principal, name, **arguments)

    def insist_on(self, queue: str) -> None:
        """Refuse a caller who has no rights on another queue that the request names.

        Raises:
            Problem: as for a request to that queue.
        """
        if self.principal.queues:
            with contextlib.suppress(QueueNotFound):
                # It may be called by its title, and rights are by names.
                queue = self.service.queue(queue).name
        # ``ANY_QUEUE`` may become the title of one.
        named = "" if queue == ANY_QUEUE else queue
        try:
            self.api.access.check(self.principal, None, writes=False, queue=named)
        except Refused as error:
            raise problem_of(error) from error

    def reading(self) -> AbstractContextManager[None]:
        """Limit the time of searches and counts, as the settings say."""
        return reading(self.service, self.api.settings.longest_read)

    def once(
        self, publish: Callable[[Connection | None], T], body: Any, queue: Queue | None = None
    ) -> T:
        """Publish, or get the first answer if the request has an Idempotency-Key and was done.

        Args:
            publish: publishes in the given transaction, or in its own.
            body: the body of the request.
            queue: the queue that it publishes to, if it is only one.
        """
        key = self.request.headers.get(IDEMPOTENCY)
        if key is None:
            return publish(None)

        def do(connection: Connection) -> Answer:
            shown = publish(connection)
            return Answer(self.status, encoded(shown).decode())

        text = json.dumps(_given(body), sort_keys=True)
        path = self.request.path_params.values()
        # Two clients may happen to count their requests alike.
        scope = (self.endpoint.id, self.principal.name, *path)
        answer = self.api.idempotency.once(key, scope, text, do, queue)
        self.status = answer.status
        if answer.again:
            self.headers[REPLAYED] = "true"
        found: T = msgspec.json.decode(answer.body, type=self.endpoint.takes["return"])
        return found

    @property
    def wants_lines(self) -> bool:
        """Whether the client requested NDJSON."""
        return NDJSON in self.request.headers.get("accept", "")

    async def lines(self, longest: int) -> AsyncIterator[tuple[int, bytes]]:
        """The lines of an NDJSON body as they arrive, with their numbers, without empty ones."""
        rest, number = b"", 0
        chunks = self.request.stream()
        while True:
            with anyio.fail_after(BODY_SECONDS):
                chunk = await anext(chunks, None)
            if chunk is None:
                break
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                number += 1
                if line.strip():
                    yield number, line
            if len(rest) > longest:
                text = f"A line is longer than {longest:,} bytes."
                raise Problem(413, "too-large", text, line=number + 1)
        if rest.strip():
            yield number + 1, rest


class Lines:
    """An answer with many values, which NDJSON sends one by one.

    Args:
        pages: the parts of the answer, each made in a thread.
    """

    def __init__(self, pages: Iterable[list[Any]]) -> None:
        self._pages = iter(pages)

    async def sent(self, call: Call) -> AsyncIterator[bytes]:
        """The lines, in chunks."""
        threads = call.api.threads
        run = threads.search_later if call.searches else threads.run
        while (text := await run(lambda: self._next(call))) is not None:
            yield text

    def _next(self, call: Call) -> bytes | None:
        with call.reading():
            page = next(self._pages, None)
        return None if page is None else b"".join(encoded(each) + b"\n" for each in page)


class Dispatcher:
    """Answers the requests to one path."""

    def __init__(self, api: Api, endpoints: Mapping[str, Endpoint]) -> None:
        self._api = api
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 - each becomes an answer
            response = answer_to(error)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        endpoint = self._chosen(request)
        api = self._api
        named = str(request.path_params.get("queue", ""))
        queue = ANY_QUEUE if endpoint.of_some_queues else named
        who = await api.access.need(request, endpoint.role, writes=endpoint.writes, queue=queue)
        _check_named(named, request.method)
        if request.method not in SAFE_METHODS:
            api.access.check_csrf(request, who, request.headers.get(CSRF_HEADER))
        call = Call(api, endpoint, request, who, endpoint.status)
        arguments = await _arguments(request, endpoint, api.threads)
        call.searches = not endpoint.writes and _has_filter(arguments)
        done = await _called(call, endpoint, arguments)
        if isinstance(done, Lines):
            return StreamingResponse(done.sent(call), 200, call.headers, NDJSON)
        if done is None:
            return Response(None, 204, call.headers)
        return Response(done, call.status, call.headers, JSON)

    def _chosen(self, request: Request) -> Endpoint:
        method = "GET" if request.method == "HEAD" else request.method
        endpoint = self._endpoints.get(method)
        if endpoint is None:
            allowed = ", ".join(sorted(self._endpoints))
            raise HTTPException(405, f"This path accepts {allowed}.", {"Allow": allowed})
        return endpoint


def _check_named(queue: str, method: str) -> None:
    """Refuse what a queue may be called: what a client may do is said by names."""
    near = near_queue_name(queue)
    if queue in ("", near):
        return
    if method != "PUT":
        raise QueueNotFound(queue)
    msg = (
        f"{shown(queue, 60)} is not a queue name for HTTP: use 1 to 40 lower-case letters, digits "
        f"and underscores, beginning with a letter, such as {near!r}."
    )
    raise InvalidQueueName(msg)


async def _arguments(request: Request, endpoint: Endpoint, threads: Threads) -> dict[str, Any]:
    arguments = dict(request.path_params)
    if endpoint.query is not None:
        arguments["query"] = read_query(request, endpoint.query)
    if endpoint.body is not None:
        arguments["body"] = await read_body(request, endpoint, threads)
    elif endpoint.lines_in:
        check_media_type(request, NDJSON)
    return arguments


async def _called(call: Call, endpoint: Endpoint, arguments: dict[str, Any]) -> Any:
    threads, function = call.api.threads, endpoint.function
    run = threads.run_quick if endpoint.quick else threads.run
    if inspect.iscoroutinefunction(function):
        done = await function(call, **arguments)
        return await run(lambda: _made(done))
    if call.searches:
        return await call.api.access.search(
            lambda: _read(call, function, arguments), call.principal
        )
    if not endpoint.writes:
        return await run(lambda: _read(call, function, arguments))
    return await run(lambda: _made(function(call, **arguments)))


def _has_filter(arguments: dict[str, Any]) -> bool:
    # No index leads to these.
    given = arguments.get("query") or arguments.get("body")
    return any(getattr(given, name, None) for name in ("payload", "columns", "kind"))


def _made(done: Any) -> Any:
    return done if done is None or isinstance(done, Lines) else encoded(done)


def _read(call: Call, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    with call.reading():
        return _made(function(call, **arguments))


def run_named(call: Call, **path: str) -> None:
    """Run an operation that only needs the name in the path."""
    (name,) = path.values()
    call.do(name)


def answer_to(error: Exception) -> Response:
    """The error answer for an exception."""
    problem = problem_of(error)
    return problem.response(headers_of(problem, error))


def encoded(value: Any) -> bytes:
    """Encode a value as JSON; numbers that JSON lacks, which others stored, become text."""
    text = to_json(plain(value))
    if "Infinity" in text or "NaN" in text:
        text = to_json(_finite(plain(value)))
    return text.encode()


def _given(body: Any) -> dict[str, Any]:
    # Without defaults, so that a release with further fields sees the same request.
    return {
        field.name: msgspec.to_builtins(getattr(body, field.name), enc_hook=_other)
        for field in msgspec.structs.fields(body)
        if field.required or getattr(body, field.name) != field.default
    }


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list) else value


def plain(value: Any) -> Any:
    """Convert a value to plain JSON values; whole numbers of any size stay."""
    return msgspec.to_builtins(value, enc_hook=_other) if _is_structure(value) else value


def _is_structure(value: Any) -> bool:
    return isinstance(value, msgspec.Struct)


def _other(value: Any) -> Any:
    # Values that only drivers create, such as a value of a queue's own column.
    return dict(value) if isinstance(value, Mapping) else str(value)


def read_query(request: Request, kind: type[msgspec.Struct]) -> Any:
    """Read the query into its class.

    Raises:
        Problem: a parameter is unknown, invalid, or occurs twice.
    """
    pairs = request.query_params.multi_items()
    given = dict(pairs)
    if len(given) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in given if names.count(name) > 1)
        text = f"The query parameter {shown(twice, 50)} occurs more than once: send it once."
        raise Problem(422, "not-valid", text)
    try:
        found = msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Problem(422, "not-valid", f"The query string of the URL: {error}.") from error
    for name in given:
        if getattr(found, name) is None:
            text = f"The query parameter {name} is null: leave the parameter out instead."
            raise Problem(422, "not-valid", text)
    return found


def check_media_type(request: Request, wanted: str) -> None:
    """Refuse a body of another media type, which a form on another site could send.

    Raises:
        HTTPException: 415.
    """
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != wanted:
        raise HTTPException(415, f"Send the body with Content-Type: {wanted}.")


async def read_body(request: Request, endpoint: Endpoint, threads: Threads) -> Any:
    """Read the body into its class.

    Raises:
        Problem: it is not JSON, nested too deeply, or not what the endpoint expects.
        HTTPException: its media type is not JSON (415), or it is too large (413).
        TimeoutError: it did not arrive in time.
    """
    given = "content-type" in request.headers
    if given:
        # Check NDJSON first, because it may have any length.
        check_media_type(request, JSON)
    with anyio.fail_after(BODY_SECONDS):
        body = await request.body()
    if not body and endpoint.body_may_be_left_out:
        return endpoint.body()
    if not given:
        check_media_type(request, JSON)
    if len(body) <= _SMALL:
        return read_json(body, endpoint.body)
    return await threads.run(lambda: read_json(body, endpoint.body))


def read_json(text: bytes, kind: Any) -> Any:
    """Parse JSON into a class.

    Raises:
        Problem: it is not JSON, nested too deeply, or does not fit the class.
    """
    check_depth(text)
    try:
        # Not by msgspec, which would keep one of two equal keys, and round numbers.
        found = read_exactly(text)
        if _SURROGATE.search(text):
            # Half of a pair is no character, and cannot be written.
            json.dumps(found, ensure_ascii=False).encode()
        return msgspec.convert(found, kind)
    except InexactJson as error:
        raise Problem(422, "not-valid", f"The body cannot be kept: {error}.") from error
    except msgspec.ValidationError as error:
        raise Problem(422, "not-valid", f"{error}.") from error
    except ValueError as error:
        raise Problem(400, "not-readable", f"The body is not JSON: {error}.") from error


def check_depth(text: bytes) -> None:
    """Refuse JSON that is nested too deeply, without parsing it.

    Raises:
        Problem: it is.
    """
    if text.count(b"[") + text.count(b"{") <= DEEPEST:
        return
    depth = 0
    for bracket in _BRACKETS.finditer(_TEXTS.sub(b"", text)):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > DEEPEST:
            msg = f"The JSON has more than {DEEPEST} nested levels."
            raise Problem(422, "not-valid", msg)
