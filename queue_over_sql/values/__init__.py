"""Pure values and text, which every module of the package may import; none knows a database."""
