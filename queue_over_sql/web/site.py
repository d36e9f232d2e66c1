"""The common parts of pages: the viewer, the templates, and errors."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import hmac
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.datastructures import FormData
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from queue_over_sql.errors import QueueError
from queue_over_sql.web.access import CSRF_FIELD, Access, Principal, Refused
from queue_over_sql.web.buttons import BUTTONS, Form, Notice
from queue_over_sql.web.changes import message_id
from queue_over_sql.web.clock import DatabaseClock
from queue_over_sql.web.humanize import FILTERS, TIME_FILTERS, shown
from queue_over_sql.web.problems import TITLES, Problem, problem_of, reading
from queue_over_sql.web.settings import Role, WebSettings
from queue_over_sql.web.snapshot import Snapshots
from queue_over_sql.web.static_files import static_path

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import Router

    from queue_over_sql import QueueService
    from queue_over_sql.web.masking import Mask

    Page = Callable[["View"], Response]

_log = logging.getLogger(__name__)

NAVIGATION: Final = {
    "overview": "Queues",
    "dead": "Dead letters",
    "consumers": "Consumers",
    "schedules": "Schedules",
    "topics": "Topics",
    "health": "Health",
    "audit": "Audit",
    "tokens": "Tokens",
}
"""The navigation of each page: names of routes, and their titles."""

ROLES: Final = {"audit": Role.OPERATOR, "tokens": Role.ADMIN}
"""The roles of pages that a viewer may not see."""

FORM_FIELDS: Final = 2_000
"""How many fields a form may have; a page of messages has fewer boxes."""

THEMES: Final = ("system", "light", "dark")
"""What a visitor may choose; ``system`` is as the browser says."""

_FLASH: Final = "queue_over_sql_flash"
_THEME: Final = "queue_over_sql_theme"
_THEME_SECONDS: Final = 365 * 86_400


class Site:
    """The shared state of all pages.

    Args:
        service: the service with the queues.
        settings: of the application.
        access: identifies viewers.
        snapshots: of all queues.
    """

    def __init__(
        self, service: QueueService, settings: WebSettings, access: Access, snapshots: Snapshots
    ) -> None:
        self.service = service
        self.settings = settings
        self.access = access
        self.snapshots = snapshots
        self.mask = access.mask
        self.clock = access.store.clock
        self._templates = _environment(self.mask, self.clock)

    def route(
        self,
        path: str,
        name: str,
        page: Page,
        role: Role = Role.VIEWER,
        *,
        searches: Callable[[View], bool] | None = None,
    ) -> Route:
        """A route to a page for this role; ``searches``: whether it reads many messages."""

        async def endpoint(request: Request) -> Response:
            return await self.answer(request, page, role, searches)

        return Route(path, endpoint, methods=["GET"], name=name)

    async def answer(
        self,
        request: Request,
        page: Page,
        role: Role,
        searches: Callable[[View], bool] | None = None,
    ) -> Response:
        """Show a page to a viewer who may see it; others are asked to sign in."""
        view = View(self, request, None)
        try:
            view.principal = await self.access.principal(request)
            principal = self.access.check(view.principal, role, writes=False)
            if searches is not None and searches(view):
                return await self.access.search(lambda: self.look(page, view), principal)
            return await self.access.threads.run(lambda: self.look(page, view))
        except Refused as refusal:
            return self.refused(view, refusal)
        except QueueError as error:
            return view.failed(error)

    def fill(self, page: Page, view: View) -> Response:
        """Render a page, or an error page."""
        try:
            return page(view)
        except (Problem, Refused, QueueError, ValueError, TypeError) as error:
            return view.failed(error)

    def look(self, page: Page, view: View) -> Response:
        """Render a page that only reads, within the time limit for reads."""

        def read(view: View) -> Response:
            with view.reading():
                return page(view)

        return self.fill(read, view)

    def refused(self, view: View, refusal: Refused) -> Response:
        """Ask unknown viewers to sign in; show the reason to all others."""
        if refusal.status == 401 and view.principal is None:  # noqa: PLR2004
            if view.query("live"):
                # A part of a page cannot show the sign-in form, so the whole page is loaded again.
                return Response(status_code=204, headers={"hx-refresh": "true"})
            back = view.address if view.request.method == "GET" else ""
            return RedirectResponse(view.url("sign-in", back=back), 303)
        response = view.refused(refusal.status, refusal.text)
        if refusal.retry_after is not None:
            response.headers["Retry-After"] = str(refusal.retry_after)
        return response

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        """Fill a template."""
        return self._templates.get_template(template).render(values)


@dataclasses.dataclass
class View:
    """One request for one page; ``principal`` is None before the viewer is identified."""

    site: Site
    request: Request
    principal: Principal | None
    form: FormData = dataclasses.field(default_factory=FormData)

    @property
    def service(self) -> QueueService:
        """The service with the queues."""
        return self.site.service

    @property
    def known(self) -> Principal:
        """The viewer, if identified.

        Raises:
            Refused: the viewer is not identified.
        """
        return self.site.access.check(self.principal, Role.VIEWER, writes=False)

    def reading(self) -> AbstractContextManager[None]:
        """Limit the time of searches and counts; a longer one raises ``Problem``."""
        return reading(self.service, self.site.settings.longest_read)

    @property
    def address(self) -> str:
        """The path and query of this page, even if only its live part is requested."""
        url = self.request.url
        query = (url.remove_query_params("live") if self.query("live") else url).query
        return url.path + (f"?{query}" if query else "")

    def query(self, name: str) -> str:
        """A parameter of the address; empty if it is not given."""
        return self.request.query_params.get(name, "").strip()

    def after(self, name: str = "after") -> int | None:
        """The id after which a page begins, in a parameter of the address.

        Raises:
            ValueError: it is not a number.
        """
        text = self.query(name)
        if not text:
            return None
        if (number := message_id(text)) is None:
            msg = f"{name} must be the id of a message"
            raise ValueError(msg)
        return number

    def content(self) -> Form:
        """The content of the form."""
        texts = [(name, value) for name, value in self.form.multi_items() if isinstance(value, str)]
        fields = {name: value for name, value in texts if name not in {"id", "ids"}}
        ids = [value for name, value in texts if name == "id"]
        ids += [each for name, value in texts if name == "ids" for each in value.split(",")]
        numbers = [number for each in ids if (number := message_id(each)) is not None]
        chosen = list(dict.fromkeys(numbers))
        fields.pop(CSRF_FIELD, None)
        return Form(fields, chosen, self.site.mask)

    def back(self) -> str:
        """The page of the form, on this server."""
        given = self.form.get("back")
        root = self.request.scope.get("root_path", "")
        if not isinstance(given, str) or not given.startswith(f"{root}/"):
            return self.url("overview")
        elsewhere = given.startswith("//") or "\\" in given or not given.isprintable()
        return self.url("overview") if elsewhere else given

    def page(self, template: str, here: str, status: int = 200, **values: Any) -> HTMLResponse:
        """Render a template; ``here`` is its entry in the navigation."""
        principal, read_only = self.principal, self.site.access.read_only
        may = {
            name: principal is not None and not read_only and principal.role.covers(operation.role)
            for name, (operation, _) in BUTTONS.items()
        }
        flash = self._flash()
        shared = {
            "navigation": {
                name: text
                for name, text in NAVIGATION.items()
                if principal and principal.role.covers(ROLES.get(name, Role.VIEWER))
            },
            "here": here,
            "layout": "live.html" if self.query("live") else "base.html",
            "title": self.site.settings.title,
            "principal": principal,
            "csrf": principal.csrf if principal else "",
            "may": may,
            "buttons": {name: button for name, (_, button) in BUTTONS.items()},
            "flash": flash,
            "theme": self._theme,
            "themes": THEMES,
            "again": self._again,
            "read_only": read_only,
            "url": self.url,
            "static": self.static,
            "address": self.address,
            "q": self.query("q"),
            "database": self.site.settings.database,
            "databases": self._databases,
        }
        response = HTMLResponse(self.site.render(template, shared | values), status)
        if flash is not None:
            response.delete_cookie(_FLASH, path=self._root)
        return response

    def refused(
        self, status: int, why: str, message: tuple[str, int] | None = None
    ) -> HTMLResponse:
        """A page with the reason of a refusal, and a link to a message of a queue."""
        heading = TITLES.get(status, "Refused")
        back = self.back() if self.form.get("back") else ""
        return self.page(
            "refused.html", "", status, why=why, heading=heading, back=back, message=message
        )

    def failed(self, error: Exception) -> HTMLResponse:
        """A page with an error."""
        problem = problem_of(error)
        return self.refused(problem.status, problem.text)

    def url(self, route: str, /, **parameters: Any) -> str:
        """The path of a route; other parameters become its query."""
        places = {
            name: value
            for name, value in parameters.items()
            if name in {"name", "number", "action"}
        }
        query = {
            name: value
            for name, value in parameters.items()
            if name not in places and value not in (None, "")
        }
        router: Router = self.request.app.router
        path = str(self.request.scope.get("root_path", "") + router.url_path_for(route, **places))
        return f"{path}?{urlencode(query)}" if query else path

    def static(self, file: str) -> str:
        """The path of a static file."""
        return f"{self.request.scope.get('root_path', '')}{static_path(file)}"

    def choose_theme(self, theme: str, response: Response) -> None:
        """Keep the theme that a visitor chose, in a cookie of this browser."""
        if theme in THEMES[1:]:
            response.set_cookie(
                _THEME,
                theme,
                max_age=_THEME_SECONDS,
                path=self._root,
                httponly=True,
                samesite="lax",
            )
        elif theme == THEMES[0]:
            response.delete_cookie(_THEME, path=self._root, httponly=True, samesite="lax")

    @property
    def _again(self) -> str:
        if self.principal is None:
            # Not its query: somebody may have put a token there.
            return self.url("sign-in", back=self.query("back") or self.form.get("back"))
        return self.address if self.request.method == "GET" else self.back()

    @property
    def _theme(self) -> str:
        given = self.request.cookies.get(_THEME, "")
        return given if given in THEMES[1:] else ""

    @property
    def _databases(self) -> dict[str, str]:
        # The paths of all databases of this dashboard, beside that of this one.
        settings = self.site.settings
        above = self._root.removesuffix(f"{settings.database}/")
        return {name: f"{above}{name}/" for name in settings.databases}

    # -- results of forms, shown on the next page

    @property
    def _root(self) -> str:
        return f"{self.request.scope.get('root_path', '')}/"

    def notify(self, notice: Notice, response: Response) -> None:
        """Let the next page show the result of a form."""
        content = {
            "text": notice.text[:500],
            "undo": notice.undo,
            "message": notice.message,
            "leads": notice.leads,
        }
        text = base64.urlsafe_b64encode(json.dumps(content).encode()).decode()
        if len(text) > 3000:  # noqa: PLR2004 - browsers keep cookies of 4 kB
            content["undo"] = None
            text = base64.urlsafe_b64encode(json.dumps(content).encode()).decode()
        cookie = f"{text}.{self._sign(text)}"
        response.set_cookie(
            _FLASH, cookie, max_age=60, path=self._root, httponly=True, samesite="lax"
        )

    def _flash(self) -> Mapping[str, Any] | None:
        text, _, signed = self.request.cookies.get(_FLASH, "").partition(".")
        if not signed or self.principal is None:
            return None
        if not hmac.compare_digest(signed.encode(), self._sign(text).encode()):
            return None
        found: Mapping[str, Any] = json.loads(base64.urlsafe_b64decode(text))
        return found

    def _sign(self, text: str) -> str:
        # With a secret that only this browser and this server know.
        key = (self.principal.csrf or "") if self.principal else ""
        return hmac.new(f"flash {key}".encode(), text.encode(), hashlib.sha256).hexdigest()


def _environment(mask: Mask, clock: DatabaseClock) -> Environment:
    def by_clock(
        show: Callable[[datetime | None, datetime], Markup],
    ) -> Callable[[datetime | None], Markup]:
        return lambda at: show(at, clock.now())

    def masked(value: Any) -> Any:
        return mask.text(value) if isinstance(value, str) else mask.apply(value)

    environment = Environment(
        loader=PackageLoader("queue_over_sql.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=shown,
    )
    times = {name: by_clock(show) for name, show in TIME_FILTERS.items()}
    environment.filters |= {**FILTERS, **times, "masked": masked}
    return environment
