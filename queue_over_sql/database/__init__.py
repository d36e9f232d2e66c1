"""Connections, sessions, and everything that waits."""
