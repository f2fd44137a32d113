"""One method that a gRPC server serves."""

from __future__ import annotations

from gateway.concurrency.timer_wheel import TimerWheel
from gateway.transports.contract import GrpcFrontend, ServerLimits
from gateway.transports.grpc.admission import CallAdmission
from gateway.wire.grpc import MethodKind


class Method:
    """How calls of one path are answered.

    Attributes:
        unary: One message each way.
        bidirectional: Any number both ways.
        ask: Gives the one answer, or a generator of answers.
    """

    def __init__(  # all of one mount
        self,
        path: str,
        kind: MethodKind,
        frontend: GrpcFrontend,
        admission: CallAdmission,
        limits: ServerLimits,
        wheel: TimerWheel,
    ) -> None:
        self.path = path
        self.unary = kind is MethodKind.UNARY
        self.bidirectional = kind is MethodKind.BIDIRECTIONAL
        self.frontend = frontend
        self.ask = frontend.handle
        self.admission = admission
        self.limits = limits
        self.wheel = wheel
