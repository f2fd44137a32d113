"""Who calls: credentials of requests, and the clients that they name.

Read `authenticator.py` first. `clients.py` has the clients of the configuration, `key_file.py` the
hashed API keys, `tokens.py` and `key_sets.py` tokens (JWT). `control.py` watches the files.
"""
