"""The part of the page that shows the workloads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median, quantiles
from typing import Any

from scripts.benchmarks.harness import ENGINES, RESULTS, TITLES, origin_of, read_result
from scripts.benchmarks.workloads_list import (
    IDLE,
    LATENCY,
    LATENCY_TARGETS,
    LIMIT,
    LOAD_MILLION,
    MILLION,
    NO_PEERS,
    OURS,
    PEER,
    TARGETS,
    Target,
)

Result = Mapping[str, Any]
Rates = Sequence[float]
"""One for each round."""
_ON_DISK = "each commit reaches the disk"
_AT_MOST_ONCE, _NOT_ON_DISK = " †", " ‡"
_HEAD = """\
## Workloads, beside the limit and peers

Each contender has processes and a database of its own on one private server in its default
configuration, which writes each commit to the disk. *limit* is the bare driver with the SQL that
queue_over_sql runs, and nothing around it: no checks, no objects, no retries. One by one it claims
and acknowledges in two commits, where queue_over_sql exchanges in one; its worker exchanges.
Messages have 200 bytes of JSON where nothing else is said. In each round all contenders run in
turn; after each run it is checked that every message came, once. Rates are messages per second,
the median of the rounds; ratios are medians of the ratios of single rounds, with their quartiles.

The workers of pg-boss, PgQueuer and Graphile Worker claim messages in batches, as their
documentation recommends for speed; that of queue_over_sql claims as many as its handlers finish in
25 ms. What is compared as *one by one* is a claim and an acknowledgement for each message. A
transactional handler of pg-boss gets a batch, which shares a commit; that of queue_over_sql gets
one message, with a commit of its own unless it has `commit_every`.

† delivers at most once: a message is lost when its consumer dies.
‡ does not wait for the disk at each commit. Neither kind counts as *best peer*.
"""


def section(engines: Sequence[str] = ENGINES) -> str:
    """What the result files of these engines show; empty where there is none."""
    found = [
        read_result(name) for name in map(_file, engines) if (RESULTS / f"{name}.json").exists()
    ]
    if not found:
        return ""
    return "\n".join([_HEAD, *(line for result in found for line in _engine(result))]) + "\n"


def _file(engine: str) -> str:
    return f"workloads_{engine}"


def _engine(result: Result) -> Iterator[str]:
    title = TITLES[result["engine"]]
    yield f"### Workloads: {title}\n"
    yield from _about(result)
    yield from _rates(result)
    yield from _once(result)
    yield from _reached(result, title)
    yield from _unmeasured(result)
    yield origin_of(result) + "\n"


def _about(result: Result) -> Iterator[str]:
    yield "| contender | version | durability | delivery | refuses who lost the claim |"
    yield "|---|---|---|---|---|"
    for name, about in result["contenders"].items():
        facts = [about["version"], about["durability"], about["delivery"]]
        fence = "yes" if about["fence"] else "no"
        yield f"| {name}{_mark(about)} | {' | '.join(facts)} | {fence} |"
    yield ""


def _mark(about: Result) -> str:
    if about["delivery"] == "at most once":
        return _AT_MOST_ONCE
    return "" if about["durability"].startswith(_ON_DISK) else _NOT_ON_DISK


def _rates(result: Result) -> Iterator[str]:
    if not result["workloads"]:
        return
    names = list(result["contenders"])
    heads = [f"{name}{_mark(result['contenders'][name])}" for name in names]
    yield f"| work | {' | '.join(heads)} | ours / limit | ours / best peer |"
    yield "|---|" + "---:|" * (len(names) + 2)
    for workload, measured in result["workloads"].items():
        cells = [_rate(_of(result, workload, name)) for name in names]
        limit = _shown(ratios(result, (workload,), LIMIT, (workload,)))
        peer = best_peer(result, (workload,))
        beside = _shown(ratios(result, (workload,), peer, (workload,))) if peer else ""
        named = f"{beside} {peer}" if beside else ""
        yield f"| {measured['title']} | {' | '.join(cells)} | {limit} | {named} |"
    yield ""


def _rate(rates: Rates) -> str:
    return f"{median(rates):,.0f}" if rates else ""


def _once(result: Result) -> Iterator[str]:
    once = result["once"]
    if loaded := once.get(LOAD_MILLION):
        count = int(MILLION * result["scale"])
        rates = ", ".join(f"{name} {rate:,.0f}/s" for name, rate in loaded.items())
        yield f"Loading {count:,} messages into an empty queue: {rates}.\n"
    waiting = {name: once.get(name, {}) for name in (LATENCY, IDLE)}
    if not any(waiting.values()):
        return
    yield "| waiting for messages | p50 | p99 | statements per second while idle |"
    yield "|---|---:|---:|---:|"
    for name in result["contenders"]:
        latency, idle = (waiting[each].get(name) for each in (LATENCY, IDLE))
        if latency is None and idle is None:
            continue
        times = [f"{latency[part]:.1f} ms" if latency else "" for part in ("p50_ms", "p99_ms")]
        yield f"| {name} | {' | '.join(times)} | {'' if idle is None else f'{idle:.1f}'} |"
    yield ""
    yield "Latency is from the end of a publish in one process to the handler in another; messages"
    yield "are 50 ms apart. On PostgreSQL transactions are counted instead of statements.\n"


# ---------------------------------------------------------------- the figures to reach


def _reached(result: Result, title: str) -> Iterator[str]:
    rows = [*_ratio_rows(result), *_latency_rows(result)]
    if not rows:
        return
    yield f"| {title}: figure to reach | | reached | |"
    yield "|---|---:|---:|---|"
    yield from rows
    yield ""


def _ratio_rows(result: Result) -> Iterator[str]:
    for target in TARGETS:
        least = target.least.get(result["engine"])
        against = target.against
        if against == PEER:
            against = best_peer(result, target.theirs) or ""
        found = ratios(result, target.ours, against, target.theirs)
        if least is None or not found:
            continue
        reached = median(found)
        verdict = "reached" if reached >= least else _behind(reached, against)
        yield f"| {_title(target, against)} | ≥ {least:g} | {_shown(found)} | {verdict} |"


def _title(target: Target, against: str) -> str:
    if against == OURS:
        return f"{target.title}, to one"
    named = f"the best peer, {against}" if target.against == PEER else against
    return f"{target.title}, to {named}"


def _behind(reached: float, against: str) -> str:
    ahead = reached < 1 and against != OURS
    return f"**not reached: {against} is ahead**" if ahead else "**not reached**"


def _latency_rows(result: Result) -> Iterator[str]:
    most = LATENCY_TARGETS.get(result["engine"])
    measured = result["once"].get(LATENCY, {}).get(OURS)
    if most is None or measured is None:
        return
    reached = measured["p50_ms"]
    verdict = "reached" if reached <= most else "**not reached**"
    yield f"| latency of an idle queue, p50 | ≤ {most:g} ms | {reached:.1f} ms | {verdict} |"


def ratios(result: Result, ours: Sequence[str], against: str, theirs: Sequence[str]) -> Rates:
    """Of each round, our best rate at some workloads by the best of another's; empty if unknown."""
    pairs = zip(_best(result, ours, OURS), _best(result, theirs, against), strict=False)
    return [ours / theirs for ours, theirs in pairs]


