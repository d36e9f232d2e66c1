"""The ASGI application of the dashboard and the HTTP API."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import AsyncIterator, Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from queue_over_sql import QueueService
from queue_over_sql.errors import QueueError
from queue_over_sql.observability import Health, Report, page_of
from queue_over_sql.values.humanize import counted
from queue_over_sql.web.access import CSRF_FIELD, Access, Refused
from queue_over_sql.web.api import create_api
from queue_over_sql.web.api.app import GZIP_LEVEL
from queue_over_sql.web.api.endpoints import BODY_SECONDS, answer_to
from queue_over_sql.web.buttons import (
    BUTTONS,
    NO_SUCH_MESSAGE,
    Form,
    asks,
    count,
    hides,
    is_confirmed,
    press,
)
from queue_over_sql.web.changes import Changes, TooManyFound
from queue_over_sql.web.pages import queues, system
from queue_over_sql.web.problems import Problem
from queue_over_sql.web.security_headers import Guard
from queue_over_sql.web.settings import Role, WebSettings
from queue_over_sql.web.shown_messages import (
    difference,
    edited_payload,
    left_out,
    message_of,
    page_alike,
)
from queue_over_sql.web.site import FORM_FIELDS, Site, View
from queue_over_sql.web.snapshot import Snapshots
from queue_over_sql.web.static_files import KeptFiles
from queue_over_sql.web.tables import LastAdminToken, WebStore
from queue_over_sql.web.threads import Threads

if TYPE_CHECKING:
    from starlette.datastructures import FormData
    from starlette.requests import Request

    from queue_over_sql.management.operation import Button

_EVENT_SECONDS: Final = 2.0
# How often a viewer may want the queues to be counted, in seconds; the page offers these.
_EVERY: Final = frozenset({"2", "5", "15", "60"})
_FILTERS: Final = {"status": "Status", "key": "Key", "kind": "Kind", "group": "Group"}
_MOST_LIVE: Final = 200
_MOST_NAMED: Final = 10
_MOST_PROBES: Final = 2
_NOT_FOUND: Final = 404
_MASKED_FIELD: Final = "This field is masked, so you cannot filter by it."
_MASKED_PAYLOADS: Final = (
    "Fields of payloads are masked here, so you cannot edit a payload on this page. "
    "Use queue-over-sql requeue --edit."
)


def create_app(service: QueueService, settings: WebSettings | None = None) -> Starlette:
    """Make the application, which any ASGI server can run and any ASGI program can mount.

    It uses the service, which the caller starts and stops. Call ``state.end_waits()`` on the event
    loop before the server shuts down, so that no long poll or event stream delays it.

    Args:
        service: the service with the queues.
        settings: the settings of the server; by default each caller needs a token.
    """
    settings = settings or WebSettings()
    store, threads = WebStore(service, settings), Threads(settings.threads)
    access = Access(store, settings, threads)
    site = Site(service, settings, access, Snapshots(service, timeout=settings.longest_read))
    form = _Forms(site)
    live = _Live(site)
    probes = _Probes(service, access)

    async def not_found(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - what it is registered for
        status = error.status_code
        why = "There is no such page." if status == _NOT_FOUND else error.detail
        view = View(site, request, None)
        with contextlib.suppress(Refused, QueueError):
            view.principal = await access.principal(request)
        return await threads.run(lambda: view.refused(status, why))

    api = create_api(service, access, settings)
    made = Starlette(
        routes=[
            *queues.routes(site),
            *system.routes(site),
            Route("/do/{action}", form.do, methods=["POST"], name="do"),
            Route("/sign-in", form.ask_to_sign_in, methods=["GET"], name="sign-in"),
            Route("/sign-in", form.sign_in, methods=["POST"]),
            Route("/sign-out", form.sign_out, methods=["POST"], name="sign-out"),
            Route("/theme", form.theme, methods=["POST"], name="theme"),
            Route("/events", live.events, methods=["GET"], name="events"),
            Route("/livez", probes.live, methods=["GET"]),
            Route("/readyz", probes.ready, methods=["GET"]),
            Route("/metrics", probes.metrics, methods=["GET"]),
            # Not pages: how well one is compressed would show what it hides from other sites.
            Mount("/static", GZipMiddleware(KeptFiles(), compresslevel=GZIP_LEVEL)),
            Mount("/api/v1", api),
        ],
        middleware=[Middleware(Guard, max_body_bytes=settings.max_body_bytes)],
        exception_handlers={HTTPException: not_found},
    )
    # A redirect would repeat the Host header, which may say anything.
    made.router.redirect_slashes = False

    def end_waits() -> None:
        api.state.end_waits()
        live.end.set()

    made.state.end_waits, made.state.snapshots = end_waits, site.snapshots
    return made


class _Forms:
    """Handles the forms that browsers post."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._access = site.access
        self._changes = Changes(site.service, site.access.store)

    async def ask_to_sign_in(self, request: Request) -> Response:
        view = View(self._site, request, None)
        back = view.query("back")
        return view.page("sign_in.html", "", why="", back=back)

    async def sign_in(self, request: Request) -> Response:
        view = View(self._site, request, None)
        try:
            view.form = await _form(request, 10)
            session = await self._access.login(request, str(view.form.get("token", "")))
        except Refused as refusal:
            back = str(view.form.get("back", ""))
            return view.page("sign_in.html", "", refusal.status, why=refusal.text, back=back)
        except QueueError as error:
            return view.failed(error)
        response = RedirectResponse(view.back(), 303)
        self._access.set_session(request, response, session)
        if not self._access.read_only:
            note = functools.partial(self._changes.note, "sign-in", session.principal)
            await self._access.threads.run_quick(note)
        return response

    async def sign_out(self, request: Request) -> Response:
        view = View(self._site, request, None)
        try:
            principal = await self._access.need(request, Role.VIEWER, writes=False)
            view.form = await _form(request, 10)
            self._access.check_csrf(request, principal, _csrf(view))
        except Refused as refusal:
            return self._site.refused(view, refusal)
        except QueueError as error:
            return view.failed(error)
        response = RedirectResponse(view.url("sign-in"), 303)
        await self._access.sign_out(request, response, principal)
        return response

    async def theme(self, request: Request) -> Response:
        """Keep a theme: it is the browser's own, so nobody has to sign in for it."""
        view = View(self._site, request, None)
        view.form = await _form(request, 10)
        response = RedirectResponse(view.back(), 303)
        view.choose_theme(str(view.form.get("theme", "")), response)
        return response

    async def do(self, request: Request) -> Response:
        """Do what the button of a form does, after a question if it needs one."""
        name = request.path_params["action"]
        if name not in BUTTONS:
            raise HTTPException(404)
        operation, _ = BUTTONS[name]
        view = View(self._site, request, None)
        try:
            view.principal = await self._access.need(request, Role.VIEWER, writes=False)
            view.form = await _form(request, FORM_FIELDS)
            self._access.check_csrf(request, view.principal, _csrf(view))
            self._access.check(view.principal, operation.role, writes=True)
        except Refused as error:
            refusal = error
            return await self._access.threads.run(lambda: self._site.refused(view, refusal))
        except QueueError as error:
            return view.failed(error)
        form = view.content()
        return await self._access.threads.run(
            lambda: self._site.fill(lambda view: self._done(view, name, form), view)
        )

    def _done(self, view: View, name: str, form: Form) -> Response:
        operation, button = BUTTONS[name]
        mask = view.site.mask
        if hides(mask, form.fields) or (mask and name == "edit"):
            return view.refused(422, _MASKED_PAYLOADS if name == "edit" else _MASKED_FIELD)
        if asks(button, form) and not is_confirmed(button, form):
            with view.reading():
                found = count(button, view.service, form)
            return _question(view, button, form, found)
        run = functools.partial(self._changes.make, operation, view.known, form[operation.of])
        try:
            notice = press(name, view.service, form, run)
        except TooManyFound as error:
            return _question(view, button, form, error.found)
        except LastAdminToken as error:
            form = dataclasses.replace(form, fields={**form.fields, "last_admin": "1"})
            return _question(view, button, form, None, str(error))
        self._site.snapshots.forget(form["queue"] or (notice.message or ("",))[0])
        self._access.forget_tokens()
        if notice.secret is not None:
            return system.tokens(view, notice)
        response = RedirectResponse(view.back(), 303)
        view.notify(notice, response)
        return response


