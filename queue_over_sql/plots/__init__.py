"""Plots as inline SVG, and the words beside them, for the report and the dashboard."""