def best_peer(result: Result, workloads: Sequence[str]) -> str | None:
    """The quickest peer at these workloads that loses nothing."""
    medians = {
        name: median(rates)
        for name, about in result["contenders"].items()
        if name not in NO_PEERS and not _mark(about)
        if (rates := _best(result, workloads, name))
    }
    return max(medians, key=medians.__getitem__) if medians else None


def _best(result: Result, workloads: Sequence[str], name: str) -> Rates:
    """The best rate of each round; the workload that is best by its median gives all of them."""
    found = [rates for workload in workloads if (rates := _of(result, workload, name))]
    return max(found, key=median) if found else []


def _of(result: Result, workload: str, name: str) -> Rates:
    if workload == LOAD_MILLION:
        rate = result["once"].get(LOAD_MILLION, {}).get(name)
        return [] if rate is None else [rate]
    rounds = result["workloads"].get(workload, {"rounds": []})["rounds"]
    rates = [each[name] for each in rounds if name in each]
    # A contender that failed in some round has no rate to show.
    return rates if len(rates) == len(rounds) else []


def _shown(found: Rates) -> str:
    if not found:
        return ""
    low, middle, high = quantiles(found, method="inclusive") if len(found) > 1 else [*found] * 3
    return f"{middle:.2f} ({low:.2f} to {high:.2f})" if len(found) > 1 else f"{middle:.2f}"


def _unmeasured(result: Result) -> Iterator[str]:
    for name, reason in result["missing"].items():
        yield f"*Not measured*: {name}: {reason}.\n"
    for failure in result["failures"]:
        where = f"{failure['contender']} at {failure['workload']}"
        yield f"*Failed*: {where}: {_brief(failure['reason'])}.\n"


def _brief(reason: str) -> str:
    """The first line: drivers add the statement and links."""
    return reason.strip().splitlines()[0].rstrip(".")
