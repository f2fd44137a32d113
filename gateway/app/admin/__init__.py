"""What the admin port serves for programs and people: `/api/v1/` and the pages under `/ui/`.

`access.py` decides who may do what, `api.py` has the paths, `events.py` tells listeners what
changes, `rates.py` computes rates from counters.
"""