async def _form(request: Request, most: int) -> FormData:
    try:
        with anyio.fail_after(BODY_SECONDS):
            return await request.form(max_files=0, max_fields=most)
    except TimeoutError as error:
        raise HTTPException(408, "The form did not arrive in time.") from error


def _csrf(view: View) -> str | None:
    given = view.form.get(CSRF_FIELD)
    return given if isinstance(given, str) else None


def _question(view: View, button: Button, form: Form, found: int | None, why: str = "") -> Response:
    if found == 0:
        return view.refused(422, NO_SUCH_MESSAGE)
    if why:
        pass
    elif form.confirmed is not None and form.confirmed != found:
        why = f"It was about {counted(form.confirmed, 'message')}."
    elif form["confirmed"]:
        why = "The name does not match."
    fields: dict[str, Any] = {
        key: value for key, value in form.fields.items() if key not in {"confirmed", "typed"}
    }
    if form.ids:
        fields["ids"] = ",".join(map(str, form.ids))
    n = "" if found is None else counted(found, "message")
    named = {name: form[name] for name in ("queue", "group", "schedule", "token")}
    return view.page(
        "confirm.html",
        "",
        button=button,
        question=(button.question or "").format(n=n, **named),
        about=_about(view, button, form),
        difference=_difference(view, button, form),
        count=found,
        why=why,
        fields=fields,
        back=view.back(),
    )


