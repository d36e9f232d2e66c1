"""Messages that are listed, counted, edited and removed without a claim."""
