"""Tests: a folder for each kind of test, with subfolders as in the package."""
