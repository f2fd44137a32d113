"""The page on two recordings. Begin with `report.py`."""
