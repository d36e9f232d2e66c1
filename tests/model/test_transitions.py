"""The page on reliability ties the model to the statements: neither changes without the other."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
SCRIPT: Final = runpy.run_path(str(ROOT / "scripts" / "docs" / "reliability.py"))
TEXT: Final = (ROOT / "docs" / "reliability.md").read_text("utf-8")


def test_the_page_is_of_these_models_and_statements() -> None:
    """Whoever changes one side compares both, and then writes the digests anew."""
    assert SCRIPT["page"](TEXT) == TEXT, (
        "compare the model with the statements (model/transitions.toml), then run: "
        "python scripts/docs/reliability.py"
    )


def test_a_changed_statement_changes_the_digest_of_its_transition() -> None:
    """Of one engine: also in a statement that another operation sends first."""
    of_engine: Any = SCRIPT["of_engine"]
    names = SCRIPT["transitions"]()["claims"]["ack"]
    before = of_engine("mysql", names)
    found = SCRIPT["statements"](SCRIPT["SQL"] / "mysql.sql")
    # ``exchange`` is ``ack`` and a claim there.
    assert found["exchange"][1] == found["ack"][1]
    assert "DELETE FROM queue_jobs" in found["ack"][1]
    digest: Any = SCRIPT["digest"]
    texts = [text for name in names for text in found[name].values()]
    assert f"`{digest(texts)}`" == before
    assert (
        f"`{digest([*texts[1:], texts[0].replace('consumer_round', 'attempt_count')])}`" != before
    )


def test_each_transition_is_sent_by_an_engine() -> None:
    """A name of an operation that is no longer there fails."""
    for model, of_it in SCRIPT["transitions"]().items():
        for name, listed in of_it.items():
            found = {SCRIPT["of_engine"](engine, listed) for engine in SCRIPT["ENGINES"]}
            assert {""} != found, f"{model}, {name}"
            for each in listed:
                sent = {SCRIPT["of_engine"](engine, [each]) for engine in SCRIPT["ENGINES"]}
                assert {""} != sent, f"{model}, {name}: {each}"


def test_the_tests_of_each_promise_are_there() -> None:
    """The page names no test that was renamed or removed."""
    named = re.findall(r"`((?:tests|model|scripts)/[\w./]+)`", TEXT)
    assert named
    assert [] == [path for path in named if not (ROOT / path).exists()]
