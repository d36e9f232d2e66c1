"""Topics: a message is published once, and each queue that subscribed gets its copy, all or none.

``routing`` says which subscriptions a message is for, ``fan_out`` publishes the copies.
"""

from __future__ import annotations

from queue_over_sql.topics.topic import Subscription, Topic

__all__ = ["Subscription", "Topic"]
