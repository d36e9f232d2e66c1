"""Settings of the dashboard and the HTTP API, and the roles of those who use them."""

from __future__ import annotations

import dataclasses
import enum
import ipaddress
from collections.abc import Sequence
from typing import TypeAlias

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class Role(enum.StrEnum):
    """What somebody may do; each role may do what the one before it may."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def covers(self, wanted: Role) -> bool:
        """Whether this role may do what ``wanted`` may."""
        order = list(Role)
        return order.index(self) >= order.index(wanted)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WebSettings:
    """How the dashboard and the HTTP API behave.

    Attributes:
        title: what the pages call this place, such as ``staging``.
        page_size: how many messages a page lists.
        read_only: nothing can be changed by anybody. It is also so where the database takes no
            writes.
        open_role: the role of whoever comes without a token, from this machine alone, as long as
            the database has no token; None where each needs one. Only for a server that is bound to
            a loopback address.
        proxy_header: the header in which a reverse proxy says who asks; None to believe none.
        proxy_role: the role of those whom the proxy names.
        proxy_role_header: the header in which the proxy says the role; it wins over ``proxy_role``.
        proxy_from: the addresses or networks of the proxy; nobody else's headers count.
        origins: origins under which browsers reach this server, such as
            ``https://queues.example.org``, where the proxy changes the Host header.
        secret: signs the forms of users without a token of their own. Several processes behind one
            address need the same; by default each makes one.
        session_hours: how long a login lasts.
        max_body_bytes: the largest body of a request.
        masked: fields of payloads and headers that nobody is shown: names, which count at any
            depth, or paths such as ``user.iban``.
        threads: how many requests work on the database at once; besides, as many publish, claim and
            settle messages, so that no search keeps them waiting.
        longest_wait: the longest long poll, in seconds.
        longest_read: how long a search, a count or a page of messages may take, in seconds.
        keep_audit_days: how long the audit keeps what was done.
        keep_audit_rows: how many rows it keeps at most.

    Raises:
        ValueError: an attribute has no sensible value.
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
    secret: str | None = None
    session_hours: float = 12.0
    max_body_bytes: int = 4 * 1024 * 1024
    masked: Sequence[str] = ()
    threads: int = 8
    longest_wait: float = 60.0
    longest_read: float = 5.0
    keep_audit_days: float = 365.0
    keep_audit_rows: int = 100_000

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
        positive = ("page_size", "session_hours", "max_body_bytes", "threads")
        for name in (*positive, "longest_wait", "longest_read"):
            if not getattr(self, name) > 0:
                msg = f"{name} must be more than zero"
                raise ValueError(msg)
        _ = self.proxies

    @property
    def proxies(self) -> list[Network]:
        """The networks of ``proxy_from``."""
        return [ipaddress.ip_network(text, strict=False) for text in self.proxy_from]
