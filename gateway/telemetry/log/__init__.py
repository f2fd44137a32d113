"""Logs: lines about calls and events, and the thread that writes them. Read `logs.py` first."""
