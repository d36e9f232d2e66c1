"""The dashboard and the HTTP API, for browsers and for programs in other languages."""
