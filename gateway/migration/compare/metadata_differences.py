"""How the metadata of one model differs at two servers, in words, and what identifies a model."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

from gateway.ir.metadata import ModelMetadata, TensorMetadata


def metadata_differences(old: ModelMetadata, new: ModelMetadata) -> Iterator[str]:
    """Yield each difference that a client may notice; names, versions and platforms are none.

    What a server does not report is no difference.

    Args:
        old: The metadata of the old server.
        new: The metadata of the new server.
    """
    if _takes_batch(old) is True:
        takes_none = "the old model takes batches, and the new one takes none"
        if _takes_batch(new) is False:
            yield f"{takes_none}: a call with a batch fails"
        elif new.max_batch_size == 0:  # its shapes begin with an axis of any size
            yield f"{takes_none} (max_batch_size 0): a call of TensorRT v1 fails"
    yield from _tensor_differences("input", old.inputs, new.inputs)
    yield from _tensor_differences("output", old.outputs, new.outputs)
    if None not in {old.max_batch_size, new.max_batch_size} and (
        old.max_batch_size != new.max_batch_size
    ):
        yield f"max_batch_size {old.max_batch_size} became {new.max_batch_size}"
    for flag in ("stateful", "decoupled"):
        before, after = getattr(old, flag), getattr(new, flag)
        if before != after:
            yield f"the model is {'no longer' if before else 'now'} {flag}"


def _takes_batch(model: ModelMetadata) -> bool | None:
    """Return whether the first axis of all inputs is a batch of any size; None if it is unknown."""
    if model.max_batch_size:
        return True
    # With 0 the first axis belongs to the item; whoever sends it as a batch notices no difference.
    shapes = [each.shape for each in model.inputs]
    if not shapes or None in shapes:
        return None
    return all(shape and shape[0] == -1 for shape in shapes)


def model_identity(model: ModelMetadata) -> dict[str, Any]:
    """Return what changes with the model that a server has: its versions, and a hash of the rest.

    Class labels and the configuration are no part of it.
    """
    tensors = [
        [each.name, each.datatype and each.datatype.name, each.shape]
        for each in (*model.inputs, *model.outputs)
    ]
    flags = [len(model.inputs), model.max_batch_size, model.stateful, model.decoupled]
    signature = blake2b(repr([tensors, flags, model.platform]).encode(), digest_size=8)
    return {"versions": sorted(model.versions), "signature": signature.hexdigest()}


def _tensor_differences(
    kind: str, old: Sequence[TensorMetadata], new: Sequence[TensorMetadata]
) -> Iterator[str]:
    if not old or not new:  # a server that reports none
        return
    after = {each.name: each for each in new}
    for tensor in old:
        found = after.pop(tensor.name, None)
        if found is None:
            yield f"{kind} {tensor.name!r} is missing"
            continue
        if None not in {tensor.datatype, found.datatype} and tensor.datatype is not found.datatype:
            before, now = tensor.datatype, found.datatype
            yield f"{kind} {tensor.name!r} was {before and before.name}, and is {now and now.name}"
        if None not in {tensor.shape, found.shape} and tensor.shape != found.shape:
            before_text, now_text = (str(list(each.shape or ())) for each in (tensor, found))
            yield f"{kind} {tensor.name!r} had shape {before_text}, and has {now_text}"
    for name in after:
        yield f"{kind} {name!r} is new"
