"""Bytes of a request that are still on their way: passed on as they come, or waited for.

A server transport makes an `Arriving` of a large body whose head has come. What writes the request
to an upstream may have it poured out, once; everything else waits for the whole (`ir.landing`).
"""

from __future__ import annotations

from typing import Protocol


class Taker(Protocol):
    """Where arriving bytes are poured."""

    def take(self, piece: memoryview, /) -> None:
        """Take the next bytes, which live on; `Arriving.hold` asks for a pause."""
        ...


class Arriving(Protocol):
    """The body of a request of which a part has come.

    Attributes:
        start: Where what is poured begins; before it stands what was read already.
        end: Size of the whole.
    """

    @property
    def start(self) -> int: ...  # noqa: D102
    @property
    def end(self) -> int: ...  # noqa: D102

    @property
    def left(self) -> int:
        """How many bytes are still to be poured."""
        ...

    @property
    def begun(self) -> bool:
        """Whether pouring has begun: it cannot begin again, nor can the whole be had."""
        ...

    @property
    def moved(self) -> float:
        """When some of it was last poured, or received where it lands, on `time.monotonic`."""
        ...

    def pour(self, taker: Taker, /) -> None:
        """Give *taker* what is here, before this returns, and the rest as it comes."""
        ...

    def hold(self) -> None:
        """Give no more for now: the taker is full."""
        ...

    def go_on(self) -> None:
        """Give more; harmless when nothing was held."""
        ...

    def leave(self) -> None:
        """Give no more for good: the taker has gone."""
        ...

    async def whole(self) -> memoryview:
        """Return the whole body, from its first byte, when all of it has come.

        Raises:
            Unavailable: A part was poured, and is gone.
            Overloaded: There is no room for it.
        """
        ...
