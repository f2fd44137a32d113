"""KnownInputs: the input names of the models that a frontend got long messages for.

Nothing waits for them. Only a message that does not match waits for a second question, because
what is known may be old, or that of another route.
"""

import asyncio
from collections.abc import Collection
from time import monotonic
from typing import Final

from gateway.ir.bounded_dict import BoundedDict
from gateway.ir.calls import ModelMetadataRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import GatewayError
from gateway.ir.expected_inputs import UncheckedInputs, find_mismatch
from gateway.service import Service

_MAX_CACHED: Final = 1024
_TTL_S: Final = 30.0
_TIMEOUT_S: Final = 5.0


class KnownInputs:
    """Compares the inputs of messages with those of their models.

    A model counts as known if its metadata name its platform and its inputs. Servers that name no
    platform, such as MLServer, accept inputs that they do not declare.

    Args:
        service: Replies to calls for metadata.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        # None is an unknown model, whose inputs are not compared.
        self._cached: BoundedDict[ModelRef, tuple[float, tuple[str, ...] | None]] = BoundedDict(
            _MAX_CACHED
        )
        self._pending: dict[ModelRef, asyncio.Task[tuple[str, ...] | None]] = {}

    def accepts(self, model: ModelRef, names: Collection[str]) -> bool:
        """Return whether the inputs are those of *model*, or it has none to compare with.

        It may be called on any thread.
        """
        expires, declared = self._cached.get(model, (0.0, None))
        if monotonic() >= expires:
            return False
        return declared is None or find_mismatch(model, names, declared) is None

    async def check(self, found: UncheckedInputs, context: Context) -> None:
        """Compare inputs that `accepts` did not accept.

        Args:
            found: The inputs.
            context: Of the caller, for a question that takes the route of its request.

        Raises:
            InvalidRequest: The model does not have these inputs.
        """
        model = found.model
        expires, declared = self._cached.get(model, (0.0, None))
        if monotonic() < expires:
            declared = await self._ask(model, context)
        elif model in self._pending:
            return
        else:
            task = self._pending[model] = asyncio.ensure_future(self._ask(model, context))
            task.add_done_callback(lambda _: self._pending.pop(model, None))
            await asyncio.sleep(0)  # models in this process reply at once
            if not task.done():
                return
            declared = task.result()
        mismatch = None if declared is None else find_mismatch(model, found.names, declared)
        if mismatch is not None:
            raise mismatch

    async def _ask(self, model: ModelRef, context: Context) -> tuple[str, ...] | None:
        declared = None
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                metadata = await self._service(ModelMetadataRequest(model=model, context=context))
        except (GatewayError, TimeoutError):
            pass  # the call itself meets the error
        else:
            if metadata.platform and metadata.inputs:
                declared = tuple([tensor.name for tensor in metadata.inputs])
        self._cached[model] = (monotonic() + _TTL_S, declared)
        return declared
