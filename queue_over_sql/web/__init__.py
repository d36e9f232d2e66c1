"""Web: the HTTP API and the dashboard; needs the extra ``web``."""
