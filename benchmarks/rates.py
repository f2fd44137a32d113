"""One measured rate, as a row of a table."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        rate: In *unit*, by the clock.
        cpu_rate: The same for each second of CPU time of this process.
        required: The value that a release must reach; None for no goal.
    """

    what: str
    unit: str
    rate: float
    cpu_rate: float
    required: float | None

    def document(self) -> dict[str, object]:
        """Return the row for JSON."""
        return asdict(self)
