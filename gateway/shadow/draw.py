"""Which calls are chosen: the same key is drawn alike in all processes and gateways."""

from functools import lru_cache
from hashlib import blake2b

from gateway.ir.calls import InferRequest


def draw(key: str, name: str = "capture") -> float:
    """Return a number from 0 to 1 that is always the same for a key and a name."""
    digest = _keyed_hash(name).copy()
    digest.update(key.encode("utf-8", "surrogatepass"))
    return int.from_bytes(digest.digest(), "big") / 2**64


@lru_cache(maxsize=64)
def _keyed_hash(name: str) -> blake2b:
    """Return a keyed hash without data, to copy: keying takes half of the time of a draw."""
    return blake2b(digest_size=8, key=name.encode()[:64])


def sequence_key(request: InferRequest, client: str = "") -> str:
    """Return a text that only calls of the same sequence have; "" for other calls.

    Args:
        request: The call.
        client: Its client, where sequences of clients are apart.
    """
    if request.sequence is None:
        return ""
    model = "" if request.model is None else request.model.name
    return repr((client, model, request.sequence.id))
