"""Recorded calls: sent again, converted and compared offline."""
