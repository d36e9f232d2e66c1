from __future__ import annotations

import time

from queue_over_sql.values.fingerprints import alike, fingerprint
from queue_over_sql.values.reasons import CONSUMER_DIED, LEASE_EXPIRED, not_started_within


def test_errors_that_differ_in_values_only_have_one_fingerprint() -> None:
    """Each line below is one error, whatever its ids, numbers, addresses and quoted parts are."""
    same = [
        ("KeyError: 'customer'", 'KeyError: "the customer\'s name"'),
        ("ValueError: order 17 of 3 items", "ValueError: order -1,017.5 of 12 items"),
        (
            "NotFound: 8f14e45f-ceea-467f-a8f2-b32a2f4b1c11 is gone",
            "NotFound: DEADBEEF-ceea-467f-a8f2-abcdefabcdef is gone",
        ),
        ("TypeError: <Job object at 0x7f3a>", "TypeError: <Job object at 0x7f3b>"),
        ("Timeout: no answer of 10.0.0.1:5432", "Timeout: no answer of fe80::dead:beef"),
        ("Bounced: bo.b+1@example.com", "Bounced: alice@mail.example.org"),
        ("ApiError: bad ids [1, 2, 3]", "ApiError: bad ids [7]"),
        ("Declined: card ord_8f3a2 at 2026-11-26T10:00:00Z", "Declined: card ord_77 at 12:30"),
        ("Wrong: {'id': 5, 'a': 'x'}", "Wrong: {'id': 6}"),
        (f"Wrong: '{'x' * 5000}' is long", f"Wrong: '{'y' * 4000}"),
        ("OperationalError: locked\n[SQL: 1]", "OperationalError: locked\n[SQL: select]"),
        (f"{CONSUMER_DIED}: 12ab", f"out of attempts: {CONSUMER_DIED} and 3 others: w, process 2"),
        (LEASE_EXPIRED, f"out of attempts: {LEASE_EXPIRED}\nThe last error before: x"),
        (not_started_within(5_000_000), not_started_within(None)),
        (None, "  \n"),
    ]
    for one, other in same:
        assert alike(one) == alike(other), (one, other)
        assert fingerprint(one) == fingerprint(other)
    assert len({fingerprint(one) for one, _ in same}) == len(same)


def test_errors_of_other_classes_or_words_have_other_fingerprints() -> None:
    """The class and the words tell errors apart; quotes in words are no quoted parts."""
    different = [
        *("S3Error: not found", "H2Error: not found", "S3Error: not allowed", "not found"),
        *("we can't pay, they don't care", "we can't ship, they don't care"),
        *("ns::Lost: x", "ns.Lost: x", "KeyError: a", "KeyError"),
    ]
    assert len({fingerprint(each) for each in different}) == len(different)


def test_a_fingerprint_is_bounded_stable_and_quick() -> None:
    """It is stored, so it stays the same in every release; a hostile error costs little."""
    assert fingerprint("KeyError: 'customer'") == "a67c4e62aa401c14"
    began = time.perf_counter()
    for text in ("'" * 20_000, "a@" * 10_000, "1:" * 10_000, "\\" * 20_000, "f" * 20_000, "\ud800"):
        assert len(alike(text)) <= 200
        assert len(fingerprint(text)) == 16
    assert time.perf_counter() - began < 1
