"""Tasks of taskiq in a queue of your SQL database."""

from queue_over_sql.contrib.taskiq.broker import QueueBroker

__all__ = ["QueueBroker"]
