"""The dashboard and the HTTP API, for a browser and for programs in other languages."""
