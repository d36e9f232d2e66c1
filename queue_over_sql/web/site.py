"""The pages' common parts: who looks, how a template is filled, what an error looks like."""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import hmac
import json
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.datastructures import FormData
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from queue_over_sql.errors import QueueError
from queue_over_sql.web.access import CSRF_FIELD, Access, Principal, Refused
from queue_over_sql.web.actions import ACTIONS, Asked, Told
from queue_over_sql.web.masking import Mask
from queue_over_sql.web.problems import TITLES, Problem, problem_of, reading
from queue_over_sql.web.settings import Role, WebSettings
from queue_over_sql.web.snapshot import Overview, Snapshots
from queue_over_sql.web.words import FILTERS, shown

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import Router

    from queue_over_sql.service import QueueService

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
}
"""The pages that each page links to: names of routes, and what they are called."""

ROLES: Final = {"audit": Role.OPERATOR}
"""The roles that pages need where a viewer may not see them."""

FORM_FIELDS: Final = 2_000
"""How many fields a form may have: a page of messages has fewer boxes."""

_BIGINT: Final = 2**63
_FLASH: Final = "queue_over_sql_flash"
_ID: Final = re.compile(r"-?[0-9]{1,19}")


class Site:
    """What all pages share.

    Args:
        service: whose queues are shown.
        settings: of the application.
        access: says who looks.
        snapshots: of all queues.
    """

    def __init__(
        self, service: QueueService, settings: WebSettings, access: Access, snapshots: Snapshots
    ) -> None:
        self.service = service
        self.settings = settings
        self.access = access
        self.snapshots = snapshots
        self.mask = Mask(settings.masked)
        self._templates = _environment()

    def route(self, path: str, name: str, page: Page, role: Role = Role.VIEWER) -> Route:
        """A route to a page that this role may see."""

        async def endpoint(request: Request) -> Response:
            return await self.answer(request, page, role)

        return Route(path, endpoint, methods=["GET"], name=name)

    async def answer(self, request: Request, page: Page, role: Role) -> Response:
        """Show a page to whoever may see it; others are asked to sign in."""
        view = View(self, request, None)
        try:
            view.principal = await self.access.principal(request)
            self.access.check(view.principal, role, writes=False)
            return await self.access.threads.run(lambda: self.look(page, view))
        except Refused as refusal:
            return self.refused(view, refusal)
        except QueueError as error:
            return view.failed(error)

    def fill(self, page: Page, view: View) -> Response:
        """Fill a page, or say why that cannot be done."""
        try:
            return page(view)
        except (Problem, QueueError, ValueError, TypeError) as error:
            return view.failed(error)

    def look(self, page: Page, view: View) -> Response:
        """Fill a page that only reads, in the time that a read may take."""

        def read(view: View) -> Response:
            with view.reading():
                return page(view)

        return self.fill(read, view)

    def refused(self, view: View, refusal: Refused) -> Response:
        """Ask whoever is not known to sign in, and tell all others why not."""
        if refusal.status == 401 and view.principal is None:  # noqa: PLR2004
            if view.query("live"):
                # A part of a page cannot ask: the whole page is opened again, and does.
                return Response(status_code=204, headers={"hx-refresh": "true"})
            back = view.address if view.request.method == "GET" else ""
            return RedirectResponse(view.url("sign-in", back=back), 303)
        return view.refused(refusal.status, refusal.text)

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        """Fill a template."""
        return self._templates.get_template(template).render(values)


