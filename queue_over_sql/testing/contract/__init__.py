"""What every engine keeps, as cases of pytest for an engine or a dialect of your own.

Turn on ``queue_over_sql.testing.plugin`` in the top-level ``conftest.py``, and give each test an
empty database of yours there::

    pytest_plugins = ["queue_over_sql.testing.plugin"]


    @pytest.fixture
    def database(tmp_path: Path) -> TestDatabase:
        return TestDatabase("mine", f"mine:///{tmp_path}/queues.db")

A module of tests then has the cases, each as a method::

    class TestMyEngine(QueueContract):
        pass

The library's own tests run the same cases on its engines.
"""

from queue_over_sql.testing.contract.claiming import ClaimCases
from queue_over_sql.testing.contract.publishing import PublishCases
from queue_over_sql.testing.contract.settling import SettleCases

__all__ = ["QueueContract"]


class QueueContract(PublishCases, ClaimCases, SettleCases):
    """What publishers and consumers may rely on, on every engine.

    Its cases need the fixtures ``queue``, ``service``, ``make_service`` and ``engine`` of the
    plugin.
    """
