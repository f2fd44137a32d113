"""KnownInputs: the input names of the models that a frontend got long messages for.

Nothing waits for them. Only a message that does not match waits for a second question, because
what is known may be old, or that of another route.
"""

import asyncio
from collections.abc import Collection
from typing import Final

import structlog

from gateway.concurrency.ttl_lookup import TtlLookup
from gateway.ir.calls import ModelMetadataRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import GatewayError
from gateway.ir.tensors.expected_inputs import UncheckedInputs, find_mismatch
from gateway.service import Service

log = structlog.get_logger(__name__)

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
        self._lookup: TtlLookup[ModelRef, tuple[str, ...]] = TtlLookup(self._ask, _TTL_S, _TTL_S)

    def accepts(self, model: ModelRef, names: Collection[str]) -> bool:
        """Return whether the inputs are those of *model*, or it has none to compare with.

        It may be called on any thread.
        """
        declared = self._lookup.peek(model)
        if declared is None:
            return self._lookup.has(model)
        return find_mismatch(model, names, declared) is None

    async def check(self, found: UncheckedInputs, context: Context) -> None:
        """Compare inputs that `accepts` did not accept.

        Args:
            found: The inputs.
            context: Of the caller, for a question that takes the route of its request.

        Raises:
            InvalidRequest: The model does not have these inputs.
        """
        model = found.model
        if self._lookup.has(model):
            self._lookup.forget(model)
            declared = await self._lookup.get(model, context)
        elif self._lookup.is_asked(model):
            return
        else:
            question = self._lookup.ask(model, context)
            await asyncio.sleep(0)  # models in this process reply at once
            if not question.done():
                return
            declared = question.result()
        mismatch = None if declared is None else find_mismatch(model, found.names, declared)
        if mismatch is not None:
            raise mismatch

    async def _ask(self, model: ModelRef, context: Context) -> tuple[str, ...] | None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                metadata = await self._service(ModelMetadataRequest(model=model, context=context))
        except (GatewayError, TimeoutError):
            return None  # the call itself meets the error
        except Exception:  # as above, but nobody may wait for this
            log.exception("internal error", model=str(model))
            return None
        if not metadata.platform or not metadata.inputs:
            return None
        return tuple([tensor.name for tensor in metadata.inputs])
