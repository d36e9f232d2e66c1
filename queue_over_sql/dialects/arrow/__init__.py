"""Rows in columns: between Arrow and the databases, by the fastest path of each driver.

PyArrow is imported where it is used, since only the data pipeline needs it.
"""
