"""Publishing: checks messages, encodes them, and inserts them into the table."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from queue_over_sql.errors import (
    DatabaseRefused,
    DuplicateKey,
    GroupFull,
    PayloadInvalid,
    PayloadTooLarge,
    no_groups,
    shown,
)
from queue_over_sql.message import Publication, Published
from queue_over_sql.payloads import codec as payloads
from queue_over_sql.publishing.column_values import own_value
from queue_over_sql.publishing.new_messages import (
    CONTENT,
    NewMessage,
    PlainMessages,
    PlainPayloads,
    Room,
    naming_item,
)
from queue_over_sql.publishing.operations import load, publish_many, publishing
from queue_over_sql.queues.context import once_more
from queue_over_sql.values.checks import (
    check_choice,
    check_function,
    check_keyed,
    check_text,
    check_whole,
)
from queue_over_sql.values.durations import (
    NEVER,
    duration_text,
    instant_to_microseconds,
    to_microseconds,
)
from queue_over_sql.values.limits import GROUP_LENGTH, KEY_LENGTH, KIND_LENGTH
from queue_over_sql.values.options import GROUP_KEY, PUBLISH_OPTIONS
from queue_over_sql.values.states import PublishOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator
    from datetime import datetime

    from sqlalchemy import Connection

    from queue_over_sql.message import CallersConnection
    from queue_over_sql.observer import Observers
    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.settings import EffectiveSettings
    from queue_over_sql.values.durations import Duration


ON_CONFLICT: Final = ("raise", "skip", "replace")
_DEFAULT_PRIORITY: Final = 0


class Publisher:
    """Publishes messages to one queue."""

    def __init__(self, context: QueueContext) -> None:
        self._context = context

    @once_more
    def publish(
        self,
        publication: Publication,
        on_conflict: str,
        connection: CallersConnection | None,
    ) -> Published:
        """Publish one message; see ``Queue.publish``."""
        if on_conflict != "raise":
            check_choice("on_conflict", on_conflict, ON_CONFLICT)
            check_keyed(on_conflict, publication.key)
        context = self._context
        message = self.encode(publication)
        return context.run(publishing(context.sql, message, on_conflict), connection)

    def publish_many(
        self,
        items: Iterable[Any],
        on_conflict: str,
        connection: CallersConnection | None,
    ) -> list[Published]:
        """Publish many messages, all or none; see ``Queue.publish_many``."""
        check_choice("on_conflict", on_conflict, ON_CONFLICT)
        listed = items if isinstance(items, list) else list(as_items(items))
        return self._publish_listed(listed, on_conflict, connection)

    @once_more
    def _publish_listed(
        self, items: list[Any], on_conflict: str, connection: CallersConnection | None
    ) -> list[Published]:
        messages = self._encode_all(items)
        if not messages:
            return []
        operation = publish_many.of(self._context.sql, messages, on_conflict)
        return self._context.run(operation, connection)

    def load(
        self, items: Iterable[Any], batch_size: int, progress: Callable[[int], None] | None
    ) -> int:
        """Publish in bulk, one transaction per batch; see ``Queue.load``."""
        batch_size = check_whole("batch_size", batch_size)
        check_function("progress", progress)
        total = 0
        for batch in batched(as_items(items), batch_size):
            total += self._load_batch(batch, total)
            if progress is not None:
                progress(total)
        return total

    def encode(self, publication: Publication) -> NewMessage:
        """Check a publication and encode it for the table.

        Raises:
            PayloadInvalid, PayloadTooLarge: the payload or the headers are invalid.
            TypeError, ValueError: another option is invalid; the message names it.
        """
        return self.encode_plain(self.plain(publication))

    def plain(self, publication: Publication) -> Publication:
        """A publication whose payload was checked against its kind and made plain JSON values.

        Raises:
            PayloadInvalid: the payload does not fit its kind.
        """
        if self._context.kinds is None:
            return publication
        kind, value = self._context.kinds.encode(publication.kind, publication.payload)
        return dataclasses.replace(publication, kind=kind, payload=value)

    def encode_plain(self, publication: Publication) -> NewMessage:
        """As ``encode``, for a plain publication; its kind need not be known here."""
        settings = self._context.settings
        nul = self._context.tables.features.nul_in_text
        content = {
            "kind": check_text("kind", publication.kind, KIND_LENGTH),
            "payload": payloads.encode(
                settings.payload, publication.payload, settings.max_payload_bytes, nul=nul
            ),
            **encode_options(publication, settings.priorities),
            **self._own_values(publication.columns),
        }
        if publication.group is not None:
            content[GROUP_KEY] = self._group(publication.group)
        delay, at = due(publication.delay, publication.at)
        expires = _optional_duration("expires", publication.expires)
        if expires is None:
            expires = settings.expires_us
        if expires is not None:
            _check_due_before(expires, delay)
            if at is not None:
                # No later than what can be read as a time.
                expires = min(expires, NEVER - at)
            self._context.expiring = True
        return NewMessage(
            key=check_text("key", publication.key, KEY_LENGTH),
            content=content,
            delay=delay,
            at=at,
            dedup=publication.key is not None and settings.dedup_window is not None,
            expires=expires,
            room=_room(settings, content.get(GROUP_KEY)),
        )

    def _encode_all(self, items: list[Any], start: int = 0) -> list[NewMessage] | PlainMessages:
        plain = self._plain_payloads(items)
        if plain is not None:
            return plain.encoded(start)
        encoded: list[NewMessage] = []
        tables = self._context.tables
        with naming_item(encoded, items, start):
            encoded.extend(self.encode(as_publication(item)) for item in items)
        # Somebody has turned groups on or off meanwhile, so that some lack the column.
        return encoded if self._context.tables is tables else self._encode_all(items, start)

    def _plain_payloads(self, items: list[Any]) -> PlainPayloads | None:
        context = self._context
        settings, tables = context.settings, context.tables
        own = dict.fromkeys(tables.own_columns)
        needed = any(not tables.live.c[name].nullable for name in own)
        if needed or context.kinds is not None or settings.expires is not None:
            return None
        if _room(settings, None) is not None:
            return None
        if any(issubclass(each, Publication) for each in set(map(type, items))):
            return None
        limit, nul = settings.max_payload_bytes, tables.features.nul_in_text
        blank = {**CONTENT, **own}
        return PlainPayloads(items, payloads.encoder(settings.payload, limit, nul=nul), blank)

    @once_more
    def _load_batch(self, items: list[Any], start: int) -> int:
        context = self._context
        plain = self._plain_payloads(items)
        given = self._encode_all(items, start) if plain is None else plain

        def singly(target: Connection) -> bool:
            messages = given.encoded() if isinstance(given, PlainPayloads) else given
            return bool(publish_many(target, context.sql, messages, "raise"))

        loading = load.of(context.sql, given)
        try:
            context.run(loading)
        except DuplicateKey:
            raise
        except GroupFull as error:
            raise GroupFull(
                error.queue, error.group, error.limit, start + (error.place or 0)
            ) from None
        except (PayloadInvalid, PayloadTooLarge):
            # The bulk path encodes as it sends, and does not say which one it refused.
            if plain is not None:
                plain.encoded(start)
            raise
        except DatabaseRefused:
            # The bulk path does not say which message was refused. This one does.
            context.run(loading._replace(do=singly))
        return len(items)

    def changed_values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """New values of some of the queue's own columns, checked as by a publish.

        Raises:
            TypeError, ValueError: one is not valid, or there is no such column.
        """
        self._check_names(given)
        columns = self._context.tables.live.c
        self._refuse_missing([n for n in given if given[n] is None and not columns[n].nullable])
        return self._checked_values(given)

    def _own_values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        tables = self._context.tables
        self._check_names(given)
        columns = tables.live.c
        own = tables.users_columns
        missing = [n for n in own if given.get(n) is None and not columns[n].nullable]
        self._refuse_missing(missing)
        values = self._checked_values(given)
        return {name: values.get(name) for name in tables.own_columns}

    def _checked_values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        tables = self._context.tables
        columns, expressions = tables.live.c, tables.expressions
        return {name: own_value(columns[name], value, expressions) for name, value in given.items()}

    def _refuse_missing(self, missing: Sequence[str]) -> None:
        if missing:
            msg = (
                f"queue {self._context.name!r} requires a value for its column {', '.join(missing)}"
            )
            raise TypeError(msg)

    def _check_names(self, given: Mapping[str, Any]) -> None:
        own = self._context.tables.users_columns
        if not isinstance(given, Mapping):
            msg = f"columns must be a mapping of names to values, not {type(given).__name__}"
            raise TypeError(msg)
        unknown = sorted(n if isinstance(n, str) else shown(n) for n in given if n not in own)
        if unknown:
            msg = (
                f"queue {self._context.name!r} has no column {', '.join(unknown)}; "
                f"its columns are: {', '.join(own) or 'none'}{_near_option(unknown)}"
            )
            raise TypeError(msg)

    def _group(self, given: str) -> str | None:
        context = self._context
        if not context.tables.grouped:
            # Another process may have turned groups on.
            context.look_again()
        if not context.tables.grouped:
            raise ValueError(no_groups(context.name))
        return check_text("group", given, GROUP_LENGTH, least=0)


class ObservedPublisher:
    """Publishes through another publisher, and notifies the observers of the service."""

    def __init__(self, publisher: Publisher, queue: str, observer: Observers) -> None:
        self._publisher = publisher
        self._queue = queue
        self._observer = observer

    def publish(
        self,
        publication: Publication,
        on_conflict: str,
        connection: CallersConnection | None,
    ) -> Published:
        """Publish one message; see ``Queue.publish``."""
        # Few calls, because each one slows down a publish.
        began, observer = time.monotonic(), self._observer
        if observer.wraps_publishing:
            with observer.publishing(self._queue, 1) as headers:
                publication = with_headers(publication, headers)
                published = self._publisher.publish(publication, on_conflict, connection)
                notify_published(observer, self._queue, [published], time.monotonic() - began)
            return published
        published = self._publisher.publish(publication, on_conflict, connection)
        notify_published(observer, self._queue, [published], time.monotonic() - began)
        return published

    def publish_many(
        self,
        items: Iterable[Any],
        on_conflict: str,
        connection: CallersConnection | None,
    ) -> list[Published]:
        """Publish many messages, all or none; see ``Queue.publish_many``."""
        began = time.monotonic()
        items = items if isinstance(items, list) else list(as_items(items))
        with self._observer.publishing(self._queue, len(items)) as headers:
            if headers:
                items = [with_headers(as_publication(item), headers) for item in items]
            published = self._publisher.publish_many(items, on_conflict, connection)
            self._notify(published, began)
        return published

    def load(
        self, items: Iterable[Any], batch_size: int, progress: Callable[[int], None] | None
    ) -> int:
        """Publish in bulk, one transaction per batch; see ``Queue.load``."""
        check_function("progress", progress)
        began, loaded = time.monotonic(), 0

        def notify(total: int) -> None:
            nonlocal began, loaded
            count, seconds = total - loaded, time.monotonic() - began
            began, loaded = time.monotonic(), total
            self._observer.published(self._queue, count, seconds, ())
            if progress is not None:
                progress(total)

        with self._observer.publishing(self._queue, 0) as headers:
            if headers:
                given = as_items(items)
                items = (with_headers(as_publication(item), headers) for item in given)
            return self._publisher.load(items, batch_size, notify)

    def _notify(self, published: Sequence[Published], began: float) -> None:
        notify_published(self._observer, self._queue, published, time.monotonic() - began)


def notify_published(
    observer: Observers, queue: str, published: Sequence[Published], seconds: float
) -> None:
    """Notify observers of the messages that a publish created or replaced, if it did."""
    # Compare by identity, because hashing an enum member is slower.
    created = [each.id for each in published if each.outcome is PublishOutcome.CREATED]
    ids = created
    if len(created) < len(published):
        ends = (PublishOutcome.CREATED, PublishOutcome.REPLACED)
        ids = [each.id for each in published if each.outcome in ends]
    if ids:
        observer.published(queue, len(created), seconds, ids)


def with_headers(publication: Publication, headers: Mapping[str, Any]) -> Publication:
    """A publication with these headers added; they replace its own of the same names."""
    own = publication.headers
    if not headers or not (own is None or isinstance(own, Mapping)):
        return publication
    return dataclasses.replace(publication, headers={**(own or {}), **headers})


def encode_options(publication: Publication, priorities: int) -> dict[str, Any]:
    """Check the options that all tables support, and encode them by column.

    Raises:
        PayloadInvalid, PayloadTooLarge: the headers are invalid.
        TypeError, ValueError: another option is invalid.
    """
    # Most messages have the default priority.
    priority = publication.priority
    if priority is not _DEFAULT_PRIORITY:
        priority = check_whole("priority", priority, 0, priorities - 1)
    return {
        "headers": payloads.encode_headers(publication.headers),
        "priority": priority,
        "max_attempts": _optional_whole("max_attempts", publication.max_attempts),
        "lease_us": _optional_duration("lease", publication.lease),
    }


def check_options(publication: Publication) -> None:
    """Check the options that do not depend on the queue; the upper limit of ``priority`` does.

    Raises:
        PayloadInvalid, PayloadTooLarge: the headers are invalid.
        TypeError, ValueError: another option is invalid.
    """
    delay, _ = due(publication.delay, publication.at)
    expires = _optional_duration("expires", publication.expires)
    if expires is not None:
        _check_due_before(expires, delay)
    check_text("key", publication.key, KEY_LENGTH)
    check_text("kind", publication.kind, KIND_LENGTH)
    check_text("group", publication.group, GROUP_LENGTH, least=0)
    encode_options(dataclasses.replace(publication, priority=_DEFAULT_PRIORITY), 1)


def refuse_options(what: str, given: Container[str], refused: Mapping[str, str]) -> None:
    """Refuse options that this kind of publication does not accept.

    Args:
        what: the kind of publication, for the error.
        given: names of the given options.
        refused: the reasons, by name of the option.

    Raises:
        TypeError: a refused option was given; the message has the reason.
    """
    for name, reason in refused.items():
        if name in given:
            msg = f"a {what} does not accept {name}: {reason}"
            raise TypeError(msg)


def due(delay: Duration | None, at: datetime | None) -> tuple[int, int | None]:
    """When a message is due, in microseconds: a delay, or a time that replaces it.

    Raises:
        TypeError, ValueError: one is invalid, or both were given.
    """
    if delay is not None and at is not None:
        msg = "use delay or at, not both"
        raise ValueError(msg)
    wait = 0 if delay is None else to_microseconds(delay, "delay", zero=True)
    return wait, None if at is None else instant_to_microseconds(at, "at")


def as_items(items: Any) -> Iterable[Any]:
    """Refuse a value that is one payload, or not iterable.

    Raises:
        TypeError: it is text, bytes, a mapping, or not iterable.
    """
    if isinstance(items, str | bytes | bytearray | Mapping) or not isinstance(items, Iterable):
        msg = f"items must be a list or another iterable of payloads, not {type(items).__name__}"
        raise TypeError(msg)
    return items


def as_publication(item: Any) -> Publication:
    """Return a ``Publication`` unchanged, and make one of a payload."""
    return item if isinstance(item, Publication) else Publication(item)


def batched(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Split an iterable, which may be endless, into lists of up to ``size``."""
    remaining = iter(items)
    while batch := list(itertools.islice(remaining, size)):
        yield batch


