"""Plots as inline SVG, and numbers as text, for Spark's report and the dashboard."""
