"""The endpoints of one upstream, and which of them gets a call. Read `endpoints.py` first."""
