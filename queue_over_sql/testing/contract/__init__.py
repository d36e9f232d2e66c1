"""The guarantees of every engine, as pytest cases for your own engine or dialect.

Turn on ``queue_over_sql.testing.plugin`` in the top-level ``conftest.py``, and define a fixture
there that gives each test an empty database::

    pytest_plugins = ["queue_over_sql.testing.plugin"]


    @pytest.fixture
    def database(tmp_path: Path) -> TestDatabase:
        return TestDatabase("mine", f"mine:///{tmp_path}/queues.db")

A test module then gets the cases as methods of a class::

    class TestMyEngine(QueueContract):
        pass

The library's own tests run the same cases on its engines.
"""

from queue_over_sql.testing.contract.claiming import ClaimCases
from queue_over_sql.testing.contract.publishing import PublishCases
from queue_over_sql.testing.contract.settling import SettleCases

__all__ = ["QueueContract"]


class QueueContract(PublishCases, ClaimCases, SettleCases):
    """What publishers and consumers can rely on, on every engine.

    Its cases need the fixtures ``queue``, ``service``, ``make_service`` and ``engine`` of the
    plugin.
    """
