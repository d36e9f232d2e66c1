"""Consumers: identity, heartbeat and registration."""
