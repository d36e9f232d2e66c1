"""The report as one HTML page without scripts, other files or network access."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib.resources import files
from typing import Final

from queue_over_sql.spark.pipelines.report.columns import STATUSES, Row
from queue_over_sql.spark.pipelines.report.plots import charts_of
from queue_over_sql.values.humanize import (
    clean,
    count_words,
    duration_words,
    instant_words,
    share_words,
)

_MOST_DRAWN: Final = 24


@dataclasses.dataclass(frozen=True)
class Facts:
    """The content of the page: rows of the report's tables, with time zones in all times.

    Attributes:
        lost_claims: per queue and cause, the number and the last hour.
        consumers: per queue, the consumers that finished most.
        known_consumers: the registered consumers by id.
        consumers_of: how many consumers each queue had.
        timeline: as ``hourly``, per queue and ``bin``.
    """

    title: str
    source: str
    made_at: datetime
    queues: Sequence[Row]
    failures: Sequence[Row]
    dead_letters: Sequence[Row]
    lost_claims: Sequence[Row]
    consumers: Sequence[Row]
    known_consumers: Mapping[str, str]
    consumers_of: Mapping[str, int]
    timeline: Sequence[Row]
    bin_seconds: int

    def drawn(self) -> list[str]:
        """The queues with plots: those with the most messages, by name."""
        busy = sorted(self.queues, key=lambda row: (-row["published"], row["queue"]))
        return sorted(row["queue"] for row in busy[:_MOST_DRAWN])


def page(facts: Facts) -> str:
    """The page."""
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    body = "".join(_body(facts))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # In case of injected HTML: nothing is loaded, and nothing runs.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>{clean(facts.title)}</title><style>{style}</style></head>"
        f"<body>{body}</body></html>\n"
    )


def _body(facts: Facts) -> Iterator[str]:
    yield f"<h1>{clean(facts.title)}</h1>"
    yield f'<p class="soft">{clean(facts.source)} · {instant_words(facts.made_at)} UTC</p>'
    if not facts.queues:
        yield '<p class="empty">There are no messages yet: neither finished nor live ones.</p>'
        return
    yield from _tiles(facts)
    yield _navigation(facts)
    for heading, anchor, section in _SECTIONS:
        yield f'<h2 id="{anchor}">{heading}</h2>'
        yield from section(facts)


def _navigation(facts: Facts) -> str:
    links = "".join(f'<a href="#{anchor}">{heading}</a>' for heading, anchor, _ in _SECTIONS)
    since = [row["first_finished_at"] for row in facts.queues if row["first_finished_at"]]
    until = [row["last_finished_at"] for row in facts.queues if row["last_finished_at"]]
    span = ""
    if since:
        first, last = instant_words(min(since)), instant_words(max(until))
        span = f'<p class="soft">Finished between {first} and {last} UTC.</p>'
    return f"{span}<nav>{links}</nav>"


def _tiles(facts: Facts) -> Iterator[str]:
    total = {
        name: sum(row[name] or 0 for row in facts.queues)
        for name in ("published", "finished", "done", "retried", "live", "ready")
    }
    dead = total["finished"] - total["done"]
    lost = sum(row["messages"] for row in facts.lost_claims)
    tiles = [
        ("messages", count_words(total["published"]), False),
        ("finished", count_words(total["finished"]), False),
        ("done", share_words(total["done"] / total["finished"] if total["finished"] else 0), False),
        ("dead letters", count_words(dead), dead > 0),
        ("were retried", count_words(total["retried"]), False),
        ("redelivered after a lost claim", count_words(lost), lost > 0),
        ("live now", count_words(total["live"]), False),
        ("ready now", count_words(total["ready"]), False),
    ]
    yield '<div class="tiles">'
    for name, value, bad in tiles:
        look = "tile bad" if bad else "tile"
        yield f'<div class="{look}"><b>{clean(value)}</b><span>{clean(name)}</span></div>'
    yield "</div>"


# -- tables


@dataclasses.dataclass(frozen=True)
class _Cell:
    """Safe HTML, and the class of its cell."""

    markup: str
    look: str = ""


def _table(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[_Cell]]) -> Iterator[str]:
    yield '<div class="scroll"><table><thead><tr>'
    for name, look in columns:
        yield f'<th class="{look}">{clean(name)}</th>'
    yield "</tr></thead><tbody>"
    for row in rows:
        cells = "".join(f'<td class="{cell.look}">{cell.markup}</td>' for cell in row)
        yield f"<tr>{cells}</tr>"
    yield "</tbody></table></div>"


def _listed(
    columns: Sequence[tuple[str, str]],
    rows: Iterable[Sequence[_Cell]],
    note: str,
    *,
    nothing: str,
) -> Iterator[str]:
    found = list(rows)
    if not found:
        yield f'<p class="empty">{nothing}</p>'
        return
    yield from _table(columns, found)
    yield f'<p class="soft">{note}</p>'


def _foreign(text: object, look: str) -> _Cell:
    return _Cell("" if text is None else f"<bdi>{clean(text)}</bdi>", look)


def _name(text: object) -> _Cell:
    return _foreign(text, "name")


def _count(value: float) -> _Cell:
    return _Cell(count_words(value), "n")


def _duration(value: float | None) -> _Cell:
    return _Cell(clean(duration_words(value)), "n")


def _at(at: datetime | None) -> _Cell:
    return _Cell(instant_words(at), "name")


def _bar(parts: Iterable[tuple[str, float, str]]) -> _Cell:
    drawn = "".join(
        f'<i class="{look}" style="width:{max(share, 0.005) * 100:.2f}%" title="{clean(hint)}"></i>'
        for look, share, hint in parts
        if share > 0
    )
    return _Cell(f'<div class="share">{drawn}</div>')


# -- sections


def _queues(facts: Facts) -> Iterator[str]:
    columns = [("queue", "name"), ("finished", "n"), ("done and dead", ""), ("dead", "n")]
    columns += [("retries", "n"), ("wait p50", "n"), ("p99", "n"), ("run p50", "n"), ("p99", "n")]
    columns += [("live", "n"), ("live messages", ""), ("oldest ready", "n")]
    yield from _table(columns, (_queue_row(row, facts.made_at) for row in facts.queues))
    keys = "".join(f'<span class="key {name}"><i>{name}</i></span>' for name in STATUSES)
    yield (
        '<p class="soft">Wait: from the due time of a message to its claim. Run: from the claim to '
        f"the end. Both are of the last attempt. Live messages: {keys}</p>"
    )


def _queue_row(row: Row, now: datetime) -> list[_Cell]:
    finished, live = row["finished"], row["live"]
    dead = finished - row["done"]
    oldest = row["oldest_ready_at"]
    age = None if oldest is None else max(0.0, (now - oldest).total_seconds())
    ended = [("done", row["done"], "done"), ("dead", dead, "dead")]
    return [
        *[_name(row["queue"]), _count(finished)],
        _bar(
            (look, n / finished, f"{count_words(n)} {word}") for look, n, word in ended if finished
        ),
        *[_count(dead), _count(row["retries"])],
        *[_duration(row[f"{kind}_{p}"]) for kind in ("wait", "run") for p in ("p50", "p99")],
        _count(live),
        _bar((s, row[s] / live, f"{count_words(row[s])} {s}") for s in STATUSES if live),
        _duration(age),
    ]


def _plots(facts: Facts) -> Iterator[str]:
    drawn = facts.drawn()
    if len(drawn) < len(facts.queues):
        yield f'<p class="soft">The {len(drawn)} queues with the most messages.</p>'
    of_queue: dict[str, list[Row]] = {name: [] for name in drawn}
    for row in facts.timeline:
        if row["queue"] in of_queue:
            of_queue[row["queue"]].append(row)
    for name in drawn:
        yield f"<h3>{clean(name)}</h3>"
        yield from charts_of(of_queue[name], facts.bin_seconds)


def _failures(facts: Facts) -> Iterator[str]:
    columns = [("queue", "name"), ("messages", "n"), ("reason", "text"), ("dead", "n")]
    columns += [("done later", "n"), ("live", "n"), ("last", "name")]
    yield from _listed(
        columns,
        map(_failure_row, facts.failures),
        "Numbers, quoted texts and identifiers are removed from reasons, so that similar failures "
        "are one line. Each message counts for its last failure.",
        nothing="No message has failed.",
    )


def _failure_row(row: Row) -> list[_Cell]:
    examples = "".join(
        f'<div class="example"><b>id {row[f"{which}_id"]}</b> <bdi>{clean(error)}</bdi></div>'
        for which in ("newest", "oldest")
        if (error := row[f"{which}_error"]) is not None
        and (which == "newest" or row["oldest_id"] != row["newest_id"])
    )
    reason = clean(row["reason"]) or "(without words)"
    shown = f"<bdi>{reason}</bdi><details><summary>examples</summary>{examples}</details>"
    counts = [_count(row[name]) for name in ("dead", "done_later", "live")]
    named = [_name(row["queue"]), _count(row["messages"]), _Cell(shown, "text")]
    return [*named, *counts, _at(row["last_at"])]


def _dead_letters(facts: Facts) -> Iterator[str]:
    columns = [("queue", "name"), ("id", "n"), ("key", "id"), ("kind", "name"), ("outcome", "name")]
    columns += [("attempts", "n"), ("finished", "name"), ("last error", "text")]
    yield from _listed(
        columns,
        map(_dead_row, facts.dead_letters),
        "The newest ones of each queue. The tables beside this page have more.",
        nothing="There are no dead letters.",
    )


def _dead_row(row: Row) -> list[_Cell]:
    return [
        *[_name(row["queue"]), _Cell(str(row["id"]), "n"), _foreign(row["key"], "id")],
        *[_name(row["kind"] or ""), _name(row["outcome"]), _count(row["attempt"])],
        *[_at(row["finished_at"]), _foreign(row["last_error"], "text")],
    ]


def _lost_claims(facts: Facts) -> Iterator[str]:
    columns = [("queue", "name"), ("cause", "name"), ("messages", "n")]
    columns += [("last in the hour", "name")]
    rows = (
        [_name(row["queue"]), _name(row["cause"]), _count(row["messages"]), _at(row["hour"])]
        for row in facts.lost_claims
    )
    yield from _listed(
        columns,
        rows,
        "These are minimum counts: a message stores only its last failure, and several lost "
        "claims of one message count once.",
        nothing="No claim was lost: no lease expired, no consumer died.",
    )


def _consumers(facts: Facts) -> Iterator[str]:
    columns = [("queue", "name"), ("consumer", "id"), ("registered as", "text")]
    columns += [("finished", "n"), ("share", ""), ("", "n"), ("dead", "n")]
    columns += [("run p50", "n"), ("p99", "n"), ("last", "name")]
    known = facts.known_consumers
    yield from _listed(
        columns,
        (_consumer_row(row, known.get(row["consumer_id"])) for row in facts.consumers),
        "Consumers are registered while their processes run. For consumers that have stopped, "
        "only the id is known.",
        nothing="No consumer has finished a message.",
    )
    left_out = sum(facts.consumers_of.values()) - len(facts.consumers)
    if left_out:
        yield f'<p class="soft">{left_out:,} other consumers finished fewer messages.</p>'


def _consumer_row(row: Row, known: str | None) -> list[_Cell]:
    share = share_words(row["share"])
    return [
        *[_name(row["queue"]), _foreign(row["consumer_id"], "id"), _foreign(known, "text")],
        _count(row["finished"]),
        *[_bar([("p50", row["share"], share)]), _Cell(clean(share), "n"), _count(row["dead"])],
        *[_duration(row["run_p50"]), _duration(row["run_p99"]), _at(row["last_finished_at"])],
    ]


_SECTIONS: Final[tuple[tuple[str, str, Callable[[Facts], Iterator[str]]], ...]] = (
    ("Queues", "queues", _queues),
    ("Over time", "time", _plots),
    ("Why messages failed", "failures", _failures),
    ("Dead letters", "dead", _dead_letters),
    ("Lost claims", "lost", _lost_claims),
    ("Who did the work", "consumers", _consumers),
)
