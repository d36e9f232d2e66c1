"""Settings of the dashboard and the HTTP API, and the roles of their users."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Sequence
from typing import Final, TypeAlias

from queue_over_sql.management.operation import Role

__all__ = ["Network", "Role", "WebSettings"]

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

# As browsers send it: in lower case, and without a path.
_ORIGIN: Final = re.compile(r"https?://[^\s/?#@A-Z]+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WebSettings:
    """The settings of the dashboard and the HTTP API.

    Attributes:
        title: the name of this installation on the pages, such as ``staging``.
        page_size: how many messages a page lists.
        read_only: whether nobody can change anything. This is also the case if the database accepts
            no writes.
        open_role: the role of callers without a token, only from this machine and only as long as
            the database has no token; None: every caller needs a token. Use it only for a server on
            a loopback address.
        proxy_header: the header with the user's name from a reverse proxy; None: none is trusted.
        proxy_role: the role of users whom the proxy names.
        proxy_role_header: the header with the user's role; it replaces ``proxy_role``.
        proxy_from: addresses or networks of the proxy; headers from others are ignored.
        origins: the origins under which browsers reach this server, such as
            ``https://queues.example.org``, if the proxy changes the Host header.
        cors_origins: the origins of other sites whose scripts may use the HTTP API, each with a
            token; ``*``: any site. By default none may.
        secret: the key for the forms of users without their own token, and for fingerprints.
            Several processes behind one address need the same; by default each makes its own.
        session_hours: how long a login lasts.
        max_body_bytes: the largest body of a request.
        masked: fields of payloads and headers that are hidden from viewers: names of fields at any
            depth, or paths such as ``user.iban``. Fingerprints of errors are then encrypted with
            the secret.
        threads: how many requests may use the database at once. As many threads are reserved to
            publish, claim and settle messages, so that searches do not delay them.
        longest_wait: the longest long poll, in seconds.
        longest_read: how long a search, a count or a page of messages may take, in seconds.
        idempotency_hours: how long a request with an ``Idempotency-Key`` is remembered.
        keep_audit_days: how long the audit keeps its rows.
        keep_audit_rows: how many rows it keeps at most.
        database: the name of this database, if several are in one dashboard; see ``together``.
        databases: the names of all of them.

    Raises:
        ValueError: an attribute has an invalid value.
    """

    title: str = "queue_over_sql"
    page_size: int = 50
    read_only: bool = False
    open_role: Role | None = None
    proxy_header: str | None = None
    proxy_role: Role = Role.VIEWER
    proxy_role_header: str | None = None
    proxy_from: Sequence[str] = ()
    origins: Sequence[str] = ()
    cors_origins: Sequence[str] = ()
    secret: str | None = None
    session_hours: float = 12.0
    max_body_bytes: int = 4 * 1024 * 1024
    masked: Sequence[str] = ()
    threads: int = 8
    longest_wait: float = 60.0
    longest_read: float = 5.0
    idempotency_hours: float = 24.0
    keep_audit_days: float = 365.0
    keep_audit_rows: int = 100_000
    database: str = ""
    databases: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.proxy_header is not None and not self.proxy_from:
            msg = "proxy_header requires proxy_from: the addresses of the proxies that may set it"
            raise ValueError(msg)
        if self.proxy_header is not None and self.open_role is not None:
            msg = (
                "open_role would admit everybody who comes through the proxy of proxy_header: set "
                "only one of them"
            )
            raise ValueError(msg)
        if self.cors_origins and self.open_role is not None:
            msg = (
                "open_role would let scripts of the cors_origins read without a token: set only "
                "one of them"
            )
            raise ValueError(msg)
        for origin in (*self.origins, *self.cors_origins):
            if not _ORIGIN.fullmatch(origin) and not (
                origin == "*" and origin in self.cors_origins
            ):
                msg = f"{origin!r} is not an origin: write it as https://queues.example.org"
                raise ValueError(msg)
        positive = ("page_size", "session_hours", "max_body_bytes", "threads")
        for name in (*positive, "longest_wait", "longest_read", "idempotency_hours"):
            if not getattr(self, name) > 0:
                msg = f"{name} must be more than zero"
                raise ValueError(msg)
        _ = self.proxies

    @property
    def proxies(self) -> list[Network]:
        """The networks of ``proxy_from``."""
        return [ipaddress.ip_network(text, strict=False) for text in self.proxy_from]
