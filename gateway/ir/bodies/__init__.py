"""Bodies and replies that are still arriving. Read `streaming_body.py` and `streams.py` first."""
