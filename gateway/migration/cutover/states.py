"""The states of a cut-over, and what moves it from one to another.

A cut-over mirrors, and then bakes at each step of its plan until the new target has all calls. It
waits where a step needs approval. It is paused by an operator, when a step has waited for too long,
or when a guard trips and the plan says so. A guard or an operator rolls it back: first all serving
processes get the weight 0, then it is rolled back.

READY is the first state. None is final: DONE still trips, and ROLLED_BACK may resume.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


class Phase(enum.Enum):
    """The state of a cut-over as its users see it."""

    READY = "ready"
    MIRRORING = "mirroring"
    BAKING = "baking"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    PAUSED = "paused"
    ROLLING_BACK = "rolling_back"
    ROLLED_BACK = "rolled_back"
    DONE = "done"


IDLE_PHASES: Final = frozenset({Phase.READY, Phase.ROLLED_BACK})
"""Phases without calls to the new target, so that another plan may begin; DONE has them all."""

ADVANCING: Final = frozenset({Phase.MIRRORING, Phase.BAKING, Phase.WAITING_FOR_APPROVAL})
"""Phases from which the next step follows."""


class Event(enum.Enum):
    """What moves a cut-over."""

    MIRROR = "it begins to mirror, or begins so anew"
    STEP = "a step begins, or begins anew"
    APPROVAL_NEEDED = "the next step needs approval"
    COMPLETE = "the last step has baked"
    TOO_LONG = "a step has waited for longer than `max_wait`"
    PAUSE = "an operator pauses it"
    TRIP = "a guard trips"
    TRIP_AND_PAUSE = "a guard trips, and the plan pauses"
    ROLL_BACK = "an operator, or another gateway, rolls it back"
    APPLIED = "all serving processes have the weight 0"
    RESET = "an operator resets it"


_P, _E = Phase, Event
TRANSITIONS: Final[Mapping[tuple[Phase, Event], Phase]] = MappingProxyType(
    {
        (_P.READY, _E.MIRROR): _P.MIRRORING,
        (_P.READY, _E.RESET): _P.READY,
        (_P.MIRRORING, _E.MIRROR): _P.MIRRORING,
        (_P.MIRRORING, _E.STEP): _P.BAKING,
        (_P.MIRRORING, _E.APPROVAL_NEEDED): _P.WAITING_FOR_APPROVAL,
        (_P.MIRRORING, _E.TOO_LONG): _P.PAUSED,
        (_P.MIRRORING, _E.PAUSE): _P.PAUSED,
        (_P.MIRRORING, _E.TRIP): _P.ROLLING_BACK,
        (_P.MIRRORING, _E.TRIP_AND_PAUSE): _P.PAUSED,
        (_P.MIRRORING, _E.ROLL_BACK): _P.ROLLING_BACK,
        (_P.BAKING, _E.STEP): _P.BAKING,
        (_P.BAKING, _E.APPROVAL_NEEDED): _P.WAITING_FOR_APPROVAL,
        (_P.BAKING, _E.COMPLETE): _P.DONE,
        (_P.BAKING, _E.TOO_LONG): _P.PAUSED,
        (_P.BAKING, _E.PAUSE): _P.PAUSED,
        (_P.BAKING, _E.TRIP): _P.ROLLING_BACK,
        (_P.BAKING, _E.TRIP_AND_PAUSE): _P.PAUSED,
        (_P.BAKING, _E.ROLL_BACK): _P.ROLLING_BACK,
        (_P.WAITING_FOR_APPROVAL, _E.MIRROR): _P.MIRRORING,
        (_P.WAITING_FOR_APPROVAL, _E.STEP): _P.BAKING,
        (_P.WAITING_FOR_APPROVAL, _E.PAUSE): _P.PAUSED,
        (_P.WAITING_FOR_APPROVAL, _E.TRIP): _P.ROLLING_BACK,
        (_P.WAITING_FOR_APPROVAL, _E.TRIP_AND_PAUSE): _P.PAUSED,
        (_P.WAITING_FOR_APPROVAL, _E.ROLL_BACK): _P.ROLLING_BACK,
        (_P.PAUSED, _E.MIRROR): _P.MIRRORING,
        (_P.PAUSED, _E.STEP): _P.BAKING,
        (_P.PAUSED, _E.TRIP): _P.ROLLING_BACK,
        (_P.PAUSED, _E.TRIP_AND_PAUSE): _P.PAUSED,
        (_P.PAUSED, _E.ROLL_BACK): _P.ROLLING_BACK,
        (_P.PAUSED, _E.RESET): _P.READY,
        (_P.DONE, _E.TRIP): _P.ROLLING_BACK,
        (_P.DONE, _E.TRIP_AND_PAUSE): _P.PAUSED,
        (_P.DONE, _E.ROLL_BACK): _P.ROLLING_BACK,
        (_P.ROLLING_BACK, _E.APPLIED): _P.ROLLED_BACK,
        (_P.ROLLED_BACK, _E.MIRROR): _P.MIRRORING,
        (_P.ROLLED_BACK, _E.STEP): _P.BAKING,
        (_P.ROLLED_BACK, _E.RESET): _P.READY,
    }
)
"""The phase that follows a phase and an event. No other event happens in a phase."""
