"""Rows in columns: between Arrow and the databases, by the fastest path of each driver.

Loaded where columns are asked for, since only the data pipeline has PyArrow.
"""
