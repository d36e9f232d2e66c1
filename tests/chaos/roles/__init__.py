"""The programs that the chaos tests start: one module per part, run as `python -m`."""
