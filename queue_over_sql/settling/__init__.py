"""Settling: ack, nack, release, reject and extend, each fenced by the claim."""
