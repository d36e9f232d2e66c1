"""Pages about queues and their messages."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final, Literal

from queue_over_sql import inside
from queue_over_sql.errors import QueueError, QueueNotFound, visible
from queue_over_sql.observability import AtLeast
from queue_over_sql.observability.history import read_history
from queue_over_sql.values.durations import instant
from queue_over_sql.values.states import Outcome, Status
from queue_over_sql.web import searching, shown_messages
from queue_over_sql.web.buttons import choice_of, hides
from queue_over_sql.web.changes import check_fingerprint, message_id
from queue_over_sql.web.charts import SPANS, charts, pace, spark_of_day, sparkline
from queue_over_sql.web.searching import Place
from queue_over_sql.web.settings import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from queue_over_sql import Attempt, Queue
    from queue_over_sql.web.shown_messages import ShownMessage
    from queue_over_sql.web.site import Site, View

_FILTERS: Final = ("status", "key", "kind", "group", "field", "value", "column", "is")
# No index leads to these.
_SEARCHED: Final = ("kind", "field", "column")
_GROUPS_SHOWN: Final = 25
_ERRORS_SHOWN: Final = 1_000
# Each is a large row on a phone.
_ERRORS_ON_A_PAGE: Final = 15
_ERRORS_TIMEOUT: Final = 0.5
# Dead letters of one queue, and of all of them, where the errors of all queues are listed.
_FEWEST_COUNTED, _MOST_COUNTED = 500, 5_000


def routes(site: Site) -> list[BaseRoute]:
    """The routes of these pages."""
    return [
        site.route("/", "overview", overview),
        site.route("/queues/{name}", "queue", queue),
        site.route("/search", "search", search, searches=lambda view: bool(view.query("q"))),
        site.route("/queues/{name}/messages", "messages", messages, searches=_searches),
        site.route("/queues/{name}/archive", "archive", archive, searches=_searches),
        site.route("/queues/{name}/messages/{number}", "message", message),
        site.route("/queues/{name}/groups", "groups", groups),
        site.route("/queues/{name}/dead", "dead-of", dead_letters_of),
        site.route("/dead", "dead", dead_letters),
    ]


def overview(view: View) -> Response:
    """All queues."""
    seen = view.site.snapshots.overview()
    sparks = {
        name: (
            sparkline(minutes, lambda minute: minute.done, "done", seen.at),
            sparkline(
                minutes,
                lambda minute: minute.failed + minute.rejected + minute.expired,
                "dead letters",
                seen.at,
            ),
        )
        for name, minutes in seen.history.items()
    }
    pause = view.site.snapshots.pause
    return view.page("overview.html", "overview", overview=seen, sparks=sparks, pause=pause)


def search(view: View) -> Response:
    """Messages of all queues by an id, a key, a group or a text."""
    text, only = view.query("q"), None
    if view.query("queue"):
        before = view.after("before")
        only = Place(view.query("queue"), view.query("in") == "archive", before)
    results = None
    if text:
        results = searching.search(
            view.service,
            text,
            view.site.mask,
            texts=bool(view.query("texts")),
            only=only,
            seconds=view.site.settings.longest_read,
        )
    return view.page("search.html", "", q=text, only=only, results=results)


def _searches(view: View) -> bool:
    return any(view.query(name) for name in _SEARCHED)


def queue(view: View) -> Response:
    """One queue: its counts, charts and settings."""
    found = _queue(view)
    span = view.query("span") or "hour"
    if span not in SPANS:
        msg = f"span must be one of {', '.join(SPANS)}"
        raise ValueError(msg)
    minutes = read_history(view.service, SPANS[span][0], found.name)
    now, at = view.site.snapshots.queue(found.name), view.site.clock.now()
    live = None if now is None or now.problem else now.live
    return view.page(
        "queue.html",
        "overview",
        queue=found,
        settings=found.settings,
        now=now,
        pace=None if live is None else pace(minutes, live, at),
        handlers=view.site.snapshots.handlers(found.name),
        charts=charts(minutes, span, at, live) if minutes else None,
        span=span,
        spans=list(SPANS),
    )


def messages(view: View) -> Response:
    """Live messages."""
    return _list(view, archived=False)


def archive(view: View) -> Response:
    """Archived messages."""
    return _list(view, archived=True)


def _list(view: View, *, archived: bool) -> Response:
    found = _queue(view)
    given = {name: view.query(name) for name in _FILTERS}
    chosen = choice_of(given)
    if hides(view.site.mask, given):
        msg = "This field is masked, so you cannot search by it."
        raise ValueError(msg)
    selection = chosen.matching_archived(found) if archived else chosen.matching(found)
    oldest = view.query("order") == "oldest" or (not archived and view.query("order") != "newest")
    limit, after = view.site.settings.page_size, view.after()
    same, error = view.query("error") if archived else "", ""
    if not same:
        page = shown_messages.page_of(
            found, selection, limit=limit, after=after, newest_first=not oldest
        )
    else:
        wanted = view.site.mask.opened(check_fingerprint(same))
        page, error = shown_messages.page_alike(found, wanted, limit=limit, after=after)
        given = {**dict.fromkeys(given, ""), "error": same}
    previews = shown_messages.previews_of(
        view.service,
        found,
        [each.id for each in page.messages],
        view.site.mask,
        archived=archived,
    )
    own = shown_messages.values_of(
        found, [each.id for each in page.messages], view.site.mask, archived=archived
    )
    is_held = any(each.status == Status.CLAIMED for each in page.messages)
    holders = {each.consumer_id: each.name for each in view.service.consumers()} if is_held else {}
    return view.page(
        "messages.html",
        "overview",
        queue=found,
        now=view.site.snapshots.queue(found.name),
        archived=archived,
        page=page,
        previews=previews,
        own=own,
        columns=[each.name for each in shown_messages.own_columns(found, found.table)],
        is_adopted=not inside.tables(found).has_payloads,
        known=_known(page),
        holders=holders,
        given=given,
        filters={name: value for name, value in given.items() if value},
        order="oldest" if oldest else "newest",
        after=after,
        same=same,
        error=error,
        left_out=shown_messages.left_out(found) if same else None,
        statuses=[each.value for each in (Outcome if archived else Status)],
    )


def _known(page: shown_messages.MessagesPage) -> dict[str, list[str]]:
    # Suggestions for the filters; those with invisible characters could not be told apart.
    found = {
        "key": {each.key for each in page.messages},
        "kind": {each.kind for each in page.messages},
    }
    return {
        name: sorted(text for text in texts if text and visible(text) == text)
        for name, texts in found.items()
    }


def message(view: View) -> Response:
    """One message with all its details."""
    found, number = _queue(view), message_id(view.request.path_params["number"])
    known = None if number is None else shown_messages.message_of(found, number)
    if known is None:
        anew = None if number is None else shown_messages.requeued_soon(view.service, found, number)
        why = f"{found.name} has no message {number}. It may have ended without being archived."
        if anew is not None:
            why = f"{found.name} has no message {number} any more. It was requeued."
        return view.refused(404, why, None if anew is None else (found.name, anew))
    text, whole = shown_messages.payload_text(found, known, view.site.mask)
    own = shown_messages.values_of(
        found, [known.id], view.site.mask, archived=known.archived, listed=False
    )
    headers, earlier = shown_messages.headers_of(found, known, view.site.mask)
    holder = next((c for c in view.service.consumers() if c.consumer_id == known.holder), None)
    return view.page(
        "message.html",
        "overview",
        queue=found,
        now=view.site.snapshots.queue(found.name),
        message=known,
        payload=text,
        whole=whole,
        own=own.get(known.id, {}),
        is_adopted=not inside.tables(found).has_payloads,
        headers=headers,
        earlier=earlier,
        error=shown_messages.error_text(found, known),
        traceback=found.last_traceback(known.id) if known.id >= 0 else None,
        attempts=_attempts(found, known.id),
        editable=_editable(view, found, known),
        holder=holder,
        why=None if known.archived else _why(found, known.id),
    )


def _editable(view: View, found: Queue, known: ShownMessage) -> str | None:
    """The text for the form that edits a dead letter."""
    if not known.dead or not view.known.role.covers(Role.OPERATOR):
        return None
    return shown_messages.editable_text(found, known, view.site.mask)


def _attempts(found: Queue, number: int) -> list[Attempt]:
    if number >= 0:
        # A page without them is better than none.
        with contextlib.suppress(QueueError):
            return found.attempts(number)
    return []


def _why(found: Queue, number: int) -> str | None:
    # Rows that others have edited may hold what cannot be explained.
    with contextlib.suppress(QueueError):
        return visible(found.why(number).text, keep="")
    return None


def groups(view: View) -> Response:
    """The groups of a queue, and what each waits for."""
    found = _queue(view)
    orders: dict[str, Literal["waiting", "age"]] = {"waiting": "waiting", "age": "age"}
    by: Literal["waiting", "age", "blocked"] = orders.get(view.query("by")) or "blocked"
    listed, grouped = [], found.settings.group_limit is not None
    if grouped:
        listed = found.groups.list(by=by, limit=_GROUPS_SHOWN)
    is_held = any(each.consumer_ids for each in listed)
    holders = {each.consumer_id: each.name for each in view.service.consumers()} if is_held else {}
    return view.page(
        "groups.html",
        "overview",
        queue=found,
        settings=found.settings,
        now=view.site.snapshots.queue(found.name),
        grouped=grouped,
        groups=listed,
        most=_GROUPS_SHOWN,
        by=by,
        holders=holders,
    )


def dead_letters(view: View) -> Response:
    """The errors of the dead letters of all queues, the one that came last first."""
    seen = view.site.snapshots.overview()
    with_some = [
        each for each in seen.queues if each.problem or each.dead or isinstance(each.dead, AtLeast)
    ]
    if len(with_some) == 1:
        return _dead(view, view.service.queue(with_some[0].name), "dead")
    start, size = view.after() or 0, min(_ERRORS_ON_A_PAGE, view.site.settings.page_size)
    found, unread = _latest_errors(view, [each.name for each in with_some], start + size + 1)
    return view.page(
        "dead.html",
        "dead",
        overview=seen,
        queues=with_some,
        errors=[_shown_error(view, *one) for one in found[start : start + size]],
        unread=unread,
        after=start,
        more=start + size if start + size < len(found) else None,
    )


def _latest_errors(
    view: View, names: Sequence[str], most: int
) -> tuple[list[tuple[Queue, inside.ErrorGroup]], list[str]]:
    """The errors of these queues that came last, and the queues that did not answer in time.

    A queue is read only if its last error may be among them.
    """
    found: list[tuple[Queue, inside.ErrorGroup]] = []
    queues: list[tuple[int | None, Queue]] = []
    unread: list[str] = []
    newest = max(_FEWEST_COUNTED, _MOST_COUNTED // max(1, len(names)))
    ends = time.monotonic() + view.site.settings.longest_read
    with inside.limited(view.service, _ERRORS_TIMEOUT):
        for name in names:
            try:
                queue = view.service.queue(name)
                queues.append((inside.last_error_at(queue), queue))
            except QueueError:
                unread.append(name)
        queues.sort(key=lambda one: (one[0] is not None, -(one[0] or 0)))
        for at, queue in queues:
            if at is not None and len(found) >= most and found[most - 1][1].last_at > at:
                break
            if time.monotonic() > ends:
                unread.append(queue.name)
                continue
            try:
                listed = inside.errors(queue, limit=_ERRORS_SHOWN, newest=newest)
            except QueueError:
                unread.append(queue.name)
                continue
            found += [(queue, group) for group in listed]
            found.sort(key=lambda one: (-one[1].last_at, one[0].name, -one[1].message_id))
    return found, unread


def dead_letters_of(view: View) -> Response:
    """The dead letters of one queue, grouped by error."""
    return _dead(view, _queue(view), "dead")


def _dead(view: View, found: Queue, here: str) -> Response:
    groups = inside.errors(found, limit=_ERRORS_SHOWN)
    start, size = view.after() or 0, min(_ERRORS_ON_A_PAGE, view.site.settings.page_size)
    shown = groups[start : start + size]
    previews = shown_messages.previews_of(
        view.service, found, [each.message_id for each in shown], view.site.mask, archived=True
    )
    total, more = sum(each.count for each in groups), any(each.more for each in groups)
    return view.page(
        "dead_of.html",
        here,
        queue=found,
        now=view.site.snapshots.queue(found.name),
        errors=[_shown_error(view, found, each) for each in shown],
        previews=previews,
        left_out=shown_messages.left_out(found) if more else None,
        total=AtLeast(total) if more else total,
        after=start,
        more=start + size if start + size < len(groups) else None,
    )


def _shown_error(view: View, queue: Queue, group: inside.ErrorGroup) -> dict[str, Any]:
    return {
        "queue": queue.name,
        "fingerprint": view.site.mask.sealed(group.fingerprint),
        "error": group.error,
        "kind": group.kind,
        "count": AtLeast(group.count) if group.more else group.count,
        "first_at": instant(group.first_at),
        "last_at": instant(group.last_at),
        "message_id": group.message_id,
        "spark": spark_of_day(group.hours),
    }


def _queue(view: View) -> Queue:
    name: Any = view.request.path_params["name"]
    queue = view.service.queue(name)
    if queue.name != name:
        # What a viewer may see is said by names, and not by what queues are called.
        raise QueueNotFound(name)
    return queue
