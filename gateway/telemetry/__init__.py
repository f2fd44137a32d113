"""Logs, metrics and usage statistics. Read `metrics.py` and `log/logs.py` first."""
