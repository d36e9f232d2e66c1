"""Tests, laid out by what they prove: contract, engine, chaos, interfaces, unit."""
