"""Captures and migrations in the shadow process, so that files never stop the loop that serves.

A serving process puts sampled calls into its `outbox.py`, and drops what the socket does not take.
`shadow_part.py` has what the shadow process does with them, and `shadow_evidence.py` keeps what it
finds.
"""
