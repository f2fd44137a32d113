"""The options of TensorRT v1 that a listener or an upstream may set."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.api.protocol import Options
from gateway.protocols.trtis.request_numbers import REQUEST_IDS, RequestIds
from gateway.wire.options import Reader, flag, matching, number, one_of, read_values

_SCHEDULED = (1, 12)
_SNAKE_CASE = (1, 13)


@dataclass(frozen=True, slots=True)
class TrtisOptions:
    """The options with their defaults.

    Attributes:
        server_id: Listener: its name in every response.
        server_version: The release that a listener is like, or that an upstream has: 1.12 and later
            read priority and timeout in `NV-InferRequest`, 1.13 and later write JSON in
            snake_case.
        max_batch_size: Listener: in the configuration of models that batch without a declared
            limit.
        version_zero: Listener: model version 0 over gRPC, which real servers refuse: "refuse" or
            "latest".
        model_control: Listener: clients may load and unload models.
        repository_index: Listener: clients may read the index of models.
        request_ids: Counters that all listeners of the process share.
    """

    server_id: str = "inference:0"
    server_version: str = "1.11.0"
    max_batch_size: int = 128
    version_zero: str = "refuse"
    model_control: bool = False
    repository_index: bool = False
    request_ids: RequestIds = field(default_factory=RequestIds, compare=False)

    @property
    def sends_schedule(self) -> bool:
        """Whether the server reads priority and timeout in a text header."""
        return self._release >= _SCHEDULED

    @property
    def is_snake_case(self) -> bool:
        """Whether JSON keeps the fields' original names."""
        return self._release >= _SNAKE_CASE

    @property
    def _release(self) -> tuple[int, int]:
        major, minor = self.server_version.split(".")[:2]
        return int(major), int(minor)


_READERS: Mapping[str, Reader] = {
    "server_id": matching(
        re.compile(r"[\x21-\x7e]{1,128}"), "visible ASCII characters, 128 at most"
    ),
    "server_version": matching(
        re.compile(r"(\d{1,6})\.(\d{1,6})(\.\d{1,6})?"), "a version such as 1.11.0, in quotes"
    ),
    "max_batch_size": number(1, (1 << 31) - 1),
    "version_zero": one_of("refuse", "latest"),
    "model_control": flag,
    "repository_index": flag,
}


def check_options(options: Options) -> Options:
    """Return *options*, each value in its type.

    Raises:
        ValueError: A key does not exist, or a value is wrong.
    """
    return read_values("trtis", _READERS, options)


def read_options(options: Options) -> TrtisOptions:
    """Return *options*, typed.

    Raises:
        ValueError: A key does not exist, or a value is wrong.
    """
    given = dict(options)
    request_ids = given.pop(REQUEST_IDS, None) or RequestIds()
    return TrtisOptions(**check_options(given), request_ids=request_ids)
