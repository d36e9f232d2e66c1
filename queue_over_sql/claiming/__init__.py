"""Claiming: priority levels, the low watermark, the exchange, and what an engine does otherwise."""