@dataclasses.dataclass
class View:
    """One look at one page; ``principal`` is None before it is known who looks."""

    site: Site
    request: Request
    principal: Principal | None
    form: FormData = dataclasses.field(default_factory=FormData)

    @property
    def service(self) -> QueueService:
        """The service whose queues are shown."""
        return self.site.service

    @property
    def known(self) -> Principal:
        """Who looks, where that is known.

        Raises:
            Refused: nobody known does.
        """
        return self.site.access.check(self.principal, Role.VIEWER, writes=False)

    def reading(self) -> AbstractContextManager[None]:
        """Let searches and counts take as long as the settings say; else it is a ``Problem``."""
        return reading(self.service, self.site.settings.longest_read)

    @functools.cached_property
    def overview(self) -> Overview:
        """What was seen of all queues."""
        return self.site.snapshots.overview()

    @property
    def address(self) -> str:
        """The path and query of this page, also where only its live part is asked for."""
        url = self.request.url
        query = (url.remove_query_params("live") if self.query("live") else url).query
        return url.path + (f"?{query}" if query else "")

    def query(self, name: str) -> str:
        """A parameter of the address; empty where it is not given."""
        return self.request.query_params.get(name, "").strip()

    def after(self) -> int | None:
        """The id after which a page begins.

        Raises:
            ValueError: it is no number.
        """
        text = self.query("after")
        if not text:
            return None
        if (number := message_id(text)) is None:
            msg = "after must be the id of a message"
            raise ValueError(msg)
        return number

    def asked(self) -> Asked:
        """What the form says."""
        texts = [(name, value) for name, value in self.form.multi_items() if isinstance(value, str)]
        fields = {name: value for name, value in texts if value and name not in {"id", "ids"}}
        ids = [value for name, value in texts if name == "id"]
        ids += [each for name, value in texts if name == "ids" for each in value.split(",")]
        numbers = [number for each in ids if (number := message_id(each)) is not None]
        chosen = list(dict.fromkeys(numbers))
        fields.pop(CSRF_FIELD, None)
        return Asked(fields, chosen)

    def back(self) -> str:
        """Where the form came from, on this server."""
        given = self.form.get("back")
        root = self.request.scope.get("root_path", "")
        if not isinstance(given, str) or not given.startswith(f"{root}/"):
            return self.url("overview")
        elsewhere = given.startswith("//") or "\\" in given or not given.isprintable()
        return self.url("overview") if elsewhere else given

    def page(self, template: str, here: str, status: int = 200, **values: Any) -> HTMLResponse:
        """Fill a template; ``here`` is the entry of the navigation that it belongs to."""
        principal, read_only = self.principal, self.site.access.read_only
        may = {
            name: principal is not None and not read_only and principal.role.covers(action.role)
            for name, action in ACTIONS.items()
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
            "actions": ACTIONS,
            "overview": self.overview if principal else None,
            "flash": flash,
            "read_only": read_only,
            "url": self.url,
            "static": self.static,
            "address": self.address,
        }
        response = HTMLResponse(self.site.render(template, shared | values), status)
        if flash is not None:
            response.delete_cookie(_FLASH, path=self._root)
        return response

    def refused(self, status: int, why: str) -> HTMLResponse:
        """A page that says why not."""
        return self.page("refused.html", "", status, why=why, heading=TITLES.get(status, "Refused"))

    def failed(self, error: Exception) -> HTMLResponse:
        """A page that says what failed."""
        problem = problem_of(error)
        return self.refused(problem.status, problem.text)

    def url(self, route: str, /, **parameters: Any) -> str:
        """The path of a route; parameters that it has no place for become its query."""
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
        """The path of a file that does not change."""
        return f"{self.request.scope.get('root_path', '')}/static/{quote(file)}"

    # -- what was done, told on the next page

    @property
    def _root(self) -> str:
        return f"{self.request.scope.get('root_path', '')}/"

    def told(self, told: Told, response: Response) -> None:
        """Have the next page say what was done."""
        content = {"text": told.text[:500], "undo": told.undo}
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
        # By what only this browser and this server know.
        key = (self.principal.csrf or "") if self.principal else ""
        return hmac.new(f"flash {key}".encode(), text.encode(), hashlib.sha256).hexdigest()


def message_id(text: str) -> int | None:
    """The id of a message; None where a text is none. Rows of adopted tables may be below zero."""
    return int(text) if _ID.fullmatch(text) and abs(int(text)) < _BIGINT else None


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("queue_over_sql.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=shown,
    )
    environment.filters |= FILTERS
    return environment
