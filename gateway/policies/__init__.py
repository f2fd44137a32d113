"""One file, one layer: each does one thing to a call it does not own."""
