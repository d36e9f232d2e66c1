"""The account at the end: compares the files with the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

SHOWN_PATHS = 3


@dataclass(frozen=True)
class Result:
    """A row of the results table.

    With customers it says how many results of its customer the transaction found that wrote it.
    """

    message_id: int
    file_number: int
    sha256: str
    size: int
    server: str
    attempt: int
    customer: str | None = None
    done_before: int | None = None


@dataclass(frozen=True)
class Rescue:
    """A killed server: the messages that it held, and when the last of them was done again."""

    server: str
    pid: int
    held: frozenset[int]
    seconds: float | None = None


@dataclass(frozen=True)
class Ledger:
    """The facts for an account, collected when the servers have stopped.

    Args:
        files: path by file number, of every file to publish.
        published: messages whose publish committed.
        results: all rows of the results table.
        live: messages left in the queue.
        archived: messages in the archive, all of which are failures.
        rescues: the killed servers.
        kills_wanted: how many servers were to be killed.
        sample: numbers of the files whose checksum to verify.
        check: computes checksum and size of a file from its path.
        customers: to how many customers the files were dealt, in turns; None: there are none.
    """

    files: Mapping[int, str]
    published: int
    results: Sequence[Result]
    live: int
    archived: int
    rescues: Sequence[Rescue]
    kills_wanted: int
    sample: Sequence[int]
    check: Callable[[str], tuple[str, int]]
    customers: int | None = None


@dataclass(frozen=True)
class Account:
    """The result; `problems` is empty exactly if every file was done exactly once."""

    files: int
    published: int
    results: int
    size: int
    lost: tuple[str, ...]
    twice: tuple[str, ...]
    unknown: int
    sampled: int
    wrong: tuple[str, ...]
    redelivered: int
    live: int
    archived: int
    held_at_kill: int
    came_back: int
    kill_missing: bool
    customers: int
    disordered: tuple[str, ...]
    by_server: Mapping[str, int]

    @property
    def balanced(self) -> bool:
        """Whether files, messages and results match, each exactly once."""
        return not self.problems()

    def problems(self) -> list[str]:
        """The differences, one sentence each."""
        found = [
            (self.files == 0, "there were no files"),
            (self.published != self.files, f"{self.published} of {self.files} were published"),
            (bool(self.lost), f"no result: {_some(self.lost)}"),
            (bool(self.twice), f"more than one result: {_some(self.twice)}"),
            (self.unknown > 0, f"{self.unknown} results of files that were never published"),
            (bool(self.wrong), f"wrong checksum or size: {_some(self.wrong)}"),
            (self.live > 0, f"{self.live} messages are still in the queue"),
            (self.archived > 0, f"{self.archived} messages failed and are in the archive"),
            (bool(self.disordered), f"not done in order: {_some(self.disordered)}"),
            (self.kill_missing, "not every kill met a process that held messages"),
            (
                self.came_back != self.held_at_kill,
                f"{self.came_back} of {self.held_at_kill} messages of killed processes returned",
            ),
        ]
        return [sentence for wrong, sentence in found if wrong]


def settle(ledger: Ledger) -> Account:
    """Compare the files with the results; verifies the checksums of the sample."""
    counts = Counter(result.file_number for result in ledger.results)
    held = frozenset[int]().union(*(rescue.held for rescue in ledger.rescues))
    redelivered = {result.message_id for result in ledger.results if result.attempt > 1}
    return Account(
        files=len(ledger.files),
        published=ledger.published,
        results=len(ledger.results),
        size=sum(result.size for result in ledger.results),
        lost=tuple(path for number, path in ledger.files.items() if not counts[number]),
        twice=tuple(path for number, path in ledger.files.items() if counts[number] > 1),
        unknown=sum(result.file_number not in ledger.files for result in ledger.results),
        sampled=len(ledger.sample),
        wrong=_wrong(ledger),
        redelivered=len(redelivered),
        live=ledger.live,
        archived=ledger.archived,
        held_at_kill=len(held),
        came_back=len(held - _not_done_by_others(ledger)),
        kill_missing=sum(bool(rescue.held) for rescue in ledger.rescues) < ledger.kills_wanted,
        customers=len({result.customer for result in ledger.results} - {None}),
        disordered=_disordered(ledger),
        by_server=dict(Counter(result.server for result in ledger.results)),
    )


def _not_done_by_others(ledger: Ledger) -> frozenset[int]:
    """The messages of killed servers that no other server has done.

    Their attempts do not tell: of a group only the first message that a dead server held counts.
    """
    done_by = {result.message_id: result.server for result in ledger.results}
    return frozenset(
        message_id
        for rescue in ledger.rescues
        for message_id in rescue.held
        if done_by.get(message_id, rescue.server) == rescue.server
    )


def _disordered(ledger: Ledger) -> tuple[str, ...]:
    """The customers of whom a file was done before or beside an earlier one."""
    if ledger.customers is None:
        return ()
    found = [
        str(result.customer)
        for result in ledger.results
        if result.done_before != result.file_number // ledger.customers
    ]
    return tuple(dict.fromkeys(found))


def _wrong(ledger: Ledger) -> tuple[str, ...]:
    stored = {result.file_number: (result.sha256, result.size) for result in ledger.results}
    paths = {number: ledger.files[number] for number in ledger.sample}
    return tuple(
        path
        for number, path in paths.items()
        if number in stored and stored[number] != ledger.check(path)
    )


def _some(paths: Sequence[str]) -> str:
    shown = ", ".join(paths[:SHOWN_PATHS])
    more = len(paths) - SHOWN_PATHS
    return f"{shown} and {more} more" if more > 0 else shown
