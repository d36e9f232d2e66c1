"""Connections, sessions, and whatever waits."""
