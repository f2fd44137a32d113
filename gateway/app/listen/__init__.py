"""Builds the servers of each listener: their addresses, paths, credentials and certificates.

Read `listeners.py` first.
"""
