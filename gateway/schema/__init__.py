"""Generated message classes, held in private descriptor pools; made by schemas/generate.py.

`schemas/generate.py` generates the message classes from `schemas/`. They are committed, and
`--check` compares them. Each protocol loads its descriptors into a private pool. Ordinary generated
code uses one pool for the process, and would clash with tritonclient, mlserver or kserve.
"""
