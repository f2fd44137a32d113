"""Which calls are sent to a sink, in a serving process."""

from collections.abc import Callable
from fnmatch import fnmatchcase
from time import monotonic
from typing import Final

from gateway.events.books import EventBooks
from gateway.events.definition import SinkDefinition
from gateway.events.messages import REQUEST, RESPONSE
from gateway.ir.bounded_dict import BoundedDict
from gateway.shadow.draw import draw
from gateway.shadow.records.privacy import Privacy
from gateway.shadow.token_bucket import TokenBucket

_DRAW_KEY: Final = "events"
"""Of all sinks: the calls of a smaller share are among those of a larger one."""
_MAX_MODELS: Final = 1024


class ServingSink:
    """One sink, as a serving process sees it. It lives as long as the process, for its books.

    Args:
        definition: The sink.
        workers: Number of serving processes, which share `outbox_bytes`.
        clock: Monotonic seconds.

    Attributes:
        books: What became of its events.
        used_bytes: Bytes of calls on their way, until the shadow process is done with them.
        pending: Events that were sent to the shadow process and have no result.
    """

    def __init__(
        self, definition: SinkDefinition, workers: int, clock: Callable[[], float] = monotonic
    ) -> None:
        self.books = EventBooks()
        self.used_bytes = 0
        self.pending = 0
        self._workers = workers
        self._clock = clock
        self.change(definition)

    def change(self, definition: SinkDefinition) -> None:
        """Follow another definition of the same name from now on."""
        config = definition.config
        self.definition = definition
        self.id = definition.id
        self.limit_bytes = config.outbox_bytes // self._workers
        self._threshold = config.percent / 100
        self._patterns = config.models
        self._matches: BoundedDict[str, bool] = BoundedDict(_MAX_MODELS)
        self._tokens = TokenBucket(config.per_second, self._clock)
        self._request = REQUEST if "request" in config.send else 0
        self._response = RESPONSE if "response" in config.send else 0

    def chooses(self, key: str) -> bool:
        """Return whether the share of calls has one; the model is not looked at.

        Args:
            key: "model|sequence id" in a sequence, else the request id.
        """
        threshold = self._threshold
        return threshold >= 1 or draw(key, _DRAW_KEY) < threshold

    def matches(self, model: str) -> bool:
        """Return whether calls of a model are sent."""
        found = self._matches.get(model)
        if found is None:
            found = any(fnmatchcase(model, pattern) for pattern in self._patterns)
            self._matches[model] = found
        return found

    def events(self, *, is_success: bool) -> int:
        """Return the events of a call, as bits."""
        return self._request | (self._response if is_success else 0)

    def admit(self, count: int) -> bool:
        """Count the events of a call as sampled; return whether there is room for it, else drop."""
        self.books.sampled += count
        if not self._tokens.take():
            self.books.dropped["rate"] += count
        elif self.used_bytes >= self.limit_bytes:
            self.books.dropped["outbox"] += count
        else:
            return True
        return False


def count_of(events: int) -> int:
    """Return the number of events that bits stand for."""
    return events.bit_count()


def privacy_of(sink: SinkDefinition) -> Privacy:
    """Return what is sent of a call to a sink."""
    config = sink.config
    return Privacy(
        payload=config.payload,
        tensors=dict(config.tensors),
        parameters=config.payload == "full",
        headers=config.headers,
    )


def privacy_of_all(sinks: list[SinkDefinition]) -> Privacy:
    """Return what a record needs for all sinks; each of them leaves out what it does not send."""
    found = [privacy_of(each) for each in sinks]
    has_elements = any(each.reads_elements for each in found)
    return Privacy(
        payload="full" if has_elements else "none",
        parameters=any(each.parameters for each in found),
        headers=tuple(sorted({name for each in found for name in each.headers})),
        can_lack_elements=True,
    )
