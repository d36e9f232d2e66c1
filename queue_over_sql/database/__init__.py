"""Connections that run operations and repeat them, callers' connections, sessions, wake-ups."""