def _about(view: View, button: Button, form: Form) -> dict[str, str]:
    # The messages, and the error of one, or of all that are alike.
    if not form["queue"] or "{queue}" in (button.question or ""):
        return {}
    ids = form.ids
    shown = ", ".join(map(str, ids[:_MOST_NAMED]))
    more = f" and {len(ids) - _MOST_NAMED:,} more" if len(ids) > _MOST_NAMED else ""
    facts = {"Queue": form["queue"], "Message" if len(ids) == 1 else "Messages": shown + more}
    facts |= {title: form[name] for name, title in _FILTERS.items()}
    if form["field"]:
        facts["Where"] = f"{form['field']} is {form['value']}"
    if form["column"]:
        facts["Column"] = f"{form['column']} is {form['is'] or 'empty'}"
    mask = view.site.mask
    if form["error"]:
        queue, same = form.queue(view.service), form.choice().error or ""
        facts["Error"] = mask.text(page_alike(queue, same, limit=1, after=None)[1])
        facts["More"] = left_out(queue) or ""
    elif len(ids) == 1 and (found := message_of(form.queue(view.service), ids[0])) is not None:
        facts["Error"] = mask.text(found.error or "")
        facts["Key"] = found.key or ""
    return {title: text for title, text in facts.items() if text}


def _difference(view: View, button: Button, form: Form) -> list[str] | None:
    # Of the payload that a form edits; what does not fit its kind is refused before the question.
    if button.name != "edit" or len(form.ids) != 1:
        return None
    queue = form.queue(view.service)
    found = message_of(queue, form.ids[0])
    if found is None:
        return None
    payload = edited_payload(queue, found.kind, form["payload"])
    return difference(queue, found, payload, view.site.mask)


class _Live:
    """Notifies browsers of changes; all of them share one reading of the queues."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._watching = 0
        self.end = anyio.Event()

    async def events(self, request: Request) -> Response:
        view = View(self._site, request, None)
        try:
            await self._site.access.need(request, Role.VIEWER, writes=False)
        except Refused as refusal:
            return Response(refusal.text, refusal.status, media_type="text/plain")
        except QueueError as error:
            return view.failed(error)
        if self._watching >= _MOST_LIVE:
            return Response("Too many viewers are already connected.", 503, media_type="text/plain")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        every = float(view.query("every")) if view.query("every") in _EVERY else _EVENT_SECONDS
        return StreamingResponse(
            self._changes(request, every), media_type="text/event-stream", headers=headers
        )

    async def _changes(self, request: Request, every: float) -> AsyncIterator[str]:
        access, snapshots = self._site.access, self._site.snapshots
        before: Any = None
        self._watching += 1
        try:
            yield "retry: 3000\n\n"
            while not self.end.is_set():
                try:
                    # The session may have ended.
                    await access.need(request, Role.VIEWER, writes=False)
                    seen = await access.threads.run(functools.partial(snapshots.overview, every))
                except Refused:
                    # The page shows the reason when it is loaded again.
                    yield "event: changed\ndata: \n\n"
                    return
                except QueueError:
                    return
                now = (seen.queues, seen.consumers, seen.dead_consumers, seen.problem)
                if before not in (None, now):
                    yield "event: changed\ndata: \n\n"
                # How old it is, and how often it is counted, if that is more seldom than chosen.
                stretched = pause if (pause := snapshots.pause or 0.0) > every else 0.0
                yield f"event: age\ndata: {snapshots.age:.0f} {stretched:.0f}\n\n"
                before = now
                with anyio.move_on_after(_EVENT_SECONDS):
                    await self.end.wait()
        finally:
            self._watching -= 1


class _Probes:
    """The health pages, which need no login, and the metrics, which name the queues."""

    def __init__(self, service: QueueService, access: Access) -> None:
        self._access = access
        self._metrics = _metrics_of(service)
        # A server that cannot start is still useful: read-only databases can be shown.
        self._health = Health(service, must_start=False)
        # Separate threads, because all threads of requests may wait for the database.
        self._threads = Threads(_MOST_PROBES)

    async def live(self, request: Request) -> Response:
        del request
        return _answer(self._health.live())

    async def ready(self, request: Request) -> Response:
        del request
        return _answer(await self._threads.run(self._health.ready))

    async def metrics(self, request: Request) -> Response:
        if self._metrics is None:
            text = "Metrics need prometheus_client: pip install 'queue-over-sql[prometheus]'."
            return answer_to(Problem(404, "no-metrics", text))
        try:
            await self._access.need(request, Role.VIEWER, writes=False)
            return await self._access.threads.run(self._metrics)
        except (Refused, QueueError) as error:
            return answer_to(error)


def _metrics_of(service: QueueService) -> Callable[[], Response] | None:
    if find_spec("prometheus_client") is None:
        return None
    from queue_over_sql.observability.prometheus import (  # noqa: PLC0415 - an extra
        CONTENT_TYPE,
        DatabaseCollector,
        exposition,
    )

    collector = DatabaseCollector(service)
    return lambda: Response(exposition(collector), headers={"content-type": CONTENT_TYPE})


def _answer(report: Report) -> Response:
    page = page_of(report)
    return Response(page.body, page.status, media_type=page.kind)
