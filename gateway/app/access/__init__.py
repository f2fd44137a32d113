"""Who may call, and what: credentials, permissions, and programs that decide.

Read `authentication.py` first.
"""
