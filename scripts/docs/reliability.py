"""Write the tables of the page on reliability anew: ``python scripts/docs/reliability.py``.

One ties each transition of the checked model to the statements that implement it, the other has
digests of both. A test compares them: whoever changes one side has to look at the other, and runs
this again. The faults are those of the result files in ``scripts/benchmarks/results``.
"""

# ruff: noqa: INP001 - a script, not part of a package

from __future__ import annotations

import ast
import functools
import hashlib
import json
import re
import statistics
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "reliability.md"
MODELS: Final = ROOT / "model"
SQL: Final = ROOT / "tests" / "dialects" / "sql"
RESULTS: Final = ROOT / "scripts" / "benchmarks" / "results"
ENGINES: Final = ("sqlite", "postgresql", "mysql", "mariadb", "h2")
_RULES: Final = "rules: "
_SOURCE: Final = "source: "
_NAMED: Final = re.compile(r"Transition ([a-z ]+):")
_TITLE: Final = re.compile(
    r"-- (?P<name>[^:\n]+?)(?: \((?P<part>\d+) of \d+\))?(?:: as (?P<same>.+))?$"
)

Statements: TypeAlias = dict[str, dict[int, str]]


def transitions() -> dict[str, dict[str, list[str]]]:
    """The statements of each transition, by model and by its name.

    Raises:
        ValueError: the models name others.
    """
    listed: dict[str, dict[str, list[str]]] = tomllib.loads(
        (MODELS / "transitions.toml").read_text("utf-8")
    )
    named = {
        path.stem: sorted(set(_NAMED.findall(path.read_text("utf-8"))))
        for path in MODELS.glob("*.pml")
    }
    if named != {model: sorted(names) for model, names in listed.items()}:
        msg = f"model/transitions.toml lists other transitions than the models name: {named}"
        raise ValueError(msg)
    return listed


@functools.cache
def statements(file: Path) -> Statements:
    """The statements of a file of SQL, by operation and number."""
    found: Statements = {}
    name, part = "", 1
    for line in file.read_text("utf-8").splitlines():
        if line.startswith("-- reads ") or not line.strip():
            continue
        if line.startswith("-- "):
            title = _TITLE.match(line)
            if title is None:
                continue
            name, part = title["name"], int(title["part"] or 1)
            found.setdefault(name, {})[part] = _of_others(found, title["same"])
        elif name:
            found[name][part] += f"{line}\n"
    return found


def _of_others(found: Mapping[str, Mapping[int, str]], same: str | None) -> str:
    """What another operation sends, too: ``ack, archive, 2`` is its second statement."""
    if same is None:
        return ""
    if same in found:
        return "".join(found[same].values())
    name, _, part = same.rpartition(", ")
    return found[name][int(part)]


def digest(texts: Iterable[str]) -> str:
    """Six letters that change with a text."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:6]


def of_model(model: str) -> str:
    """The digest of a model, without its comments."""
    text = re.sub(r"/\*.*?\*/", "", (MODELS / f"{model}.pml").read_text("utf-8"), flags=re.DOTALL)
    return digest([" ".join(text.split())])


def of_source(name: str) -> str:
    """The code of a module, without comments and docstrings."""
    tree = ast.parse((ROOT / "queue_over_sql" / name).read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            node.body = node.body[1:]
    # Unlike a dump of the tree, its source is the same for each version of Python.
    return ast.unparse(ast.fix_missing_locations(tree))


def of_engine(engine: str, names: Iterable[str]) -> str:
    """The digest of what an engine sends for these operations; empty if it sends nothing."""
    plain, rules = statements(SQL / f"{engine}.sql"), statements(SQL / "rules" / f"{engine}.sql")
    texts: list[str] = []
    for name in names:
        if name.startswith(_SOURCE):
            texts.append(of_source(name.removeprefix(_SOURCE)))
        elif name.startswith(_RULES):
            texts += rules.get(name.removeprefix(_RULES), {}).values()
        else:
            texts += plain[name].values()
    return f"`{digest(texts)}`" if texts else ""


def implemented() -> Iterator[str]:
    """The table of transitions and their statements."""
    yield "| model | transition | statements |"
    yield "|---|---|---|"
    for model, of_it in transitions().items():
        for number, (name, listed) in enumerate(of_it.items()):
            shown = "; ".join(_shown(each) for each in listed)
            yield f"| {'' if number else f'`{model}`'} | {name} | {shown} |"


def _shown(name: str) -> str:
    if name.startswith(_SOURCE):
        return f"`{name.removeprefix(_SOURCE)}`"
    return f"{name.removeprefix(_RULES)} (with groups)" if name.startswith(_RULES) else name


def digests() -> Iterator[str]:
    """The table of what was compared."""
    yield f"| transition | model | {' | '.join(ENGINES)} |"
    yield f"|---|---|{'---|' * len(ENGINES)}"
    for model, of_it in transitions().items():
        for name, listed in of_it.items():
            engines = " | ".join(of_engine(engine, listed) for engine in ENGINES)
            yield f"| {model}, {name} | `{of_model(model)}` | {engines} |"


def faults() -> Iterator[str]:
    """The faults that were measured; a sentence while there is no result."""
    files = {engine: RESULTS / f"faults_{engine}.json" for engine in ENGINES}
    results: dict[str, dict[str, Any]] = {
        engine: json.loads(file.read_text("utf-8"))["faults"]
        for engine, file in files.items()
        if file.exists()
    }
    if not results:
        yield "No result of faults by seed is committed yet."
        return
    yield f"| fault | {' | '.join(results)} |"
    yield f"|---|{'---|' * len(results)}"
    titles: dict[str, str] = {}
    for found in results.values():
        # What was measured first has no titles.
        titles |= {name: each.get("title", titles.get(name, name)) for name, each in found.items()}
    for name, title in titles.items():
        cells = " | ".join(_recovery(found.get(name, {})) for found in results.values())
        yield f"| {title} | {cells} |"


def _recovery(found: Mapping[str, Any]) -> str:
    seconds = found.get("seconds")
    if not seconds:
        return str(found.get("error", ""))
    broken = sum(found["violations"].values())
    shown = f"{statistics.median(seconds):.2f} / {max(seconds):.2f}"
    return f"{shown} ({broken})" if broken else shown


PARTS: Final = {"transitions": implemented, "digests": digests, "faults": faults}


def page(text: str) -> str:
    """The page with its tables as they are now."""
    for name, make in PARTS.items():
        between = re.compile(f"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        made = "\n".join(make())
        text, count = between.subn(lambda found: f"{found[1]}\n{made}\n\n{found[2]}", text)  # noqa: B023 - runs at once
        if count != 1:
            msg = f"docs/reliability.md has {count} places for {name}"
            raise ValueError(msg)
    return text


if __name__ == "__main__":
    fresh = page(PAGE.read_text("utf-8"))
    if "--check" in sys.argv[1:]:
        sys.exit(fresh != PAGE.read_text("utf-8"))
    PAGE.write_text(fresh, "utf-8")
