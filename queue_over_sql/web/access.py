"""Access: who sends a request, what they may do, and protection against forged requests.

There are four ways to identify a caller: a bearer token; the session cookie of a login with a
token; the header of a reverse proxy, if it is configured and the proxy's address is listed; or a
request from this machine, if ``open_role`` is set.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import hmac
import logging
import secrets
import threading
import time
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

from queue_over_sql.errors import QueueError
from queue_over_sql.values.durations import duration_text
from queue_over_sql.web.attempts import Attempts, parsed_address
from queue_over_sql.web.masking import Mask
from queue_over_sql.web.settings import Role, WebSettings
from queue_over_sql.web.tables import StoredToken, WebStore, hash_of
from queue_over_sql.web.threads import Busy, Threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import HTTPConnection
    from starlette.responses import Response

T = TypeVar("T")
_log = logging.getLogger(__name__)

COOKIE: Final = "queue_over_sql_session"
CSRF_FIELD: Final = "csrf"
"""The form field with ``Principal.csrf``; CSRF_HEADER is the header with it."""
CSRF_HEADER: Final = "x-csrf-token"
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})

ANY_QUEUE: Final = "*"
"""For ``Access.check``: callers may do it who have rights on some queues only."""

# Tokens are read again after this many seconds, so that removed ones stop working.
_FRESH_SECONDS: Final = 1.0
# A cookie that is not valid has them read again after this many: its token may be a new one.
_NEWER_SECONDS: Final = 0.1
_LONGEST_TOKEN: Final = 512
_OF_PROXIES: Final = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
_BUSY_SECONDS: Final = 3
# How often to check again for tables that could not be created.
_RETRY_SECONDS: Final = 10.0


@dataclasses.dataclass(frozen=True)
class Principal:
    """The caller of a request.

    Attributes:
        name: of the token, from the proxy, or ``local``.
        role: what the caller may do.
        address: where the request comes from; None if that is unknown.
        way: ``token``, ``session``, ``proxy`` or ``local``.
        csrf: the value that forms and scripts must send; None for a bearer token, which needs none.
        queues: the patterns of the only queues that the caller may use; empty: all queues.
    """

    name: str
    role: Role
    address: str | None = None
    way: str = "token"
    csrf: str | None = dataclasses.field(default=None, repr=False)
    queues: tuple[str, ...] = ()

    def may_use(self, queue: str) -> bool:
        """Whether the caller has rights on this queue."""
        return not self.queues or any(fnmatchcase(queue, each) for each in self.queues)


class Refused(Exception):
    """A refused request; pages and the API show it in their own form.

    Attributes:
        status: the HTTP status of the answer.
        code: a short name that never changes, such as ``login-needed``.
        text: what to do about it.
        retry_after: seconds, with 429.
    """

    def __init__(self, status: int, code: str, text: str, retry_after: int | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.text = text
        self.retry_after = retry_after


class Access:
    """Identifies callers, signs browsers in and out, and refuses forged requests.

    Any thread may use it.

    Args:
        store: the tables of tokens and of the audit.
        settings: of the server.
        threads: the threads for queries.

    Attributes:
        read_only: whether no caller can change anything.
        mask: hides fields from all callers.
    """

    def __init__(self, store: WebStore, settings: WebSettings, threads: Threads) -> None:
        self.store = store
        self.settings = settings
        self.threads = threads
        self.read_only = settings.read_only
        self._proxies = settings.proxies
        # A browser may be signed in to several databases of one dashboard.
        self._cookie = f"{COOKIE}_{settings.database}" if settings.database else COOKIE
        self._secret = (settings.secret or secrets.token_urlsafe(32)).encode()
        self.mask = Mask(settings.masked, self._secret)
        self._tokens = _FreshTokens(store)
        self._wrong = Attempts()
        self._prepared = False
        self._tried_at = float("-inf")

    async def prepare(self) -> None:
        """Create the tables, and check whether the database accepts writes; safe to repeat.

        If it could not create the tables, it checks now and then whether they exist.

        Raises:
            DatabaseUnavailable: the database cannot be reached; the next call tries again.
        """
        late = time.monotonic() - self._tried_at > _RETRY_SECONDS
        if not self._prepared or (self.store.problem is not None and late):
            self._tried_at = time.monotonic()
            await self.threads.run_quick(self._prepare)

    def _prepare(self) -> None:
        self.store.prepare()
        if self.store.problem is not None and not self._prepared:
            _log.warning("%s", self.store.problem)
        if not self.read_only and not self.store.takes_writes():
            _log.warning("The database is read-only, so nothing can be changed here.")
            self.read_only = True
        self._prepared = True

    async def search(self, do: Callable[[], T], who: Principal) -> T:
        """Call a function in a thread that reads many messages, as few at once as ``Threads`` lets.

        Raises:
            Refused: too many searches run already (429).
        """
        try:
            return await self.threads.search(do, who.name)
        except Busy:
            text = "Other searches are still running here. Wait a few seconds, then try again."
            raise Refused(429, "busy", text, _BUSY_SECONDS) from None

    # -- identify the caller

    async def principal(self, request: HTTPConnection) -> Principal | None:
        """The caller; None if the request has no identification.

        Raises:
            Refused: a wrong token (401), too many of them (429), or an invalid host name for this
                machine (403).
            DatabaseUnavailable: the tokens cannot be read.
        """
        await self.prepare()
        address = self.address(request)
        if self.settings.open_role is not None:
            self._check_local(request)
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return await self._by_token(given.strip(), address)
        # Without the tables nobody has a session; callers without a token may still read.
        cookie = request.cookies.get(self._cookie) if self.store.problem is None else None
        if cookie is not None:
            known = await self._tokens.by_name(self.threads)
            found = _session_of(cookie, known, self._now())
            if found is None:
                known = await self._tokens.by_name(self.threads, _NEWER_SECONDS)
                found = _session_of(cookie, known, self._now())
            if found is not None:
                token, session = found
                csrf = _signed(token.token_hash.encode(), "csrf", session)
                return Principal(token.name, token.role, address, "session", csrf, token.queues)
        by_proxy = self._by_proxy(request, address)
        if by_proxy is not None or self.settings.open_role is None:
            return by_proxy
        # With the first token, everybody needs one; without the table there is none.
        has_tokens = self.store.problem is None and await self._tokens.by_name(self.threads)
        return None if has_tokens else self._by_place(address)

    async def need(
        self, request: HTTPConnection, role: Role | None, *, writes: bool, queue: str = ""
    ) -> Principal:
        """The caller, if they may do it.

        Args:
            request: the request.
            role: the needed role; None: any.
            writes: whether the request changes anything.
            queue: the queue that it is about; see ``check``.

        Raises:
            Refused: the caller is unknown (401) or not allowed (403), or the server is read-only.
        """
        return self.check(await self.principal(request), role, writes=writes, queue=queue)

    def check(
        self, found: Principal | None, role: Role | None, *, writes: bool, queue: str = ""
    ) -> Principal:
        """Refuse an unknown caller, or one who may not do it.

        Args:
            found: the caller.
            role: the needed role; None: any.
            writes: whether the request changes anything.
            queue: the queue that it is about, or ``ANY_QUEUE``; without one, callers are refused
                who have rights on some queues only.

        Raises:
            Refused: as in ``need``.
        """
        if found is None:
            raise Refused(401, "login-needed", "Send a token: Authorization: Bearer TOKEN.")
        if role is not None and not found.role.covers(role):
            text = f"This requires the role {role}, but {found.name} has the role {found.role}."
            raise Refused(403, "role-needed", text)
        if queue != ANY_QUEUE and found.queues and not (queue and found.may_use(queue)):
            text = f"The token of {found.name} is only for the queues {', '.join(found.queues)}."
            raise Refused(403, "queue-not-allowed", text)
        if writes and self.read_only:
            raise Refused(
                403, "read-only", "This web server is read-only, so nothing can be changed here."
            )
        return found

    def check_csrf(self, request: HTTPConnection, principal: Principal, given: str | None) -> None:
        """Refuse a change that another site made the user's browser send.

        Args:
            request: any but GET and HEAD.
            principal: the caller.
            given: the form field ``csrf`` or the header ``X-CSRF-Token``.

        Raises:
            Refused: it does not come from a page of this server.
        """
        if principal.way == "token":
            return
        self.check_same_origin(request)
        expected = principal.csrf or ""
        if not expected or not _equal(given or "", expected):
            raise Refused(
                403,
                "csrf",
                "The form is too old or from another web server: open the page again. "
                "A program must send a token in the header Authorization: Bearer TOKEN.",
            )

    def check_same_origin(self, request: HTTPConnection) -> None:
        """Refuse a request, such as a login, that does not come from a page of this server.

        Raises:
            Refused: Origin is missing or wrong, or the browser says that it is cross-site.
        """
        site = request.headers.get("sec-fetch-site")
        origins = request.headers.getlist("origin")
        own = len(origins) == 1 and self._is_own(origins[0], request)
        if (site is not None and site != "same-origin") or not own:
            raise Refused(
                403,
                "other-origin",
                "The request does not come from a page of this web server. "
                "A program must send a token in the header Authorization: Bearer TOKEN.",
            )

    def address(self, request: HTTPConnection) -> str | None:
        """The caller's address: the one that a listed proxy gives, else the connection's."""
        peer = None if request.client is None else request.client.host
        if not self._is_proxy(peer):
            return peer
        said = ",".join(request.headers.getlist("x-forwarded-for")).split(",")
        # From the right: our own proxies wrote the first address that is not theirs.
        for each in reversed([part.strip() for part in said if part.strip()]):
            if not self._is_proxy(each):
                return each[:64]
        return peer

    # -- logins of browsers

    async def login(self, request: HTTPConnection, given: str) -> WebSession:
        """Begin a session with a token.

        Args:
            request: the request of the form.
            given: the token.

        Raises:
            Refused: the token is wrong (401), there were too many wrong ones (429), or the form
                does not come from this server (403).
        """
        await self.prepare()
        if self.settings.open_role is not None:
            self._check_local(request)
        self.check_same_origin(request)
        address = self.address(request)
        token = await self._find(given.strip(), address)
        if token is None:
            self._check_rate(address)
            self._wrong.count(address)
            raise Refused(401, "wrong-token", "There is no such token, or it has expired.")
        if token.queues or token.role is Role.PUBLISHER:
            text = (
                f"The token of {token.name} is for programs, which send it to the HTTP API: it "
                "publishes only, or is for some queues only."
            )
            raise Refused(403, "role-needed", text)
        seconds = self.settings.session_hours * 3600
        until = self.store.clock.at_hand() + timedelta(seconds=seconds)
        if token.expires_at is not None:
            until = min(until, token.expires_at)
        return WebSession(token, _new_session(token, until), until, address)

    def set_session(self, request: HTTPConnection, response: Response, session: WebSession) -> None:
        """Set the session cookie, which replaces any other."""
        response.set_cookie(
            self._cookie,
            session.cookie,
            expires=session.until,
            path=_cookie_path(request),
            secure=self._is_secure(request),
            httponly=True,
            samesite="lax",
        )

    def end_session(self, request: HTTPConnection, response: Response) -> None:
        """Delete the session cookie."""
        path, secure = _cookie_path(request), self._is_secure(request)
        response.delete_cookie(
            self._cookie, path=path, secure=secure, httponly=True, samesite="lax"
        )

    async def sign_out(self, request: HTTPConnection, response: Response, who: Principal) -> None:
        """End all sessions of the caller's token, on all servers within a second.

        Sessions end only in this browser if the database takes no writes.
        """
        self.end_session(request, response)
        if who.way == "session":
            try:
                await self.threads.run_quick(lambda: self.store.end_sessions(who.name))
            except QueueError as error:
                _log.warning("The sessions of %s end in one browser only: %s", who.name, error)
            self.forget_tokens()

    def forget_tokens(self) -> None:
        """Read the tokens again now, because one was added or removed."""
        self._tokens.forget()

    # -- inner

    def _now(self) -> datetime:
        # Whoever reads the tokens reads the clock.
        return self.store.clock.at_hand()

    async def _by_token(self, given: str, address: str | None) -> Principal:
        token = await self._find(given, address)
        if token is not None:
            return Principal(token.name, token.role, address, queues=token.queues)
        # Accept a right token, so that a program with an old token cannot lock out its neighbours.
        self._check_rate(address)
        self._wrong.count(address)
        raise Refused(401, "wrong-token", "There is no such token, or it has expired.")

    async def _find(self, text: str, address: str | None) -> StoredToken | None:
        known = await self._tokens.by_hash(self.threads)
        if not 0 < len(text) <= _LONGEST_TOKEN:
            return None
        given = hash_of(text)
        token = known.get(given)
        if token is None and self._wrong.blocked_for(address) is None:
            # Another server may just have made it. Wrong tokens are limited, so this is, too.
            token = (await self._tokens.by_hash(self.threads, 0.0)).get(given)
        # The lookup only reveals how a hash begins; the comparison takes constant time.
        if token is None or not _equal(token.token_hash, given) or token.expired(self._now()):
            return None
        return token

    def _check_rate(self, address: str | None) -> None:
        if (seconds := self._wrong.blocked_for(address)) is not None:
            text = f"Too many wrong tokens from {address}: try again in {duration_text(seconds)}."
            raise Refused(429, "too-many-attempts", text, seconds)

    def _by_proxy(self, request: HTTPConnection, address: str | None) -> Principal | None:
        settings = self.settings
        peer = None if request.client is None else request.client.host
        if settings.proxy_header is None or not self._is_proxy(peer):
            return None
        names = request.headers.getlist(settings.proxy_header)
        # The client itself may have sent one of two headers.
        if len(names) != 1 or not (name := names[0].strip()):
            return None
        role = settings.proxy_role
        if settings.proxy_role_header is not None:
            roles = request.headers.getlist(settings.proxy_role_header)
            if len(roles) > 1:
                return None
            try:
                role = Role(roles[0].strip().lower()) if roles else role
            except ValueError:
                return None
        csrf = _signed(self._secret, "proxy", name)
        return Principal(name[:200], role, address, "proxy", csrf)

    def _by_place(self, address: str | None) -> Principal | None:
        role = self.settings.open_role
        if role is None or not (address is None or is_loopback(address)):
            return None
        return Principal("local", role, address, "local", _signed(self._secret, "local"))

    def _check_local(self, request: HTTPConnection) -> None:
        # DNS rebinding: another site's name may resolve to this machine.
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not is_loopback(_host_of(hosts[0])):
            text = (
                "This web server is for this machine only: open it as http://127.0.0.1 or "
                "http://localhost."
            )
            raise Refused(403, "other-host", text)
        # A proxy on this machine would let everybody in.
        if any(name in request.headers for name in _OF_PROXIES):
            text = "Without tokens this web server does not accept proxies: require tokens."
            raise Refused(403, "through-a-proxy", text)

    def _is_own(self, origin: str, request: HTTPConnection) -> bool:
        if origin in self.settings.origins:
            return True
        scheme, _, place = origin.partition("://")
        # A proxy that ends TLS forwards plain HTTP, never the other way round.
        if scheme not in {"http", "https"} or (request.url.scheme == "https" != scheme):
            return False
        hosts = request.headers.getlist("host")
        return len(hosts) == 1 and _with_port(place, scheme) == _with_port(hosts[0], scheme)

    def _is_secure(self, request: HTTPConnection) -> bool:
        # A proxy may have ended the page's TLS.
        origins = [*self.settings.origins, *request.headers.getlist("origin")]
        return request.url.scheme == "https" or any(o.startswith("https://") for o in origins)

    def _is_proxy(self, address: str | None) -> bool:
        if not self._proxies or address is None:
            return False
        found = parsed_address(address)
        return found is not None and any(found in network for network in self._proxies)


@dataclasses.dataclass(frozen=True)
class WebSession:
    """The session of a signed-in browser.

    Attributes:
        token: the token that it was made from; it ends with it.
        cookie: the value in the browser.
        until: when it ends.
        address: the address of the login.
    """

    token: StoredToken
    cookie: str = dataclasses.field(repr=False)
    until: datetime
    address: str | None

    @property
    def principal(self) -> Principal:
        """The signed-in user, for the audit."""
        return Principal(self.token.name, self.token.role, self.address, "session")


class _FreshTokens:
    """The tokens by their hash; read again if they are older than the caller accepts."""

    def __init__(self, store: WebStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known: list[StoredToken] = []
        self._read_at = float("-inf")

    def forget(self) -> None:
        self._read_at = float("-inf")

    async def by_hash(
        self, threads: Threads, age: float = _FRESH_SECONDS
    ) -> dict[str, StoredToken]:
        return {token.token_hash: token for token in await self._fresh(threads, age)}

    async def by_name(
        self, threads: Threads, age: float = _FRESH_SECONDS
    ) -> dict[str, StoredToken]:
        return {token.name: token for token in await self._fresh(threads, age)}

    async def _fresh(self, threads: Threads, age: float) -> list[StoredToken]:
        insist_on_tables(self._store)
        since = time.monotonic() - age
        if self._read_at >= since:
            return self._known
        return await threads.run_quick(lambda: self._read(since))

    def _read(self, since: float) -> list[StoredToken]:
        with self._lock:
            # Whoever had the lock may have read them.
            if self._read_at < since:
                began = time.monotonic()
                self._known = self._store.tokens()
                self._store.clock.now()
                self._read_at = began
            return self._known


def insist_on_tables(store: WebStore) -> WebStore:
    """Check that the tables of tokens and of the audit exist.

    Raises:
        Refused: they are missing; the text says who can create them.
    """
    if store.problem is not None:
        raise Refused(503, "no-token-table", store.problem)
    return store


def check_binding(host: str, settings: WebSettings, *, has_tokens: bool) -> None:
    """Refuse to serve an address that others can reach without authentication.

    Args:
        host: the address of the server.
        settings: of the server.
        has_tokens: whether the database has a token.

    Raises:
        ValueError: others could reach it without a token, or nobody could log in; the message says
            what to do.
    """
    if is_loopback(host):
        return
    if settings.open_role is not None:
        msg = (
            f"Everybody who reaches {host!r} would be {settings.open_role} without a token. Bind "
            "127.0.0.1, or require tokens: create one with queue-over-sql token add NAME --role "
            "admin."
        )
        raise ValueError(msg)
    if settings.proxy_header is None and not has_tokens:
        msg = (
            f"Nobody could log in at {host!r}, because there is no token. Create one with "
            "queue-over-sql token add NAME --role admin."
        )
        raise ValueError(msg)


def is_loopback(host: str | None) -> bool:
    """Whether a host name or address means only this machine."""
    if host is None:
        return False
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    found = parsed_address(host)
    return found is not None and found.is_loopback


def _host_of(header: str) -> str | None:
    try:
        return urlsplit(f"//{header}").hostname
    except ValueError:
        return None


def _with_port(place: str, scheme: str) -> tuple[str | None, int] | None:
    try:
        parts = urlsplit(f"//{place}")
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname or parts.path or parts.username is not None:
        return None
    return parts.hostname, port or (443 if scheme == "https" else 80)


def _cookie_path(request: HTTPConnection) -> str:
    root: str = request.scope.get("app_root_path", request.scope.get("root_path", ""))
    return root or "/"


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


def _signed(key: bytes, *parts: str) -> str:
    text = "\0".join(parts).encode("utf-8", "replace")
    return _text64(hmac.new(key, text, hashlib.sha256).digest())


def _text64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _new_session(token: StoredToken, until: datetime) -> str:
    # A random part, so that each login has its own session and forms.
    ends = str(int(until.timestamp()))
    body = ".".join([_text64(token.name.encode()), ends, secrets.token_urlsafe(16)])
    return f"{body}.{_session_signature(token, body)}"


def _session_signature(token: StoredToken, body: str) -> str:
    # A sign-out adds one to the version, so that no session of before it is valid.
    return _signed(token.token_hash.encode(), "session", body, str(token.session_version))


def _session_of(
    cookie: str, known: dict[str, StoredToken], now: datetime
) -> tuple[StoredToken, str] | None:
    body, _, signature = cookie.rpartition(".")
    name, _, rest = body.partition(".")
    ends = rest.partition(".")[0]
    try:
        padding = "=" * (-len(name) % 4)
        token = known.get(base64.urlsafe_b64decode(name + padding).decode())
        until = datetime.fromtimestamp(int(ends), UTC)
    except (binascii.Error, ValueError, OverflowError, OSError):
        return None
    if token is None or not _equal(signature, _session_signature(token, body)):
        return None
    return None if until <= now or token.expired(now) else (token, body)
