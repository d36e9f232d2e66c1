"""Whatever a SQL client gives is refused, or stored as Python reads it; nothing else changes."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from queue_over_sql import FixedDelay
from queue_over_sql.inside import system
from tests.sql_api.sql_clients import LOST, PAYLOAD, UNKNOWN, WRONG, SqlClient, refusal

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Message, QueueService
    from queue_over_sql.settings import PayloadType

pytestmark = [
    pytest.mark.engines("postgresql", "mariadb", "mysql"),
    pytest.mark.usefixtures("functions_allowed"),
]

PIECES = (
    *(
        "'",
        '"',
        "\\",
        ";--",
        "%s",
        "%",
        "$body$",
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\n",
        "\0",
        "é",
        "🐇",
    ),
    *("null", "NaN", "1e400", "-0", "0.1", "9" * 25, "1" * 400, r"\u0000", r"\ud800", "e\u0301"),
    *("YQ==", "Y Q=", "\ud800", "\ufeff", "x" * 300),
)
TEXTS = st.none() | st.lists(st.sampled_from(PIECES), max_size=4).map("".join)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**53 + 1, 2**63, 2**64, -(10**25), 1e22, 5e-324, -0.0, 0.1, 1.0, 1e-7])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([piece for piece in PIECES if piece.isprintable()]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("aé'\""), inner),
    max_leaves=4,
)
NUMBERS = st.sampled_from(
    [None, 0, 1, -1, 7, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**64]
)
SECONDS = NUMBERS | st.sampled_from([0.25, 1e-9, -0.5, 1e300, float("inf"), float("nan")])
NAMES = st.sampled_from(["jobs", "jobs", "notes", "raw"])
FIRST = {"jobs": '{"first": 1}', "notes": "first", "raw": "Zmlyc3Q="}


class Ground:
    """Three queues with a message in hand each, and all that is stored of them."""

    def __init__(self, service: QueueService, client: SqlClient, engine: Engine) -> None:
        self.service, self.client, self.engine = service, client, engine
        kinds: dict[str, PayloadType] = {"jobs": "json", "notes": "text", "raw": "bytes"}
        self.queues = {
            name: service.create_queue(name, payload=kind, archive="all", retry=FixedDelay(60))
            for name, kind in kinds.items()
        }
        service.sql_api.install()

    def claim(self, name: str) -> dict[str, Any]:
        """Empty a queue, put a message into it, and claim it."""
        self.queues[name].purge(claimed=True)
        self.queues[name].archive.messages().remove()
        self.client.put(FIRST[name], queue=name)
        return self.client.must_get(name)

    def rows(self) -> dict[tuple[str, int], tuple[Any, ...]]:
        """All messages, live and finished, and the records of the queues."""
        found: dict[tuple[str, int], tuple[Any, ...]] = {}
        tables = [t for queue in self.queues.values() for t in (queue.table, queue.archive.table)]
        with self.engine.connect() as connection:
            for table in tables:
                found |= {
                    (table.name, row.id): tuple(row) for row in connection.execute(select(table))
                }
            records = connection.execute(select(system(self.service).queues)).all()
        return found | {
            ("record", number): tuple(row) for number, row in enumerate(sorted(records))
        }

    def refused(self, routine: str, *values: Any) -> str | None:
        """Call a routine; how it was refused."""
        try:
            self.client.call(routine, *values)
        except DBAPIError as error:
            return refusal(error)
        except (UnicodeError, OverflowError, ValueError) as error:
            # The driver cannot even send it.
            return f"another error: {error!r}"
        return None

    def message(self, queue: str, message_id: int) -> Message:
        """A live message, as Python reads it."""
        table = self.queues[queue].table
        [found] = self.queues[queue].messages(where=table.c.id == message_id).list()
        return found


@pytest.fixture
def ground(installed: QueueService, client: SqlClient, engine: Engine) -> Ground:
    """Queues of each payload type."""
    return Ground(installed, client, engine)


OFTEN = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    database=None,
    # To make an example smaller on a server takes longer than to read it.
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.full
def test_what_is_put_is_read_back_or_refused(ground: Ground) -> None:
    """One payload or several, of all types, with any limit and lease."""
    for queue in ground.queues:
        ground.claim(queue)

    @OFTEN
    @given(
        name=NAMES,
        text=TEXTS
        | VALUES.map(json.dumps)
        | VALUES.map(lambda v: json.dumps(v, ensure_ascii=False)),
        most=NUMBERS,
        lease=SECONDS,
    )
    def put(name: str, text: str | None, most: Any, lease: Any) -> None:
        before = ground.rows()
        refused = ground.refused("put_message_in_queue", name, text, most, lease)
        new = _new(before, ground.rows())
        if refused is not None:
            assert not new
            wrong = _out_of_range(most, 2**31 - 1) or _out_of_range(lease, 31_557_600_000)
            assert wrong or refused.startswith("another error") or PAYLOAD == refused, refused
            return
        [(table, number)] = new
        assert ground.queues[name].table.name == table
        message = ground.message(name, number)
        # As JSON, in which 1 is neither 1.0 nor true.
        assert repr(_as_python(name, text)) == repr(message.payload)
        assert {None: 5, 0: 2**31 - 1}.get(most, most) == message.max_attempts
        ground.queues[name].delete(number)

    @OFTEN
    @given(name=NAMES, values=TEXTS | st.lists(VALUES, max_size=3))
    def put_several(name: str, values: Any) -> None:
        text = json.dumps(values) if isinstance(values, list) else values
        before = ground.rows()
        refused = ground.refused("put_messages_in_queue", name, text)
        new = _new(before, ground.rows())
        if refused is not None:
            assert not new
            assert refused.startswith("another error") or refused in {PAYLOAD, WRONG}, refused
            return
        wanted = [v if name == "jobs" else _as_python(name, v) for v in json.loads(text)]
        found = [ground.message(name, number).payload for _, number in sorted(new)]
        assert wanted == found
        # MySQL may reorder keys.
        assert name == "raw" or json.dumps(wanted, sort_keys=True) == json.dumps(
            found, sort_keys=True
        )
        for _, number in new:
            ground.queues[name].delete(number)

    put()
    put_several()


@pytest.mark.full
def test_a_settle_with_any_arguments_changes_its_message_or_nothing(ground: Ground) -> None:
    """With the right token its own message; with a wrong one, or a wrong argument, none."""
    claims = {queue: ground.claim(queue) for queue in ground.queues}

    @OFTEN
    @given(
        data=st.data(), name=NAMES | st.sampled_from(["nope", "jobs'--", None]), right=st.booleans()
    )
    def settle(data: st.DataObject, name: str | None, right: bool) -> None:
        claim = claims.get(name or "", claims["jobs"])
        number, token = claim["id"], claim["token"]
        if not right:
            number, token = data.draw(
                st.tuples(NUMBERS | st.just(number), NUMBERS | st.just(token))
            )
        act: tuple[str, tuple[Any, ...]] = data.draw(
            st.one_of(
                st.tuples(st.sampled_from(["ack", "release"]), st.just(())),
                st.tuples(st.just("nack"), st.tuples(TEXTS, SECONDS)),
                st.tuples(st.just("reject"), st.tuples(TEXTS)),
                st.tuples(st.just("extend"), st.tuples(SECONDS)),
            )
        )
        verb, more = act
        before = ground.rows()
        refused = ground.refused(f"{verb}_message", name, number, token, *more)
        after = ground.rows()
        changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        is_right = name in claims and (number, token) == (claim["id"], claim["token"])
        if refused is not None:
            assert not changed
            wanted = {WRONG} | ({LOST} if name in claims and not is_right else set())
            wanted |= {UNKNOWN} if name not in claims else set()
            assert refused.startswith("another error") or refused in wanted, refused
            return
        assert is_right
        assert name is not None
        queue = ground.queues[name]
        tables = {queue.table.name, queue.archive.table.name}
        assert {(table, claim["id"]) for table in tables} >= changed
        if verb == "nack" and more[0] is not None:
            assert more[0] == ground.message(name, number).last_error
        if verb == "reject":
            [dead] = queue.archive.messages().list()
            assert ("rejected", more[0]) == (dead.outcome, dead.last_error)
        claims[name] = ground.claim(name)

    settle()


def _new(before: dict[Any, Any], after: dict[Any, Any]) -> set[tuple[str, int]]:
    """The messages that are there now; the others are as they were."""
    assert before == {key: row for key, row in after.items() if key in before}
    return after.keys() - before.keys()


def _as_python(queue: str, text: str | None) -> Any:
    """What a consumer has to read."""
    assert text is not None
    if queue == "notes":
        return text
    return json.loads(text) if queue == "jobs" else base64.b64decode(text)


def _out_of_range(value: Any, most: float) -> bool:
    """Whether a number is refused."""
    return value is not None and not 0 <= value <= most
