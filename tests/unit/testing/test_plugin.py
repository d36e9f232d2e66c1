"""The pytest plugin: engines are selected and separated, and a missing one is an error."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

DATABASE_TEST = """
    import sqlalchemy

    def test_is_empty(database):
        engine = sqlalchemy.create_engine(database.url)
        tables = sqlalchemy.inspect(engine).get_table_names()
        # The library's own may be there.
        assert [name for name in tables if not name.startswith("queue_over_sql_")] == []
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("CREATE TABLE left_over (a INT)"))
        engine.dispose()

    def test_is_still_empty(database):
        test_is_empty(database)
"""


@pytest.fixture(autouse=True)
def _no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    # To load what else is installed for pytest takes most of the time.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    """Run the tests of `pytester` in a process of their own, as a user's project would."""
    plugin = ("-p", "queue_over_sql.testing.plugin")
    return pytester.runpytest_subprocess(*plugin, "-p", "no:cacheprovider", *options)


def test_each_test_gets_an_empty_database_on_each_engine(
    pytester: pytest.Pytester, request: pytest.FixtureRequest
) -> None:
    """What one test leaves behind, the next one on the same engine does not see."""
    engines = request.config.getoption("--engines") or "sqlite,postgresql,mariadb,h2"
    pytester.makepyfile(DATABASE_TEST)
    result = run(pytester, f"--engines={engines}", "-v")

    result.assert_outcomes(passed=2 * len(engines.split(",")))
    for engine in engines.split(","):
        result.stdout.fnmatch_lines([f"*::test_is_still_empty[[]{engine}[]] PASSED*"])


def test_engines_are_narrowed(pytester: pytest.Pytester) -> None:
    """``--engines`` leaves out all other engines."""
    pytester.makepyfile(DATABASE_TEST)
    run(pytester, "--engines=sqlite").assert_outcomes(passed=2)


@pytest.mark.parametrize("option", ["--engines=oracle", "--engines=sqlite,oracle", "--engines=,"])
def test_an_unknown_engine_is_a_usage_error(pytester: pytest.Pytester, option: str) -> None:
    """A misspelt engine must not turn into a run of no tests."""
    pytester.makepyfile(DATABASE_TEST)
    assert pytest.ExitCode.USAGE_ERROR == run(pytester, option).ret


def test_a_missing_engine_is_an_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a server the tests of an engine are errors, which say what to do; never skips."""
    monkeypatch.setenv("H2_JAR", str(pytester.path / "nowhere.jar"))
    pytester.makepyfile(DATABASE_TEST)
    result = run(pytester, "--engines=h2")

    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*engine h2 is required: no H2 jar at *nowhere.jar*"])


def test_a_marker_keeps_a_test_to_its_engines(pytester: pytest.Pytester) -> None:
    """A test for one engine runs on that engine, and is left out where it is not selected."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.engines("sqlite")
        def test_here(database):
            assert database.engine == "sqlite"

        @pytest.mark.engines("postgresql")
        def test_elsewhere(database):
            raise AssertionError

        @pytest.mark.engines("postgresql")
        def test_server_elsewhere(server):
            raise AssertionError
        """
    )
    run(pytester, "--engines=sqlite").assert_outcomes(passed=1, deselected=2)


def test_the_jar_of_the_cache_serves_driver_and_server(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest jar of ``.cache`` is H2_JAR for the run and its processes, unless one is set."""
    monkeypatch.delenv("H2_JAR", raising=False)
    cache = pytester.mkdir(".cache")
    for version in ("2.9.9", "2.10.1"):
        (cache / f"h2-{version}.jar").touch()
    pytester.makeini("[pytest]")
    pytester.makepyfile(
        """
        import os

        def test_jar():
            assert os.environ["H2_JAR"].endswith("/.cache/h2-2.10.1.jar")
        """
    )
    run(pytester).assert_outcomes(passed=1)
