"""One package for each protocol; none imports another.

Each package exports a `SPEC` in its `__init__.py`, with codecs, options and paths.
"""
