"""A gateway under faults of every kind at once: `python -m tests.chaos`, or `make chaos`."""
