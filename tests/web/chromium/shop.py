"""The queues of a shop: one of everything that a page can show, made by real processes."""

from __future__ import annotations

import json
import linecache
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Engine, insert, update

from queue_over_sql import NoRetry, Queue, QueueService
from queue_over_sql.observability.history import BOUNDS
from queue_over_sql.service import parts_of
from queue_over_sql.values.limits import HISTORY_COUNTS
from tests.contract.durable.queries import Query

if TYPE_CHECKING:
    from collections.abc import Sequence

LONG_NAME: Final = "a_queue_whose_name_has_all_forty_letters"
"""As long as the name of a queue can be."""

HOSTILE: Final = (
    "<script>document.title = 'ran'; alert(1)</script>",
    "\"'><img src=x onerror=alert(1)><svg onload=alert(1)>",
    "</pre></td></table></textarea><iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "javascript:alert(1)",
    "\u202egnp.exe\u2066\x1b]0;title\x07\x1b[2J\x9b31m",
    "{{ 7*7 }}${7*7}<%= 7*7 %>",
    "W" * 250,
)
"""Texts that a page must show and never obey, and one without a place to break it."""

LARGE_NUMBER: Final = 2**60 + 1
"""A number that JavaScript would round."""

_MICROSECONDS: Final = 1_000_000
_FILE: Final = "shop/orders.py"
_CODE: Final = """\
def book(message, problem):
    raise LookupError(problem)


def handle(message, problem):
    try:
        book(message, problem)
    except LookupError as error:
        message.nack(error)
"""


def fill(url: str) -> None:
    """Make the queues ``orders``, ``emails``, ``invoices``, ``exports`` and ``thumbnails``."""
    with QueueService(url, consumer_name="shop") as service:
        orders = service.create_queue("orders", archive="all", retry=NoRetry())
        emails = service.create_queue("emails", archive="failed", retry=NoRetry())
        invoices = service.create_queue("invoices", max_attempts=8, lease=120)
        exports = service.create_queue("exports", lease=1800)
        service.create_queue("thumbnails")
        _fill_orders(orders)
        emails.publish_many([{"to": f"customer-{n}@example.org"} for n in range(12)])
        _fail(emails.consume(3), "mail server mx1 said 450: try again later")
        emails.ack(emails.consume(2))
        invoices.publish_many([{"invoice": 7_000 + n} for n in range(15)])
        invoices.pause()
        exports.publish_many([{"report": name} for name in ("sales", "stock", "returns")])
        _age(parts_of(service).connections.engine, exports, 1500)
        Query(invoices, name="warehouse")
        events = service.create_topic("order_events")
        events.subscribe("orders", "order.*")
        events.subscribe("emails", "order.paid", where={"country": "CH"})
        service.create_topic("returns")
        service.schedules.add(
            "nightly_report", "exports", {}, cron="0 3 * * *", timezone="Europe/Zurich"
        )
        service.schedules.add("sweep", "thumbnails", {}, every=900)
        _write_history(service, {"orders": 90, "emails": 25, "thumbnails": 6, "exports": 2})


def _fill_orders(orders: Queue) -> None:
    orders.publish_many(
        [{"order": 41_000 + n, "customer": {"city": "Basel"}, "items": [n, 2]} for n in range(90)]
    )
    orders.ack(orders.consume(30))
    _fail(orders.consume(6), "no stock for article 7781")
    _fail(orders.consume(4), "card declined by the bank")
    for message in orders.consume(2):
        message.reject("the order was placed twice")
    orders.publish(
        {"order": 50_001}, key="order-50001", kind="order", headers={"trace": "4bf92f35"}
    )
    for number in range(4):
        orders.publish({"order": 50_100 + number}, delay=5400)
    rest = [message.id for message in orders.messages(status="ready").list(3)]
    orders.messages(where=orders.table.c.id.in_(rest)).hold()


def _fail(messages: Sequence[Any], text: str) -> None:
    # A traceback on a picture names the shop's files, and not those of whoever took the picture.
    linecache.cache[_FILE] = len(_CODE), None, _CODE.splitlines(keepends=True), _FILE
    names: dict[str, Any] = {}
    exec(compile(_CODE, _FILE, "exec"), names)  # noqa: S102 - the text is above
    for message in messages:
        names["handle"](message, text)


def _age(engine: Engine, queue: Queue, seconds: int) -> None:
    c = queue.table.c
    past = {"available_at": c.available_at - seconds * _MICROSECONDS}
    past |= {"published_at": c.published_at - seconds * _MICROSECONDS}
    with engine.begin() as connection:
        connection.execute(update(queue.table).values(past))


def _write_history(service: QueueService, rates: dict[str, int]) -> None:
    parts = parts_of(service)
    now = int(datetime.now(UTC).timestamp()) // 60
    rows = [
        _minute(parts.settings.table_prefix, queue, now - ago, rate)
        for queue, rate in rates.items()
        for ago in range(1, 59)
    ]
    with parts.connections.engine.begin() as connection:
        connection.execute(insert(parts.system().history), rows)


def _minute(prefix: str, queue: str, minute: int, rate: int) -> dict[str, Any]:
    rush = (1 + math.sin(minute / 8)) / 2
    done = round(rate * (0.4 + 0.6 * rush) * (1 + 0.15 * math.sin(minute * 2.3)))
    failed = 1 if minute % 11 == 0 else 0
    counts = {"published": done + minute % 3, "claimed": done, "done": done, "failed": failed}
    counts |= {"retried": done // 12}
    return {
        "table_prefix": prefix,
        "queue": queue,
        "minute": minute,
        "process": "shop",
        **dict.fromkeys(HISTORY_COUNTS, 0),
        **counts,
        "waited": _histogram(done, 5 + round(2 * rush)),
        "handled": _histogram(done, 3 + round(rush)),
    }


def _histogram(count: int, place: int) -> str:
    spread = [0] * (len(BOUNDS) + 1)
    spread[place : place + 3] = [count // 2 + 1, count // 3, count // 12]
    return json.dumps(spread)


def fill_hostile(url: str) -> list[int]:
    """Fill the queues ``LONG_NAME`` and ``numbers`` with what may break a page.

    Returns:
        The ids of the dead letters of the first, one for each of ``HOSTILE``, then of a payload of
        eight megabytes.
    """
    with QueueService(url, consumer_name=HOSTILE[0]) as service:
        texts = service.create_queue(
            LONG_NAME, payload="text", archive="all", retry=NoRetry(), max_payload_bytes=2**24
        )
        ids = []
        for number, text in enumerate([*HOSTILE, "<b>" * 2_800_000]):
            short = text[:190]
            published = texts.publish(text, key=f"{number}{short}", headers={short[:40]: short})
            ids.append(published.id)
            try:
                raise ValueError(text[:2000])  # noqa: TRY301 - for its traceback
            except ValueError as error:
                texts.consume()[0].nack(error)
            texts.publish(short, key=f"live {number}{short}", delay=3600)
        numbers = service.create_queue("numbers", archive="all")
        numbers.publish({"n": LARGE_NUMBER, "deep": [[[LARGE_NUMBER]]], HOSTILE[0]: HOSTILE[1]})
        service.create_topic("news").subscribe("numbers", "a.b.#")
        return ids
