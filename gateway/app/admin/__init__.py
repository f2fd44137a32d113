"""What the admin port shows and changes of a gateway: a folder for each subject, with its routes.

`server.py` has the table of routes and starts the servers. `running.py` is the gateway as the
routes see it. Extensions bring further routes. Who may ask is decided in `gateway.admin`.
"""
