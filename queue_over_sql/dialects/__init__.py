"""What databases do differently: capabilities, statements, clocks and errors, one file each."""
