"""Values that an object computes once."""

from __future__ import annotations

import threading

from queue_over_sql.values.cached import cached_property


class Slow:
    """Computes its value while others compute theirs."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.times = 0

    @cached_property
    def value(self) -> int:
        """Computed once."""
        self.times += 1
        self.begun.set()
        assert self.go_on.wait(30)
        return self.times


def test_an_object_that_computes_keeps_no_other_from_it() -> None:
    """Nor a forked child, which inherits no thread that would end the computation."""
    slow, quick = Slow(), Slow()
    computing = threading.Thread(target=lambda: slow.value, daemon=True)
    computing.start()
    assert slow.begun.wait(30)
    quick.go_on.set()
    other = threading.Thread(target=lambda: quick.value, daemon=True)
    other.start()
    other.join(10)
    assert not other.is_alive()
    slow.go_on.set()
    computing.join(30)
    assert 1 == slow.value
    assert 1 == quick.value
    assert 1 == slow.times
