"""The programs that the chaos tests start: one module each, run as `python -m`."""
