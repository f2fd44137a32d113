"""A batch as single items, for servers that take one item with each request.

`Complete` has the batch size and the metadata.
"""

import math
from collections.abc import Sequence

from gateway.ir.calls import InferRequest
from gateway.ir.datatypes import Datatype
from gateway.ir.tensor import Tensor, array_tensor, as_items, as_numpy, items_tensor


def items_of(call: InferRequest) -> Sequence[InferRequest]:
    """Return *call*, which has a separate batch size, as one call for each item; numbers are views.

    Raises:
        InvalidTensor: Shapes and data do not match.
    """
    size = call.batch_size or 1
    columns = [_items(tensor, size) for tensor in call.inputs]
    return [call.changed(inputs=inputs, batch_size=1) for inputs in zip(*columns, strict=True)]


def _items(tensor: Tensor, size: int) -> list[Tensor]:
    shape = tensor.shape or ()
    if tensor.datatype is Datatype.BYTES:
        each = math.prod(shape)
        found = as_items(tensor)
        return [
            items_tensor(tensor.name, shape, found[at * each : (at + 1) * each], tensor.parameters)
            for at in range(size)
        ]
    whole = Tensor(tensor.name, tensor.datatype, (size, *shape), tensor.data)
    return [array_tensor(tensor.name, row, tensor.datatype) for row in as_numpy(whole)]
