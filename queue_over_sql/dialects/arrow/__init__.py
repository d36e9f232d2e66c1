"""Rows as Arrow columns, read and written in the fastest way of each driver.

Loaded only when columns are used, because only the data pipeline needs PyArrow.
"""
