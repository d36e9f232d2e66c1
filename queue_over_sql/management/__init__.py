"""What operators do, declared once: for the command line, the HTTP API and the dashboard."""