def _room(settings: EffectiveSettings, group: str | None) -> Room | None:
    if settings.when_full == "wait":
        return None
    replaces = settings.when_full == "replace"
    if settings.max_length is not None:
        return Room(settings.max_length, replaces, None, most=True)
    if group is not None:
        return Room(settings.group_limit or 1, replaces, group)
    return None if settings.queue_limit is None else Room(settings.queue_limit, replaces, None)


def _optional_whole(argument: str, value: Any) -> int | None:
    return None if value is None else check_whole(argument, value, 1, 2**31 - 1)


def _optional_duration(argument: str, value: Any) -> int | None:
    return None if value is None else to_microseconds(value, argument)


def _check_due_before(expires: int, delay: int) -> None:
    if delay >= expires:
        end, begin = (duration_text(each / 1_000_000) for each in (expires, delay))
        msg = (
            f"the message would expire after {end}, but it is due only after {begin}: give a "
            "longer expires, or a shorter delay"
        )
        raise ValueError(msg)


def _near_option(names: Sequence[str]) -> str:
    # Options that do not exist are taken for columns.
    from difflib import get_close_matches  # noqa: PLC0415 - only after a mistake

    options = (*PUBLISH_OPTIONS, "connection", "on_conflict")
    near = [each for name in names for each in get_close_matches(name, options, 1, 0.5)]
    return f". Did you mean the option {' and '.join(near)}?" if near else ""
