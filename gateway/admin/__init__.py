"""The admin port: requests are checked, noted and answered by routes. It knows no gateway.

`router.py` passes each request on to a route. `access.py` decides who may ask, by the roles of
`tokens.py`, and `audit.py` has a line for each change. `html.py` renders pages, and `event_hub.py`
tells listeners what changes. The routes are those of `gateway.app.admin` and of extensions.
"""
