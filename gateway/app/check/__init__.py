"""What only a whole configuration shows to be wrong. Read `check.py` first."""
