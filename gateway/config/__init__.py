"""The configuration file: its pydantic models, its loader and its JSON Schema.

Start with `models`, which has every section of the file, then read `load`. This package imports no
other package of the gateway. Checks that need protocols or backends are in `gateway.app.check`.
"""
