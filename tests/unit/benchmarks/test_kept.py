"""Cached responses: the part that runs in one process, with a model of its own."""

from benchmarks.kept import inside


async def test_hits_and_misses_are_measured_at_both_places() -> None:
    """Each response is compared with the result of the model during the measurement."""
    options = {"callable": "gateway.backends.examples:simple"}
    model = {"backend": "python", "options": options, "cache": {}}
    rows = await inside("small", {"models": {"simple": model}}, 20)
    assert ["service", "frontend"] == [row.at for row in rows]
    assert all(row.hit_us > 0 and row.miss_us > 0 for row in rows)
