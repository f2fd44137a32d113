"""Text in streams: characters that are cut between two replies.

Servers of language models send text in pieces, and a piece may end within a character of UTF-8.
Where BYTES can only be text, such a piece alone could not be sent.
"""

import codecs
import operator

from gateway.ir.calls import InferResponse
from gateway.ir.errors import InvalidTensor, Unsupported
from gateway.ir.tensors.data import ItemsData, RawData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, as_items

_ASCII_END = 0x80


class StreamText:
    """Moves the begin of a character at the end of an element to the next reply of one stream.

    Bytes that begin no character are left where they are.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], bytes] = {}

    def complete(self, item: InferResponse) -> InferResponse:
        """Return *item* with elements of BYTES that end with whole characters."""
        outputs = tuple([self._completed(tensor) for tensor in item.outputs])
        if all(map(operator.is_, outputs, item.outputs)):
            return item
        return item.changed(outputs=outputs)

    def finish(self) -> None:
        """Receive the end of the stream.

        Raises:
            Unsupported: It is within a character.
        """
        for (name, index), held in self._held.items():
            raise Unsupported(
                f"output {name!r} ends within a character at index {index}, with the bytes "
                f"{held.hex(' ')}: JSON carries only text"
            )

    def _completed(self, tensor: Tensor) -> Tensor:
        if tensor.datatype is not Datatype.BYTES or not isinstance(
            tensor.data, RawData | ItemsData
        ):
            return tensor
        try:
            items = as_items(tensor)
        except InvalidTensor:
            return tensor  # the codec refuses it
        completed = [self._whole((tensor.name, index), item) for index, item in enumerate(items)]
        if all(map(operator.is_, completed, items)):
            return tensor
        return Tensor(
            tensor.name, tensor.datatype, tensor.shape, ItemsData(completed), tensor.parameters
        )

    def _whole(self, place: tuple[str, int], item: bytes | memoryview) -> bytes | memoryview:
        """Return an element after what was held back at its place, without what is incomplete."""
        before = self._held.pop(place, b"")
        if not before and (not len(item) or item[-1] < _ASCII_END):
            return item
        text = before + bytes(item)
        try:
            _, end = codecs.utf_8_decode(text, "strict", False)
        except UnicodeDecodeError:
            return text
        if end < len(text):
            self._held[place] = text[end:]
        return text[:end]
