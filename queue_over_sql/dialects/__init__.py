"""What each engine does otherwise, in a folder for each; ``engines.py`` opens them."""
