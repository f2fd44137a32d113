"""Moves clients from one server to another: replay, comparison of recordings, stock-taking.

Read `replay.py` first. Captures and comparisons are packages of their own; services come from
`gateway.app`.
"""
