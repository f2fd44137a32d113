"""The admin port: `/metrics` and probes, `/api/v1/` for programs, `/ui/` for people.

`router.py` has the table of routes and passes each request on. `access.py` decides who may ask, and
`html.py` renders pages. A subject has a folder with its routes. Extensions bring further ones.
"""
