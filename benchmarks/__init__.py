"""Benchmarks of the gateway, next to direct calls and real peers. README.md explains them."""
