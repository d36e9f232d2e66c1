"""One search over all queues: an id, a key, a group, or a text, within a time limit.

What an index finds is looked for first. Only if that finds nothing, or the viewer asks for it, the
messages of each queue and archive are read, the newest first, in windows of ids. Where the time of
a place is over, the result says so, and the search can go on from there.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import String, and_, cast, false, func, or_, select

from queue_over_sql import inside
from queue_over_sql.errors import DatabaseUnavailable, QueueError
from queue_over_sql.values.cached import cached_property
from queue_over_sql.values.limits import GROUP_LENGTH, KEY_LENGTH
from queue_over_sql.values.texts import is_storable
from queue_over_sql.web import shown_messages
from queue_over_sql.web.changes import message_id

if TYPE_CHECKING:
    from queue_over_sql import Queue, QueueService
    from queue_over_sql.web.masking import Mask
    from queue_over_sql.web.shown_messages import ShownMessage

LONGEST_TEXT: Final = 200
"""The longest text to search for."""

_SECONDS_OF_PLACE: Final = 1.0
_LEAST_SECONDS: Final = 0.02
_MOST_OF_PLACE: Final = 20
_FIRST_WINDOW, _LARGEST_WINDOW = 500, 20_000
# Each hit is read whole, because the mask is not known to the database.
_MASKED_WINDOW: Final = 100
_QUICK: Final = 0.1
_BEFORE, _AFTER = 40, 80


@dataclasses.dataclass(frozen=True)
class Found:
    """A message that matches.

    Attributes:
        queue: the name of its queue.
        message: the message.
        by: ``id``, ``key``, ``group`` or ``text``.
        excerpt: the text around the match, or how its payload begins.
    """

    queue: str
    message: ShownMessage
    by: str
    excerpt: str = ""


@dataclasses.dataclass(frozen=True)
class Place:
    """The live or the archived messages of a queue that a search goes through.

    Attributes:
        queue: the name of the queue.
        archived: whether its archived messages.
        before: only those with a lower id; None: all.
    """

    queue: str
    archived: bool
    before: int | None = None


@dataclasses.dataclass
class Results:
    """The result of a search.

    Attributes:
        found: the messages.
        unfinished: the places that were not looked through to the end.
        texts: whether it also looked for the text, and not only by indexes.
        unreadable: the queues that could not be searched.
        more: where not all messages with the key or group are in ``found``: the queue, and ``key``
            or ``group``.
    """

    found: list[Found] = dataclasses.field(default_factory=list)
    unfinished: list[Place] = dataclasses.field(default_factory=list)
    texts: bool = False
    unreadable: list[str] = dataclasses.field(default_factory=list)
    more: list[tuple[str, str]] = dataclasses.field(default_factory=list)


def search(
    service: QueueService,
    text: str,
    mask: Mask,
    *,
    texts: bool = False,
    only: Place | None = None,
    seconds: float = 5.0,
) -> Results:
    """Search for an id, a key, a group or a text.

    Args:
        service: the service with the queues.
        text: what to look for.
        mask: hides fields; nobody finds a message by what it hides.
        texts: whether to look for the text even if it is an id, a key or a group.
        only: the only place to look through.
        seconds: the limit of all of it.

    Raises:
        ValueError: the text is too long, or no database can store it.
    """
    if len(text) > LONGEST_TEXT or not is_storable(text):
        msg = f"Search for at most {LONGEST_TEXT} characters that can be printed."
        raise ValueError(msg)
    ends, results = time.monotonic() + seconds, Results()
    queues = _opened(service, results, only)
    if only is None:
        _search_by_index(service, queues, text, results, ends)
        if results.found and not texts:
            return results
        places = [Place(each, archived) for archived in (False, True) for each in queues]
    else:
        places = [only]
    results.texts = True
    known = {(each.queue, each.message.id) for each in results.found}
    for number, place in enumerate(places):
        left = ends - time.monotonic()
        fair = left if only else min(_SECONDS_OF_PLACE, left / (len(places) - number))
        walk = _Walk(service, queues[place.queue], place, text, mask)
        try:
            stopped_at = walk.go(time.monotonic() + fair)
        except DatabaseUnavailable:
            raise
        except QueueError:
            if only is not None:
                raise
            if place.queue not in results.unreadable:
                results.unreadable.append(place.queue)
            continue
        found = walk.found
        results.found += [each for each in found if (each.queue, each.message.id) not in known]
        if stopped_at is not None:
            results.unfinished.append(stopped_at)
    return results


def _opened(service: QueueService, results: Results, only: Place | None) -> dict[str, Queue]:
    if only is not None:
        return {only.queue: service.queue(only.queue)}
    queues = {}
    for each in inside.records(service):
        try:
            queues[each.name] = service.queue(each.name)
        except DatabaseUnavailable:
            raise
        except QueueError:
            results.unreadable.append(each.name)
    return queues


def _search_by_index(
    service: QueueService, queues: Mapping[str, Queue], text: str, results: Results, ends: float
) -> None:
    for number, queue in enumerate(queues.values()):
        fair = (ends - time.monotonic()) / (len(queues) - number)
        if fair <= 0:
            results.unreadable.append(queue.name)
            continue
        try:
            with inside.limited(service, max(_LEAST_SECONDS, min(_SECONDS_OF_PLACE, fair))):
                results.found += _by_index(queue, text, results.more)
        except DatabaseUnavailable as error:
            if not inside.was_cancelled(service, error):
                raise
            results.unreadable.append(queue.name)
        except QueueError:
            # Such as a login that may not read this queue.
            results.unreadable.append(queue.name)


def _by_index(queue: Queue, text: str, more: list[tuple[str, str]]) -> Iterator[Found]:
    tables, number = inside.tables(queue), message_id(text)
    seen = set()
    if number is not None and (found := shown_messages.message_of(queue, number)) is not None:
        seen.add(found.id)
        yield Found(queue.name, found, "id")
    chosen: list[tuple[str, dict[str, Any]]] = []
    if tables.has_payloads and len(text) <= KEY_LENGTH:
        chosen.append(("key", {"key": text}))
    if tables.grouped and len(text) <= GROUP_LENGTH:
        chosen.append(("group", {"group": text}))
    for by, given in chosen:
        page = shown_messages.page_of(
            queue, queue.messages(**given), limit=_MOST_OF_PLACE, after=None, newest_first=True
        )
        if page.more is not None:
            more.append((queue.name, by))
        for each in page.messages:
            if each.id not in seen:
                seen.add(each.id)
                yield Found(queue.name, each, by)


class _Walk:
    """Looks through one place, the newest first."""

    def __init__(
        self, service: QueueService, queue: Queue, place: Place, text: str, mask: Mask
    ) -> None:
        self._service = service
        self._queue = queue
        self._place = place
        self._wanted = text.casefold()
        self._mask = mask
        self._tables = inside.tables(queue)
        self._table: Any = queue.archive.table if place.archived else queue.table
        self._match = self._matches(text)
        self.found: list[Found] = []

    def go(self, ends: float) -> Place | None:
        """Look until the end, or until the time is over or the page is full.

        Returns:
            Where to go on; None at the end.
        """
        before = self._place.before
        size = _MASKED_WINDOW if self._mask else _FIRST_WINDOW
        while (left := ends - time.monotonic()) > 0 and len(self.found) < _MOST_OF_PLACE:
            began = time.monotonic()
            try:
                # Half of it, so that a smaller window has time if this one is too large.
                with inside.limited(self._service, left / 2):
                    lowest = self._lowest(before, size)
                    if lowest is None:
                        return None
                    stopped_at = self._look(lowest, before, ends)
            except DatabaseUnavailable as error:
                if not inside.was_cancelled(self._service, error):
                    raise
                if size == 1:
                    break
                size = max(1, size // 8)
                continue
            if stopped_at is None:
                break
            before = stopped_at
            if time.monotonic() - began < _QUICK:
                size = min(2 * size, _LARGEST_WINDOW)
        return dataclasses.replace(self._place, before=before)

    def _lowest(self, before: int | None, size: int) -> int | None:
        key = self._table.c.id
        ids = select(key).where(*inside.extent(self._tables, archived=self._place.archived))
        if before is not None:
            ids = ids.where(key < before)
        window = ids.order_by(key.desc()).limit(size).subquery()
        lowest = select(func.min(window.c.id))
        found: int | None = inside.run(self._queue, lambda c: c.scalar(lowest))
        return found

    def _look(self, lowest: int, before: int | None, ends: float) -> int | None:
        # None if the time was over; where that was would tell what the mask hides.
        key = self._table.c.id
        where = and_(key >= lowest, self._match, *([] if before is None else [key < before]))
        room = _MOST_OF_PLACE - len(self.found)
        # What only masked fields contain must not even decide where a page ends.
        limit = _LARGEST_WINDOW if self._mask else room
        queue = self._queue
        archived = self._place.archived
        chosen = queue.archive.messages(where=where) if archived else queue.messages(where=where)
        page = shown_messages.page_of(queue, chosen, limit=limit, after=None, newest_first=True)
        shown = []
        for each in page.messages:
            if time.monotonic() > ends:
                return None
            if (found := self._shown(each)) is not None:
                shown.append(found)
        self.found += shown[:room]
        if len(shown) > room or (not self._mask and page.more is not None):
            return self.found[-1].message.id
        return lowest

    def _shown(self, message: ShownMessage) -> Found | None:
        excerpt = self._excerpt(message)
        if excerpt is None:
            return None
        named = {"key": message.key, "group": message.group}
        same = (by for by, text in named.items() if text and text.casefold() == self._wanted)
        return Found(self._queue.name, message, next(same, "text"), excerpt)

    def _excerpt(self, message: ShownMessage) -> str | None:
        # None if the text is only in what the mask hides.
        payload = self._content(message)
        error = self._mask.text(message.error or "")
        for text in (error, payload):
            at = text.casefold().find(self._wanted)
            if at >= 0:
                first, last = max(0, at - _BEFORE), at + len(self._wanted) + _AFTER
                return f"{'…' * (first > 0)}{text[first:last]}{'…' * (last < len(text))}"
        named = (message.key or "", message.group or "")
        if any(self._wanted in each.casefold() for each in named):
            return ""
        if not self._mask:
            return payload[:_AFTER]
        return self._squeezed(payload) if self._wanted_squeezed in self._squeezed(payload) else None

    def _content(self, message: ShownMessage) -> str:
        content, _ = shown_messages.payload_text(self._queue, message, self._mask)
        own = shown_messages.values_of(
            self._queue, [message.id], self._mask, archived=self._place.archived, listed=False
        )
        named = (f"{name}: {value}" for name, value in own.get(message.id, {}).items())
        return " ".join(" ".join([content, *named]).split())

    @cached_property
    def _wanted_squeezed(self) -> str:
        return self._squeezed(self._wanted)

    @staticmethod
    def _squeezed(text: str) -> str:
        return "".join(text.casefold().split())

    def _matches(self, text: str) -> Any:
        tables, c = self._tables, self._table.c
        wanted = [c.last_error]
        if tables.has_payloads:
            wanted.append(c.message_key)
            if self._queue.settings.payload != "bytes":
                wanted.append(shown_messages.content_of(self._queue, self._table))
        if "group_key" in c:
            wanted.append(c.group_key)
        own = shown_messages.own_columns(self._queue, self._table)
        wanted += [column for column in own if isinstance(column.type, String)]
        texts = (
            cast(each, String) if each is c.last_error else shown_messages.text_of(each)
            for each in wanted
        )
        return or_(false(), *(each.icontains(text, autoescape=True) for each in texts))
