"""The catalog of a service's queues, and what the parts of a service share."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sqlalchemy.exc import CompileError

from queue_over_sql.database.repetition import SharedTry
from queue_over_sql.errors import (
    InvalidQueueName,
    Locked,
    NotPermitted,
    QueueError,
    QueueNotFound,
    QueueSchemaMismatch,
    SchemaOutdated,
    SchemaTooNew,
    UnsupportedByEngine,
    near_names,
    shown,
)
from queue_over_sql.existing_tables.adopt import (
    Adopter,
    check_groups,
    check_settings,
    given_table,
    unfinished,
    with_groups,
)
from queue_over_sql.groups.groups import wake_all
from queue_over_sql.limits.bounds import set_bounds
from queue_over_sql.limits.slots import count_others
from queue_over_sql.payloads.types import Kinds
from queue_over_sql.queue import core_of
from queue_over_sql.queues import registry
from queue_over_sql.queues import tables as ddl
from queue_over_sql.queues.stats import has_groups, highest_priority
from queue_over_sql.queues.temporary import note_use, owned_by
from queue_over_sql.request_reply.reply_queues import is_for_replies
from queue_over_sql.schema.existing import check_column_prefix
from queue_over_sql.schema.queue_tables import (
    OLDEST_BESIDE,
    OLDEST_BESIDE_WAITING,
    QueueTables,
    check_queue_name,
    check_title,
    inner_name,
    longest_name,
    may_be_name,
    names_of,
    queue_tables,
)
from queue_over_sql.schema.system_tables import SystemTables, system_tables
from queue_over_sql.settings import (
    UNSET,
    EffectiveSettings,
    QueueSettings,
    StoredSettings,
    Unset,
    described_type,
    given_of,
    settings_json,
    updated,
)
from queue_over_sql.settling.dead_letter_queue import check_receiver
from queue_over_sql.sql.compiled import StatementCache
from queue_over_sql.sql.operation import Operation

if TYPE_CHECKING:
    from sqlalchemy import Column, Connection, Table
    from sqlalchemy.types import TypeEngine

    from queue_over_sql.database.connections import Connections
    from queue_over_sql.queue import Queue
    from queue_over_sql.queues.registry import QueueRecord
    from queue_over_sql.settings import ServiceSettings


_log = logging.getLogger(__name__)
T = TypeVar("T")
_NOT_OPENED = (
    InvalidQueueName,
    Locked,
    NotPermitted,
    QueueSchemaMismatch,
    SchemaOutdated,
    SchemaTooNew,
    UnsupportedByEngine,
    ddl.TablesInUse,
)


class _MayGo(Protocol):
    def __call__(self, connection: Connection, *, tables: QueueTables | None) -> bool: ...


class _Superseded(Exception):
    """Somebody else has changed the settings meanwhile."""


class Versions(Protocol):
    """Checks and upgrades the schema versions of tables."""

    def is_outdated(self, record: QueueRecord) -> bool:
        """Whether a queue must be upgraded before it is used; raises SchemaTooNew."""

    def prepare_system(self, system: SystemTables) -> None:
        """Create the shared tables, or their newer columns, if they are missing."""

    def upgrade(self, system: SystemTables, record: QueueRecord, *, wait: bool = True) -> None:
        """Upgrade the tables of one queue."""

    def add_groups(
        self, system: SystemTables, tables: QueueTables, record: Callable[[Connection], object]
    ) -> bool:
        """Add what groups need to the tables of a queue, and record it, unless others did."""


class Catalog:
    """The queues of a service, opened when they are needed."""

    def __init__(
        self,
        connections: Connections,
        settings: ServiceSettings,
        make: Callable[[QueueTables, EffectiveSettings, Kinds | None], Queue],
        versions: Versions,
    ) -> None:
        self.connections = connections
        self._settings = settings
        self._make = make
        self._versions = versions
        self._adopter = Adopter(connections, settings)
        self._tables: SystemTables | None = None
        self._queues: dict[str, Queue] = {}
        # The kinds belong to this service and are kept when a queue is opened again.
        self._kinds: dict[str, Kinds] = {}
        # So are column types that the stored settings cannot describe.
        self._declared: dict[str, Mapping[str, TypeEngine[Any]]] = {}
        # Queues for which a warning was logged, so that the reaper does not log it in each pass.
        self._unusable: set[str] = set()
        self._preparing = SharedTry(connections.runtime.lock())
        self.made_temporary: dict[str, str] = {}
        """The temporary queues that this service has created, and their consumers."""

    @property
    def opened(self) -> list[Queue]:
        """The queues that this service has opened so far."""
        return list(self._queues.values())

    def has_opened(self, table: str) -> bool:
        """Whether this service has opened the queue whose table has this full name."""
        return any(queue.table.fullname == table for queue in self.opened)

    def create(
        self, queues: Mapping[str, QueueSettings], owner: str | None = None
    ) -> dict[str, Queue]:
        """Create queues or open them; see ``QueueService.create_queues``.

        ``owner``: the consumer that they belong to, if they are temporary.
        """
        inner = {title: self.checked_name(title) for title in queues}
        for requested in queues.values():
            self._check_retry(requested)
        self.system()
        for title, requested in queues.items():
            if not isinstance(requested.kinds, Unset):
                self._kinds[inner[title]] = Kinds.of(requested.kinds)
                self.forget(inner[title])
        made: dict[str, Queue] = {}
        while left := {title: queues[title] for title in queues if title not in made}:
            # The dead letters of one may go to another of them. Two may feed each other.
            awaited = {*left, *(inner[title] for title in left)}
            first = [title for title in left if left[title].dead_letter_queue not in awaited]
            for title in first or left:
                text = str.__str__(title)
                made[title] = self._create(inner[title], queues[title], text, owner=owner)
        return {title: made[title] for title in queues}

    def adopt(
        self,
        name: str,
        table: Any,
        prefix: str,
        requested: QueueSettings,
        *,
        unlogged: bool,
        group: str | None,
    ) -> Queue:
        """Adopt a table as a queue; see ``QueueService.adopt_queue``."""
        given = self._adopter.located(given_table(table))
        prefix = check_column_prefix(prefix)
        title, name = name, self.checked_name(name)
        self._check_retry(requested)
        if (present := self._record(name)) is not None:
            self._versions.is_outdated(present)
        known = self._adopter.knows(name, given)
        fresh = with_groups(name, group, updated(EffectiveSettings(), requested), requested)
        if fresh.has_rules:
            self._check_groups_here()
        # As any other change of an adopted queue, after it has its columns.
        fresh = dataclasses.replace(fresh, queue_limit=None, queue_rate=None)
        self._adopter.adopt(
            name,
            given,
            prefix,
            fresh,
            system=self.system(),
            present=present,
            unlogged=unlogged,
            group=group,
        )
        if not known:
            self.forget(name)
        if title != name:
            self._run_change(name, title=str.__str__(title))
        self._change(self._existing_record(name), requested)
        return self.get(name)

    def checked_name(self, name: object) -> str:
        """The name of a queue that is to be called so; InvalidQueueName if none can be."""
        return self._checked(inner_name(check_title(name), self._longest))

    @property
    def _longest(self) -> int:
        limit = self.connections.dialect.features.identifier_limit
        return longest_name(self._settings.table_prefix, limit)

    def _checked(self, name: str) -> str:
        limit = self.connections.dialect.features.identifier_limit
        return check_queue_name(name, self._settings.table_prefix, limit)

    def resolved(self, title: str) -> str:
        """The name of the queue that is called so, or that would be called so."""
        if may_be_name(title) and inner_name(title, self._longest) == title:
            return title
        record = self._record(title)
        return title if record is None else record.name

    def _check_receiver(self, name: str, payload: str, requested: QueueSettings) -> None:
        """Refuse a queue of dead letters that is not there, or that cannot have them."""
        if not isinstance(requested.dead_letter_queue, str):
            return
        receiver = self.get(self.resolved(requested.dead_letter_queue))
        if receiver.name == name:
            msg = f"queue {name!r} cannot be its own dead_letter_queue: give another one"
            raise ValueError(msg)
        tables, accepted = core_of(receiver).context.tables, receiver.settings.payload
        check_receiver(name, payload, tables, accepted)

    def _check_retry(self, requested: QueueSettings) -> None:
        if not isinstance(requested.retry, Unset):
            self._settings.retry_policies.describe(requested.retry)

    def create_temporary(self, name: str, owner: str) -> Queue:
        """Create a queue that is dropped with the consumer ``owner``, or open it."""
        return self._create(name, QueueSettings(archive="none"), owner=owner)

    def get(self, name: str, connection: Connection | None = None) -> Queue:
        """Open a queue, in the caller's transaction if ``connection`` is given."""
        known = self._known(name)
        if known is not None:
            return known
        record = self._record(name, connection)
        if record is None:
            raise QueueNotFound(name, self._near(name, connection))
        return self._open(record, connection)

    def get_with_kinds(self, name: str, kinds: Sequence[Any] | Mapping[str, Any]) -> Queue:
        """Open a queue, of which this service knows these kinds from now on."""
        queue = self.get(name)
        name = queue.name
        context = core_of(queue).context
        if context.kinds is not None and context.kinds.are(kinds):
            return queue
        msg = f"kinds need payloads, but the messages of {name!r} are rows of an adopted table"
        context.tables.expect_payloads(ValueError(msg))
        self._kinds[name] = Kinds.of(kinds)
        self.forget(name)
        return self.get(name)

    def forget(self, name: str) -> None:
        """Forget a queue, so that the next call that needs it opens it again."""
        self._queues.pop(name, None)

    def all(self, *, temporary: bool = False) -> list[Queue]:
        """Open all queues, by name; ``temporary``: also temporary ones."""
        return self._all(lambda record: temporary or record.owner is None)

    def served(self) -> list[Queue]:
        """Those that a reaper serves: all but the queues of replies, to which nobody returns."""
        return self._all(lambda record: not is_for_replies(record.name, record.owner))

    def _all(self, wanted: Callable[[QueueRecord], bool]) -> list[Queue]:
        system, prefix = self.system(), self._settings.table_prefix
        records = self.connections.run(lambda c: registry.queue_records(c, system, prefix))
        for gone in set(self._queues) - {record.name for record in records}:
            self._queues.pop(gone, None)
        return [
            queue
            for record in records
            if wanted(record) and (queue := self._opened_or_none(record))
        ]

    def _opened_or_none(self, record: QueueRecord) -> Queue | None:
        # A queue that cannot be opened must not stop the work on the others.
        try:
            self._checked(record.name)
            return self._open(record, wait=False)
        except _NOT_OPENED as error:
            if record.name not in self._unusable:
                self._unusable.add(record.name)
                _log.warning("Queue %s cannot be opened: %s", record.name, error)
            return None

    def drop(self, name: str, only_if: _MayGo | None = None) -> bool:
        """Drop a queue; see ``QueueService.drop_queue``.

        With ``only_if``, which locks its record and says whether it may go, Locked is raised if a
        transaction has used it for a second. It gets the queue's tables, unless they are adopted.
        """
        wait = only_if is None
        record = self._record(name)
        if record is None:
            return False
        name = record.name
        self._versions.is_outdated(record)
        adoption = StoredSettings.read(record.name, record.settings).adoption
        tables = None if adoption else self._read(record)[0]
        system, prefix = self.system(), self._settings.table_prefix

        def do(connection: Connection) -> bool:
            dialect = self.connections.dialect
            with dialect.ddl.creating(connection, self._settings.schema, brief=not wait):
                if only_if is not None and not only_if(connection, tables=tables):
                    return False
                if tables is None:
                    self._adopter.drop(connection, name, adoption, system)
                    return True
                ddl.wait_until_unused(connection, tables, dialect)
                registry.remove_queue(connection, system, prefix, name)
                ddl.drop_tables(connection, tables)
                return True

        with contextlib.nullcontext() if wait else self.connections.giving_way():
            dropped = self.connections.run(Operation(do, atomic=True))
        if dropped:
            self._queues.pop(name, None)
        return dropped

    def system(self) -> SystemTables:
        """The shared tables; created at the first use if they are missing."""
        if self._tables is None:
            with self._preparing.begun():
                if self._tables is None:
                    dialect = self.connections.dialect
                    tables = system_tables(dialect.expressions, self._settings.schema)
                    self._versions.prepare_system(tables)
                    self._tables = tables
        return self._tables

    def _create(
        self,
        name: str,
        requested: QueueSettings,
        title: str | None = None,
        *,
        owner: str | None = None,
    ) -> Queue:
        title = None if title == name else title
        while (record := self._record_named(name)) is None:
            fresh = updated(EffectiveSettings(), requested)
            self._check_receiver(name, fresh.payload, requested)
            self._usable_kinds(name, fresh)
            temporary = owner is not None
            tables = self._define(name, fresh)
            tables = dataclasses.replace(tables, temporary=temporary, title=title)
            if owner is not None:
                # Before it is there, so that no interrupt leaves it behind.
                self.made_temporary[name] = owner
            text = settings_json(fresh, self._written(fresh.columns), self._settings.retry_policies)
            adding = Operation(
                lambda c: self._add(c, tables, fresh, text, owner),  # noqa: B023 - runs at once
                atomic=True,
                creates=True,
            )
            added = self.connections.run(adding)
            if added:
                # What this service knows of this name was dropped.
                self.forget(name)
                if owner is not None:
                    # A new registration may have taken it for one that is gone.
                    self.made_temporary.setdefault(name, owner)
                _log.info("Created queue %s.", name)
                return self._remember(name, tables, fresh)
        if title is not None and record.title != title:
            other = record.name if record.title is None else record.title
            msg = f"{shown(title)} cannot be a queue: another one, {shown(other)}, has its tables."
            raise InvalidQueueName(msg)
        if not self._change_existing(record, requested, owner):
            # A reaper dropped it after its record was read.
            self.forget(name)
            return self._create(name, requested, title, owner=owner)
        return self.get(name)

    def _change_existing(
        self, record: QueueRecord, requested: QueueSettings, owner: str | None
    ) -> bool:
        """Change a queue as requested; False if it is gone."""
        name, ends = record.name, requested.unused_for
        if owner is not None and not self._take_over(record, owner):
            return False
        if not isinstance(ends, Unset | None) and not self.note_use(name):
            return False
        try:
            self._change(record, requested)
        except QueueNotFound:
            if self._record_named(name) is None:
                return False
            # It is the dead_letter_queue that is not there.
            raise
        if ends is not None:
            return True
        # Afterwards, because a queue whose change was refused still ends unused.
        self._run_change(name, used_at=None)
        return self._record_named(name) is not None

    def _take_over(self, record: QueueRecord, owner: str) -> bool:
        """Let a temporary queue end with this consumer from now on; False if it is gone."""
        if record.owner is None:
            msg = (
                f"Queue {record.name!r} exists and is not temporary. Use another name, leave out "
                "temporary=True, or drop the queue first."
            )
            raise QueueSchemaMismatch(msg)
        self.made_temporary[record.name] = owner
        return record.owner == owner or self._run_change(record.name, **owned_by(owner))

    def note_use(self, name: str) -> bool:
        """Note that a queue that ends unused is in use; False if there is no such queue."""
        system, prefix = self.system(), self._settings.table_prefix
        return self.connections.run(note_use.of(system, self.connections.dialect, prefix, name))

    def _run_change(self, name: str, **values: Any) -> bool:
        system, prefix = self.system(), self._settings.table_prefix
        return self.connections.run(
            lambda c: registry.change_queue(c, system, prefix, name, **values)
        )

    def _add(
        self,
        connection: Connection,
        tables: QueueTables,
        settings: EffectiveSettings,
        text: str,
        owner: str | None,
    ) -> bool:
        dialect, system = self.connections.dialect, self.system()
        with dialect.ddl.creating(connection, self._settings.schema):
            prefix = self._settings.table_prefix
            if registry.queue_record(connection, system, prefix, tables.queue) is not None:
                return False
            ddl.create_tables(connection, _needed(tables, settings), dialect)
            added = registry.add_queue(
                connection,
                system,
                dialect,
                prefix=prefix,
                name=tables.queue,
                settings=text,
                owner=owner,
                ruled=tables.has_rules,
                ends_unused=settings.unused_for is not None,
                title=tables.title,
                oldest=OLDEST_BESIDE_WAITING if tables.frees_claimed_keys else OLDEST_BESIDE,
            )
            if added and tables.bounded:
                sql = StatementCache(tables, self.connections.engine.dialect)
                set_bounds(connection, sql, settings.queue_limit, settings.queue_rate)
            return added

    def _change(self, record: QueueRecord, requested: QueueSettings) -> None:
        while True:
            try:
                self._try_to_change(record, requested)
            except _Superseded:
                record = self._existing_record(record.name)
            else:
                return

    def _try_to_change(self, record: QueueRecord, requested: QueueSettings) -> None:
        self._versions.is_outdated(record)
        stored = StoredSettings.read(record.name, record.settings)
        queue = self._open(record)
        dialect = self.connections.engine.dialect
        check_settings(stored, requested, core_of(queue).context.tables, dialect)
        # Others may have changed them since this service read them.
        present = stored.effective(self._settings.retry_policies, queue.settings.columns)
        self._check_same_schema(stored, present, requested)
        written = {name: stored.data["columns"][name] for name in stored.columns}
        columns: Mapping[str, Any] = written
        if not isinstance(requested.columns, Unset):
            columns = self._written(requested.columns)
            queue = self._with_types(record, queue, requested.columns)
        wanted = updated(present, requested)
        check_groups(stored, wanted)
        policies = self._settings.retry_policies
        if settings_json(wanted, columns, policies) == settings_json(present, written, policies):
            return
        if wanted.priorities < present.priorities:
            self._check_priorities(queue, wanted.priorities)
        given = given_of(requested).keys() - {"kinds"}
        changed = sorted(n for n in given if getattr(wanted, n) != getattr(present, n))
        _log.info("Changing settings of queue %s: %s.", record.name, ", ".join(changed))
        if wanted.dedup_window is not None and present.dedup_window is None:
            self._add_tables(_needed(core_of(queue).context.tables, wanted))
        text = settings_json(wanted, columns, policies)
        rules = {"group_limit", "group_order", "group_rate", "group_fair"}
        of_groups = not rules.isdisjoint(changed)
        of_limit = not {"queue_limit", "queue_rate"}.isdisjoint(changed)
        store = partial(
            self._store,
            name=record.name,
            of_rules=of_groups or of_limit,
            slots=self._slots(queue, wanted, present) if of_limit else None,
            expected=record.settings,
        )
        if wanted.grouped and not present.grouped:
            tables = self._define(record.name, wanted)
            turn_on = partial(store, settings=text, ruled=True)
            if not self._versions.add_groups(self.system(), tables, turn_on):
                # Another process did it, perhaps with other settings.
                queue.refresh()
                raise _Superseded
        elif present.grouped and not wanted.grouped:
            former = settings_json(present, written, policies)
            slots = self._slots(queue, present, wanted) if of_limit else None
            turn_on = partial(store, settings=former, ruled=True, expected=text, slots=slots)
            turn_off = partial(store, settings=text, ruled=wanted.has_rules)
            self._turn_groups_off(queue, turn_off, turn_on)
        else:
            ruled = wanted.has_rules if wanted.bounds != present.bounds else None
            self.connections.run(Operation(partial(store, settings=text, ruled=ruled), atomic=True))
        queue.refresh()
        if of_limit:
            self._limit_changed(queue, present)
        if of_groups and present.grouped and wanted.group_limit is not None:
            # After the commit, because claims under way may park by the earlier limit until then.
            context = core_of(queue).context
            limit, fair = wanted.group_limit, wanted.group_fair
            context.run(wake_all.of(context.sql, limit=limit, fair=fair))

    def _store(
        self,
        connection: Connection,
        *,
        name: str,
        settings: str,
        expected: str,
        of_rules: bool,
        ruled: bool | None,
        slots: Callable[[Connection], None] | None,
    ) -> bool:
        """Store new settings, unless somebody has changed those that they are based on."""
        system, prefix = self.system(), self._settings.table_prefix
        if registry.held_settings(connection, system, prefix, name) != expected:
            raise _Superseded
        registry.change_settings(
            connection,
            system,
            self.connections.dialect,
            prefix=prefix,
            name=name,
            settings=settings,
            of_rules=of_rules,
            ruled=ruled,
        )
        if slots is not None:
            slots(connection)
        return True

    def _slots(
        self, queue: Queue, wanted: EffectiveSettings, present: EffectiveSettings
    ) -> Callable[[Connection], None]:
        """Gives the queue its slots and its rate, in the transaction that stores the settings.

        On some engines a new table is a transaction of its own, so it is created before.
        """
        self._check_groups_here()
        bounded = wanted if any(wanted.bounds) else present
        tables = core_of(queue).context.tables
        tables = tables.bounded_by(limited=bounded.limited, rated=bounded.rated)
        if tables.limits is not None and any(wanted.bounds):
            self._add_tables([tables.limits])
        sql = StatementCache(tables, self.connections.engine.dialect)
        return partial(set_bounds, sql=sql, limit=wanted.queue_limit, rate=wanted.queue_rate)

    def _limit_changed(self, queue: Queue, former: EffectiveSettings) -> None:
        context = core_of(queue).context
        if context.tables.limited and not former.limited:
            # After the commit: what was claimed before it knows of no limit, and counts.
            context.run(count_others.of(context.sql))
        context.wake_consumers()

    def _turn_groups_off(
        self,
        queue: Queue,
        turn_off: Callable[[Connection], object],
        turn_on: Callable[[Connection], object],
    ) -> None:
        """Turn groups off; ValueError if a live message has one."""
        context = core_of(queue).context
        sql = context.sql
        if not context.run(lambda c: has_groups(c, sql)):
            context.run(Operation(turn_off, atomic=True))
            # One may have been published meanwhile, by those who did not know of it yet.
            if not context.run(lambda c: has_groups(c, sql)):
                return
            context.run(Operation(turn_on, atomic=True))
        msg = (
            f"groups cannot be turned off: queue {queue.name!r} has messages with a group, which "
            "would lose their order. Wait until they are finished, or remove them. Then try again."
        )
        raise ValueError(msg)

    def _add_tables(self, tables: Sequence[Table]) -> None:
        self.connections.run(ddl.ensure_tables.of(tables, self.connections.dialect))

    def _check_same_schema(
        self, stored: StoredSettings, present: EffectiveSettings, requested: QueueSettings
    ) -> None:
        self._check_receiver(stored.queue, present.payload, requested)
        if requested.payload not in (UNSET, present.payload):
            msg = (
                f"Queue {stored.queue!r} has {present.payload!r} payloads, but "
                f"{requested.payload!r} was requested. Use another name, or drop the queue first."
            )
            raise QueueSchemaMismatch(msg)
        if requested.unique not in (UNSET, present.unique):
            msg = (
                f"Queue {stored.queue!r} has unique={present.unique!r}, but {requested.unique!r} "
                "was requested. Use another name, or drop the queue first."
            )
            raise QueueSchemaMismatch(msg)
        if requested.columns is UNSET:
            return
        existing, wanted = stored.columns, self._column_types(requested.columns)
        if existing != wanted:
            msg = (
                f"Queue {stored.queue!r} has the columns {existing or 'none'}, but "
                f"{wanted or 'none'} were requested. Use another name, or drop the queue first."
            )
            raise QueueSchemaMismatch(msg)

    def _check_priorities(self, queue: Queue, priorities: int) -> None:
        context = core_of(queue).context
        highest = context.run(lambda connection: highest_priority(connection, context.sql))
        if highest >= priorities:
            msg = (
                f"priorities cannot be lowered to {priorities}: queue {queue.name!r} holds "
                f"messages of priority {highest}, which would never be delivered"
            )
            raise ValueError(msg)

    def _column_types(self, columns: Sequence[Column[Any]]) -> dict[str, str]:
        return {column.name: self._type_of(column) for column in columns}

    def _type_of(self, column: Column[Any]) -> str:
        try:
            return column.type.compile(dialect=self.connections.engine.dialect)
        except CompileError as error:
            msg = (
                f"columns: {shown(column.name)} has a type that this database cannot create, "
                f"{shown(column.type)}: {_first_sentence(error)}. Use another type, or add "
                "the missing argument, such as the length of a String"
            )
            raise ValueError(msg) from error

    def _written(self, columns: Sequence[Column[Any]]) -> dict[str, Any]:
        types = self._column_types(columns)
        described = {column.name: described_type(column.type) for column in columns}
        return {
            name: sql if (found := described[name]) is None else {"sql": sql, **found}
            for name, sql in types.items()
        }

    def _with_types(
        self, record: QueueRecord, queue: Queue, columns: Sequence[Column[Any]]
    ) -> Queue:
        """The queue with the types that its columns were declared with here.

        They may be the user's own types, which the stored settings do not describe.
        """
        self._declared[record.name] = types = {column.name: column.type for column in columns}
        if all(_is_same(queue.table.c[name].type, kind) for name, kind in types.items()):
            return queue
        self.forget(record.name)
        return self._open(record)

    def _known(self, title: str) -> Queue | None:
        for name in names_of(title, self._longest):
            known = self._queues.get(name)
            if known is not None and title in (name, known.title):
                return known
        return None

    def _record(self, title: str, on: Connection | None = None) -> QueueRecord | None:
        for name in names_of(title, self._longest):
            record = self._record_named(name, on)
            if record is not None and title in (name, record.title):
                return record
        return None

    def _record_named(self, name: str, on: Connection | None = None) -> QueueRecord | None:
        system, prefix = self.system(), self._settings.table_prefix
        return self._look(lambda c: registry.queue_record(c, system, prefix, name), on)

    def _existing_record(self, name: str) -> QueueRecord:
        record = self._record(name)
        if record is None:
            raise QueueNotFound(name)
        return record

    def _near(self, name: str, on: Connection | None) -> list[str]:
        system, prefix = self.system(), self._settings.table_prefix
        try:
            records = self._look(lambda c: registry.queue_records(c, system, prefix), on)
        except QueueError:
            # Only advice: whatever stands in the way of the names is not what went wrong.
            return []
        own = [each.name for each in records if each.owner is None and may_be_name(each.name)]
        return near_names(name, own)

    def _look(self, do: Callable[[Connection], T], on: Connection | None) -> T:
        return self.connections.run(do) if on is None else do(on)

    def _open(
        self, record: QueueRecord, on: Connection | None = None, *, wait: bool = True
    ) -> Queue:
        # The known queue may have been dropped, and created again by an earlier release.
        outdated = self._versions.is_outdated(record)
        if outdated and on is None:
            self._versions.upgrade(self.system(), record, wait=wait)
        known = self._queues.get(record.name)
        if known is not None:
            return known
        tables, settings = self._read(record, on)
        temporary = record.owner is not None
        tables = dataclasses.replace(tables, temporary=temporary, title=record.title)
        if outdated and on is not None:
            # The caller's transaction may hold locks that an upgrade would wait for. It can
            # publish, and the next call that opens the queue upgrades it.
            return self._make(tables, settings, self._usable_kinds(record.name, settings))
        return self._remember(record.name, tables, settings)

    def _read(
        self, record: QueueRecord, on: Connection | None = None
    ) -> tuple[QueueTables, EffectiveSettings]:
        stored = StoredSettings.read(record.name, record.settings)
        settings = stored.effective(self._settings.retry_policies)
        if settings.adoption is not None:
            if stored.unfinished:
                raise QueueSchemaMismatch(unfinished(record.name, settings.adoption))
            tables = self._adopter.tables(record.name, settings.adoption, self.system())
            return tables.bounded_by(limited=settings.limited, rated=settings.rated), settings
        types = {**stored.types, **self._declared.get(record.name, {})}
        table, schema = self._settings.table_prefix + record.name, self._settings.schema
        columns: Sequence[Column[Any]] = ()
        if stored.columns:
            columns = self._look(
                lambda c: ddl.own_columns(c, table, schema, stored.columns, types), on
            )
        try:
            tables = self._define(record.name, dataclasses.replace(settings, columns=columns))
        except ValueError as error:
            # An earlier release did not reserve the name of the column.
            msg = f"Queue {record.name!r} cannot be opened by this release: {error}."
            raise QueueSchemaMismatch(msg) from error
        own = tuple(tables.live.c[column.name] for column in columns)
        return tables, dataclasses.replace(settings, columns=own)

    def _check_groups_here(self) -> None:
        reason = self.connections.dialect.features.no_groups
        if reason is not None:
            raise UnsupportedByEngine(reason)

    def _define(self, name: str, settings: EffectiveSettings) -> QueueTables:
        if settings.has_rules:
            self._check_groups_here()
        return queue_tables(
            name,
            self._settings.table_prefix,
            settings.payload,
            settings.columns,
            system=self.system(),
            dialect=self.connections.dialect,
            grouped=settings.grouped,
            limited=settings.limited,
            rated=settings.rated,
            unique=settings.unique,
        )

    def _remember(self, name: str, tables: QueueTables, settings: EffectiveSettings) -> Queue:
        kinds = self._usable_kinds(name, settings)
        return self._queues.setdefault(name, self._make(tables, settings, kinds))

    def _usable_kinds(self, name: str, settings: EffectiveSettings) -> Kinds | None:
        kinds = None if settings.adoption else self._kinds.get(name)
        if kinds is not None and settings.payload != "json":
            del self._kinds[name]
            msg = f"kinds need JSON payloads, but queue {name!r} has {settings.payload!r} payloads"
            raise ValueError(msg)
        return kinds


def _first_sentence(error: CompileError) -> str:
    return str(error).partition("\n")[0].partition(" (Background on")[0].rstrip(".?")


def _is_same(kind: TypeEngine[Any], other: TypeEngine[Any]) -> bool:
    return type(kind) is type(other) and repr(kind) == repr(other)


def _needed(tables: QueueTables, settings: EffectiveSettings) -> Sequence[Table]:
    memory = [] if settings.dedup_window is None else [tables.dedup_keys]
    return [tables.live, tables.archive, *memory, *tables.only_with_rules]
