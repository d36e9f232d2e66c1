"""Statements about the slots and the tokens of a queue with a limit or a rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    ColumnElement,
    Delete,
    Select,
    Table,
    Update,
    and_,
    case,
    delete,
    exists,
    insert,
    literal_column,
    not_,
    or_,
    select,
    update,
)

from queue_over_sql.statements.parameters import by_id, id_parameters, number, words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Insert

    from queue_over_sql.schema.queue_tables import QueueTables

_NONE: Final[ColumnElement[int]] = literal_column("0")
# How long a claim waits for the row of the rate before it tries again.
_LONGEST_MILLISECONDS: Final = 5_000


def slots_of(tables: QueueTables) -> Table:
    """The table of the slots; only for queues with a limit or a rate."""
    if tables.limits is None:
        msg = f"queue {tables.queue!r} has neither queue_limit nor queue_rate"
        raise ValueError(msg)
    return tables.limits


def slot_values(slots: Sequence[int], size: int) -> dict[str, int]:
    """The bind parameters of slots; the last one fills the unused ones of their bucket."""
    filled = [*slots, *[slots[-1]] * (size - len(slots))]
    return {f"p_slot_{index}": slot for index, slot in enumerate(filled)}


def _parameters(size: int) -> list[ColumnElement[Any]]:
    return [number(f"p_slot_{index}") for index in range(size)]


def _among(slots: Table, size: int) -> ColumnElement[bool]:
    wanted = _parameters(size)
    return slots.c.slot.in_(wanted) if size > 1 else slots.c.slot == wanted[0]


def _stamp(slots: Table) -> list[ColumnElement[Any]]:
    return [slots.c.message_id, slots.c.consumer_id, slots.c.consumer_round]


def _taken(tables: QueueTables, slots: Table) -> ColumnElement[bool]:
    """The condition for slots whose message is still claimed, by the same claim."""
    live = tables.live
    same = and_(
        live.c.id == slots.c.message_id,
        live.c.consumer_id == slots.c.consumer_id,
        live.c.consumer_round == slots.c.consumer_round,
    )
    return exists(select(literal_column("1")).select_from(live).where(same).correlate(slots))


def free_slots(tables: QueueTables) -> Select[Any]:
    """The first ``p_count`` slots that seem to be free, without a lock."""
    slots = slots_of(tables)
    free = (slots.c.slot > _NONE, not_(_taken(tables, slots)))
    return select(slots.c.slot).where(*free).order_by(slots.c.slot).limit(number("p_count"))


def lock_slots(tables: QueueTables, size: int) -> Select[Any]:
    """Lock up to ``p_count`` of these slots, skipping locked ones: slot and stamp."""
    slots = slots_of(tables)
    locked = select(slots.c.slot, *_stamp(slots)).where(_among(slots, size))
    locked = locked.limit(number("p_count"))
    skips = tables.features.skip_locked
    return by_id(tables, locked.with_for_update(skip_locked=skips), slots)


def standing(tables: QueueTables, size: int) -> Select[Any]:
    """These slots, and all that are not to be used: slot, stamp, whether it is taken."""
    slots = slots_of(tables)
    taken = case((_taken(tables, slots), literal_column("1")), else_=_NONE)
    wanted = or_(slots.c.slot < _NONE, _among(slots, size))
    return select(slots.c.slot, *_stamp(slots), taken.label("taken")).where(wanted)


def occupy(tables: QueueTables, size: int) -> Update:
    """Write the stamp of a claim into slots: the message of each is the id of the same number."""
    slots = slots_of(tables)
    pairs = zip(_parameters(size), id_parameters(size), strict=True)
    each = [(slots.c.slot == slot, message_id) for slot, message_id in pairs]
    message = case(*each, else_=slots.c.message_id)
    stamp = {"consumer_id": words("p_consumer"), "consumer_round": number("p_round")}
    return update(slots).where(_among(slots, size)).values(message_id=message, **stamp)


def move_in(tables: QueueTables) -> Update:
    """Write the stamp of a slot that is not to be used into one that is."""
    slots = slots_of(tables)
    stamp = {
        "message_id": number("p_id_0"),
        "consumer_id": words("p_consumer"),
        "consumer_round": number("p_round"),
    }
    return update(slots).where(_among(slots, 1)).values(stamp)


def remove_slots(tables: QueueTables, size: int) -> Delete:
    """Remove slots."""
    slots = slots_of(tables)
    return delete(slots).where(_among(slots, size))


# -- the number of slots


def lock_all(tables: QueueTables) -> Select[Any]:
    """Lock all slots, also those that are not to be used."""
    slots = slots_of(tables)
    return select(slots.c.slot).where(slots.c.slot != _NONE).with_for_update()


def take_away(tables: QueueTables) -> Update:
    """Let no claim use the slots beyond ``p_count``; what is in hand stays there."""
    slots = slots_of(tables)
    return update(slots).where(slots.c.slot > number("p_count")).values(slot=-slots.c.slot)


def bring_back(tables: QueueTables) -> Update:
    """Let claims use the slots up to ``p_count`` again."""
    slots = slots_of(tables)
    away = and_(slots.c.slot < _NONE, slots.c.slot + number("p_count") >= _NONE)
    return update(slots).where(away).values(slot=-slots.c.slot)


def remove_all(tables: QueueTables) -> Delete:
    """Remove all slots."""
    slots = slots_of(tables)
    return delete(slots).where(slots.c.slot != _NONE)


def add_slots(tables: QueueTables, size: int) -> Insert:
    """Create slots that no message has."""
    return insert(slots_of(tables)).values([{"slot": slot} for slot in _parameters(size)])


def add_stamped(tables: QueueTables) -> Insert:
    """Create a slot with a stamp."""
    stamp = {
        "slot": number("p_slot_0"),
        "message_id": number("p_id_0"),
        "consumer_id": words("p_consumer"),
        "consumer_round": number("p_round"),
    }
    return insert(slots_of(tables)).values(stamp)


# -- what is in hand


def all_stamps(tables: QueueTables) -> Select[Any]:
    """The stamps of all slots: slot, message, consumer, round."""
    slots = slots_of(tables)
    return select(slots.c.slot, *_stamp(slots)).where(slots.c.message_id.is_not(None))


def claimed_stamps(tables: QueueTables) -> Select[Any]:
    """The stamps of all claimed messages: id, consumer, round."""
    live = tables.live
    found = select(live.c.id, live.c.consumer_id, live.c.consumer_round)
    return found.where(tables.expressions.is_claimed(live), *tables.live_only())


# -- the rate


def bucket(tables: QueueTables) -> Select[Any]:
    """The rate and what is left of it: interval, burst, when it is full again, the clock."""
    c = slots_of(tables).c
    now = tables.expressions.now().label("now")
    return select(c.interval_us, c.burst, c.tat_us, now).where(c.slot == _NONE)


def lock_bucket(tables: QueueTables) -> Select[Any]:
    """As ``bucket``, locked until the transaction ends."""
    return bucket(tables).with_for_update()


def lock_bucket_briefly(tables: QueueTables) -> Select[Any]:
    """As ``lock_bucket``, in a transaction of ours, for as long as other waits for locks last."""
    waits = tables.expressions.limit_of_waits(_LONGEST_MILLISECONDS)
    return lock_bucket(tables) if waits is None else lock_bucket(tables).where(waits)


def spend(tables: QueueTables) -> Update:
    """Take ``p_count`` tokens, from the time of this statement on."""
    slots, now = slots_of(tables), tables.expressions.now()
    base = case((slots.c.tat_us > now, slots.c.tat_us), else_=now)
    return _of_bucket(slots, {"tat_us": base + number("p_count") * slots.c.interval_us})


def give_back(tables: QueueTables) -> Update:
    """Give back ``p_count`` tokens that were taken and not used."""
    slots = slots_of(tables)
    now, then = slots.c.interval_us, number("p_interval")
    interval = case((now < then, now), else_=then)
    return _of_bucket(slots, {"tat_us": slots.c.tat_us - number("p_count") * interval})


def empty_bucket(tables: QueueTables) -> Update:
    """Let it be full at ``p_tat``, unless somebody has changed ``p_before`` meanwhile."""
    slots = slots_of(tables)
    emptied = _of_bucket(slots, {"tat_us": number("p_tat")})
    return emptied.where(slots.c.tat_us == number("p_before"))


def add_bucket(tables: QueueTables) -> Insert:
    """Create the row of a rate, with all tokens."""
    return insert(slots_of(tables)).values({"slot": _NONE, **_rate()})


def change_bucket(tables: QueueTables) -> Update:
    """Change the rate; ``p_full`` is the time in which all tokens come back.

    What was taken at another rate leaves no fewer tokens than none.
    """
    slots = slots_of(tables)
    most = tables.expressions.now() + number("p_full")
    tat = case((slots.c.tat_us > most, most), else_=slots.c.tat_us)
    return _of_bucket(slots, {"tat_us": tat, **_rate()})


def _of_bucket(slots: Table, values: dict[str, Any]) -> Update:
    return update(slots).where(slots.c.slot == _NONE).values(values)


def _rate() -> dict[str, Any]:
    return {"interval_us": number("p_interval"), "burst": number("p_burst")}
