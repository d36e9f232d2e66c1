"""Tests: a folder for each kind, and in it the folders of the package that they are about."""
