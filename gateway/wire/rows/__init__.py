"""JSON without datatypes: rows of values or of columns. Read `read.py` and `write.py` first."""
