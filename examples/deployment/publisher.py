"""The publisher of the deployment example: an order every second, or a given number of orders.

``python publisher.py [count]``
"""

from __future__ import annotations

import random
import sys
import time
import uuid

from tasks import service


def publish_order() -> str:
    """Publish one order; its number is its key, so a repeated publish changes nothing."""
    number = str(uuid.uuid4())
    items = [{"count": random.randint(1, 5), "price": 10} for _ in range(3)]  # noqa: S311 - no secret
    order = {"number": number, "items": items}
    service.queue("orders").publish(order, key=number, on_conflict="skip")
    return number


def main(count: int | None) -> None:
    """Publish `count` orders at once, or one per second without end."""
    published = 0
    while count is None or published < count:
        print(f"published order {publish_order()}", flush=True)
        published += 1
        if count is None:
            time.sleep(1.0)
    service.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else None)
