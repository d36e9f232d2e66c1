"""Consumers: identity, heartbeat, registration, and what one may have in hand at once."""
