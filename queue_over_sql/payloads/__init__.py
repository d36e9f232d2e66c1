"""Payloads: how they are encoded, and the types that a server's code knows."""
