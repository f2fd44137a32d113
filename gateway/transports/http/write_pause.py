"""WritePause: notes when the write buffer of an HTTP connection is full, and when it is empty."""

import asyncio


class WritePause(asyncio.BaseProtocol):
    """The output of a connection.

    Attributes:
        write_paused: Set when the write buffer is empty again; None while it is empty.
    """

    write_paused: asyncio.Event | None

    def pause_writing(self) -> None:
        """Note that the write buffer is full."""
        super().pause_writing()
        self.write_paused = asyncio.Event()

    def resume_writing(self) -> None:
        """Note that the write buffer is empty."""
        super().resume_writing()
        if self.write_paused is not None:
            self.write_paused.set()
            self.write_paused = None
