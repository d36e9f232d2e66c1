"""The demo's account: it balances exactly if everything was done exactly once."""

from __future__ import annotations

from dataclasses import replace

from queue_over_sql_demo.account import Ledger, Rescue, Result, settle

FILES = {number: f"file-{number}" for number in range(10)}


def _result(number: int, *, attempt: int = 1, sha256: str = "sum") -> Result:
    return Result(number + 100, number, sha256, 5, "server-1", attempt)


RESULTS = [_result(n, attempt=2 if n in {3, 4} else 1) for n in FILES]
RIGHT = Ledger(
    files=FILES,
    published=10,
    results=RESULTS,
    live=0,
    archived=0,
    rescues=[Rescue("server-2", 1, frozenset({103, 104}), 3.5)],
    kills_wanted=1,
    sample=[0, 5, 9],
    check=lambda _: ("sum", 5),
)


def test_a_right_run_balances() -> None:
    """Ten files, ten results, two of them redelivered after the kill: no problem found."""
    account = settle(RIGHT)
    assert account.balanced
    assert [] == account.problems()
    assert 10 == account.results
    assert 2 == account.redelivered
    assert 2 == account.came_back
    assert 50 == account.size


WRONG = [
    (replace(RIGHT, results=RESULTS[:-1]), "no result: file-9"),
    (replace(RIGHT, results=[*RESULTS, RESULTS[0]]), "more than one result: file-0"),
    (replace(RIGHT, results=[*RESULTS, _result(77)]), "1 results of files that were never"),
    (replace(RIGHT, results=[_result(0, sha256="bad"), *RESULTS[1:]]), "wrong checksum"),
    (replace(RIGHT, published=9), "9 of 10 were published"),
    (replace(RIGHT, live=1), "1 messages are still in the queue"),
    (replace(RIGHT, archived=2), "2 messages failed"),
    (replace(RIGHT, rescues=[]), "not every kill met"),
    (replace(RIGHT, kills_wanted=2), "not every kill met"),
    (
        replace(RIGHT, rescues=[Rescue("s", 1, frozenset({103, 999}))]),
        "1 of 2 messages of killed",
    ),
    (
        replace(RIGHT, rescues=[Rescue("server-1", 1, frozenset({103, 104}))]),
        "0 of 2 messages of killed",
    ),
    (replace(RIGHT, files={}, published=0, results=[], sample=[]), "no file"),
]


def test_anything_wrong_unbalances_it() -> None:
    """Each way in which messages may be lost, doubled or bent is found and named."""
    for ledger, problem in WRONG:
        account = settle(ledger)
        named = any(problem in found for found in account.problems())
        assert not account.balanced, problem
        assert named, problem


def test_long_lists_are_shortened() -> None:
    """A thousand lost files are told by three of them and the number of the others."""
    files = {number: f"f{number}" for number in range(1000)}
    [problem] = settle(
        replace(
            RIGHT,
            files=files,
            published=1000,
            results=[],
            rescues=[],
            kills_wanted=0,
            sample=[],
        )
    ).problems()
    assert "no result: f0, f1, f2 and 997 more" == problem


def test_without_a_kill_none_is_missed() -> None:
    """--no-kill: the account asks for no redelivery."""
    results = [_result(n) for n in FILES]
    assert settle(replace(RIGHT, results=results, rescues=[], kills_wanted=0)).balanced


def test_files_of_a_customer_that_were_not_done_in_order_are_found() -> None:
    """Two customers in turns; two files of one see the same number of results, or are exchanged."""
    in_order = [
        replace(result, customer=f"customer-{n % 2}", done_before=n // 2)
        for n, result in enumerate(RESULTS)
    ]
    right = replace(RIGHT, results=in_order, customers=2)
    together = [*in_order[:5], replace(in_order[5], done_before=1), *in_order[6:]]
    exchanged = [replace(in_order[0], done_before=1), in_order[1], *in_order[2:]]
    assert 2 == settle(right).customers
    assert settle(right).balanced
    assert ("customer-1",) == settle(replace(right, results=together)).disordered
    problems = settle(replace(right, results=exchanged)).problems()
    assert ["not done in order: customer-0"] == problems
