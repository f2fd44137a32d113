"""What a transport carries and what a codec is; no I/O, no message of any protocol."""
