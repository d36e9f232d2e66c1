"""Topics: publish a message once, and each subscribed queue gets a copy; all or none.

``routing`` matches messages to subscriptions; ``topic`` publishes the copies.
"""

from __future__ import annotations

from queue_over_sql.topics.topic import Subscription, Topic

__all__ = ["Subscription", "Topic"]
