"""Pages about everything around the queues: consumers, schedules, topics, health, audit, tokens."""

from __future__ import annotations

from datetime import date
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from queue_over_sql import inside
from queue_over_sql.errors import QueueError
from queue_over_sql.management.operations import OPERATIONS
from queue_over_sql.web import shown_messages
from queue_over_sql.web.access import insist_on_tables
from queue_over_sql.web.settings import Role
from queue_over_sql.web.site import ROLES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from queue_over_sql import Schedule
    from queue_over_sql.web.buttons import Notice
    from queue_over_sql.web.site import Site, View

_UPCOMING: Final = 3
_LAST: Final = 5
_ENTRIES: Final = 100
# A page is there soon, however many queues a check-up looks at.
_WAIT_SECONDS: Final = 0.1


def routes(site: Site) -> list[BaseRoute]:
    """The routes of these pages."""
    return [
        site.route("/consumers", "consumers", consumers),
        site.route("/schedules", "schedules", schedules),
        site.route("/topics", "topics", topics),
        site.route("/health", "health", health),
        site.route("/audit", "audit", audit, ROLES["audit"]),
        site.route("/tokens", "tokens", tokens, ROLES["tokens"]),
    ]


def consumers(view: View) -> Response:
    """The registered consumers, whether they are alive, and what they hold."""
    found = sorted(view.service.consumers(), key=lambda each: each.started_at, reverse=True)
    held = view.site.snapshots.held()
    return view.page(
        "consumers.html", "consumers", consumers=found, held=held, now=view.site.clock.now()
    )


def schedules(view: View) -> Response:
    """The schedules, their next times, and what became of their last messages."""
    listed = view.service.schedules
    every = listed.list()
    statuses = {
        queue: _statuses(view, queue, [each for each in every if each.queue == queue])
        for queue in {each.queue for each in every}
    }
    found = []
    for each in every:
        upcoming, problem = [], ""
        try:
            upcoming = [] if each.paused else listed.upcoming(each.name, _UPCOMING)
        except QueueError as error:
            # Another system may know its time zone.
            problem = str(error)
        last = [
            (at, number, statuses[each.queue].get(number)) for at, number in _last(each).items()
        ]
        found.append((each, upcoming, last, problem))
    return view.page("schedules.html", "schedules", schedules=found)


def _last(schedule: Schedule) -> dict[datetime, int]:
    return dict(islice(schedule.last_runs.items(), _LAST))


def _statuses(view: View, name: str, schedules: Sequence[Schedule]) -> dict[int, str]:
    ids = [number for each in schedules for number in _last(each).values()]
    try:
        return shown_messages.statuses_of(view.service.queue(name), ids)
    except QueueError:
        # Its queue may be gone, which is no reason to hide the schedule.
        return {}


def topics(view: View) -> Response:
    """The topics with their subscriptions, and a test of the routing."""
    key = view.query("key")
    found = []
    for topic in view.service.topics():
        subscriptions = topic.subscriptions()
        matched = [
            (each, bool(key) and inside.pattern_fits(each.pattern, key)) for each in subscriptions
        ]
        found.append((topic, matched))
    return view.page("topics.html", "topics", topics=found, key=key)


def health(view: View) -> Response:
    """Whether the queues are served, and the findings of the doctor."""
    snapshots = view.site.snapshots
    found = snapshots.checked_up(_WAIT_SECONDS)
    names = {each.name for each in found.checks} if found else set[str]()
    runs = snapshots.is_checking
    return view.page("health.html", "health", found=found, names=names, runs=runs)


def audit(view: View) -> Response:
    """The audit: who changed what."""
    given = {name: view.query(name) for name in ("who", "what", "queue", "day")}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value}
    if given["day"]:
        try:
            chosen["day"] = date.fromisoformat(given["day"])
        except ValueError:
            msg = "The day must be a date such as 2026-01-31."
            raise ValueError(msg) from None
    entries = view.site.access.store.audit(_ENTRIES + 1, before=view.after(), **chosen)
    more = entries[_ENTRIES - 1].id if len(entries) > _ENTRIES else None
    return view.page(
        "audit.html",
        "audit",
        entries=entries[:_ENTRIES],
        more=more,
        given=given,
        filters={name: value for name, value in given.items() if value},
        whats=sorted({*OPERATIONS, "claim", "sign-in"}),
    )


def tokens(view: View, made: Notice | None = None) -> Response:
    """Who may come in by a token; one that was just made is shown, this once."""
    found = insist_on_tables(view.site.access.store).tokens()
    return view.page("tokens.html", "tokens", tokens=found, made=made, roles=list(Role))
