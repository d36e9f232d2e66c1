"""Tests with real processes: kills, stops, outages, and an account of every message afterwards."""
