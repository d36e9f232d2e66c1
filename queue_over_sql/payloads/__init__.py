"""Payloads: their encoding, and the types that a server's code knows."""
