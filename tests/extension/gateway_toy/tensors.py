"""A transform of tensors, and a rule that compares them."""

import numpy as np

from gateway.api import RuleResult
from gateway.api.tensors import InferRequest, InferResponse, Need, Tensor, array_tensor, as_numpy


class Doubled:
    """Sends twice the values to the target."""

    needs = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})

    def before(self, request: InferRequest, /) -> InferRequest:
        inputs = [array_tensor(each.name, as_numpy(each) * 2) for each in request.inputs]
        return request.changed(inputs=tuple(inputs))

    def after(self, _request: InferRequest, reply: InferResponse, /) -> InferResponse:
        return reply


class SameSign:
    """Outputs are equal if their elements have the same signs."""

    def compare(self, old: Tensor, new: Tensor, /) -> RuleResult:
        differ = int((np.sign(as_numpy(old)) != np.sign(as_numpy(new))).sum())
        return RuleResult(not differ, f"sign: {differ} elements differ" if differ else "")
