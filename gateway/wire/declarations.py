"""The interface of codecs of listeners that depend on what the configuration declares of models."""

import abc
from collections.abc import Mapping
from typing import Any


class DeclaringCodec(abc.ABC):
    """A codec whose messages depend on declarations of models, which a reload may change."""

    @abc.abstractmethod
    def declare(self, declared: Mapping[str, Any], /) -> None:
        """Replace the declarations of the codec's protocol, by the names of models."""
