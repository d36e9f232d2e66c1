"""The worker: a run-loop around handlers."""
