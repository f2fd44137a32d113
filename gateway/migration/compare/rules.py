"""The rules by which outputs are compared, and the defaults of each datatype.

`tensors.py` applies a rule.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal

from gateway.api.comparison import ComparisonRule
from gateway.ir.tensors.datatypes import Datatype

Normalisation = Literal["exact", "nfc", "casefold", "whitespace", "json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRule:
    """How one output is compared; all conditions that are present must hold.

    A rule without a condition on numbers has the tolerance of the datatype; all but floats must be
    equal. BYTES must be equal after the normalisation `text`, whatever the conditions on numbers.

    Attributes:
        ignore: The output is not compared at all.
        exact: Datatype, shape and bytes are equal.
        atol: With *rtol*, abs(a - b) <= atol + rtol * abs(a) for each element; a is the old value.
        rtol: The tolerated difference relative to the old value; None for the default.
        fraction: Share of the elements that may break `atol`, `rtol` or `ulp`.
        ulp: Largest number of representable values from a to b; -0 is +0.
        cosine: Least cosine of each vector of the last axis.
        top_k: The largest elements along *axis* are the same set; ties for the last may swap.
        axis: Axis of `top_k`.
        order: `top_k` also compares the order; equal elements have none.
        text: How elements of BYTES are normalised. What is not UTF-8 compares as bytes.
        nan: Whether NaN equals NaN.
        datatype: "widen": a wider datatype of the same kind is the same structure.
        shape: "squeeze": axes of size 1 do not matter.
        rule: A rule of an installed package. Alone it also decides about datatype and shape.

    Raises:
        ValueError: A value is out of range; the text names the key.
    """

    ignore: bool = False
    exact: bool = False
    atol: float | None = None
    rtol: float | None = None
    fraction: float = 0.0
    ulp: int | None = None
    cosine: float | None = None
    top_k: int | None = None
    axis: int = -1
    order: bool = False
    text: Normalisation | None = None
    nan: Literal["equal", "differ"] = "equal"
    datatype: Literal["exact", "widen"] = "exact"
    shape: Literal["exact", "squeeze"] = "exact"
    rule: ComparisonRule | None = None

    def __post_init__(self) -> None:
        for name in ("atol", "rtol"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}; expected a number of at least 0")
        if not 0 <= self.fraction < 1:
            raise ValueError(f"fraction is {self.fraction}; expected at least 0 and below 1")
        if self.ulp is not None and self.ulp < 0:
            raise ValueError(f"ulp is {self.ulp}; expected at least 0")
        if self.cosine is not None and not -1 <= self.cosine <= 1:
            raise ValueError(f"cosine is {self.cosine}; expected -1 to 1")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k is {self.top_k}; expected at least 1")

    @property
    def has_tolerance(self) -> bool:
        """Whether it bounds the difference of each element."""
        return self.atol is not None or self.rtol is not None

    @property
    def has_condition(self) -> bool:
        """Whether it has a condition of its own, so that no tolerance is added."""
        return self.has_number_condition or self.rule is not None

    @property
    def has_number_condition(self) -> bool:
        """Whether it has a condition on numbers."""
        return (
            self.exact
            or self.has_tolerance
            or bool([each for each in (self.ulp, self.cosine, self.top_k) if each is not None])
        )


IGNORE: Final = OutputRule(ignore=True)
EXACT: Final = OutputRule(exact=True)

# (atol, rtol) of floats without a rule; all other datatypes are exact.
_TOLERANCES: Final[Mapping[Datatype, tuple[float, float]]] = {
    Datatype.FP64: (1e-5, 1e-5),
    Datatype.FP32: (1e-5, 1e-5),
    Datatype.FP16: (1e-3, 2e-3),
    Datatype.BF16: (1e-2, 1.6e-2),
}


_MAX_KNOWN: Final = 1024


@dataclass(frozen=True, slots=True)
class OutputRules:
    """The rules of a model's outputs.

    Attributes:
        default: Of outputs without their own rule. Its tolerance applies to floats only.
        outputs: By output name; they replace the default.
    """

    default: OutputRule = OutputRule()
    outputs: Mapping[str, OutputRule] = field(default_factory=dict)
    # The last rule of each output, for it is the same for most calls.
    _known: dict[str, tuple[Datatype | None, OutputRule]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def ignores(self, name: str) -> bool:
        """Return whether the output *name* is not compared."""
        return self.outputs.get(name, self.default).ignore

    def rule(self, name: str, datatype: Datatype | None) -> OutputRule:
        """Return the rule of the output *name*, whose narrower datatype is *datatype*."""
        known = self._known.get(name)
        if known is not None and known[0] is datatype:
            return known[1]
        found = self._rule(name, datatype)
        if len(self._known) < _MAX_KNOWN or known is not None:
            self._known[name] = datatype, found
        return found

    def _rule(self, name: str, datatype: Datatype | None) -> OutputRule:
        found = self.outputs.get(name)
        if found is None:
            found = self.default if self._has_default(datatype) else _exact_like(self.default)
        return found if found.has_condition or found.ignore else _with_tolerance(found, datatype)

    def _has_default(self, datatype: Datatype | None) -> bool:
        """Return whether outputs of a datatype have the default as it is, not its exact form."""
        if self.default.rule is not None:
            return True
        if self.default.ignore or datatype is None:
            return self.default.ignore
        return datatype.is_float or (datatype is Datatype.BYTES and self.default.text is not None)


@lru_cache(64)  # a migration has a few rules, and each output of each call asks for one
def _exact_like(rule: OutputRule) -> OutputRule:
    return OutputRule(exact=True, nan=rule.nan, datatype=rule.datatype, shape=rule.shape)


@lru_cache(64)
def _with_tolerance(rule: OutputRule, datatype: Datatype | None) -> OutputRule:
    tolerance = None if datatype is None else _TOLERANCES.get(datatype)
    atol, rtol = tolerance or (None, None)
    return OutputRule(
        exact=tolerance is None,
        atol=atol,
        rtol=rtol,
        fraction=rule.fraction,
        text=rule.text,
        nan=rule.nan,
        datatype=rule.datatype,
        shape=rule.shape,
    )
