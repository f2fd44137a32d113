"""One method that a gRPC server serves."""

from gateway.concurrency.timeouts import TimerWheel
from gateway.transports.contract import GrpcFrontend, ServerLimits
from gateway.transports.grpc.admission import CallAdmission
from gateway.wire.grpc import MethodKind


class Method:
    """A method and how its calls are handled.

    Attributes:
        is_unary: One message in each direction.
        is_bidirectional: Any number of messages in both directions.
        ask: Returns the only response, or a generator of responses.
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
        self.is_unary = kind is MethodKind.UNARY
        self.is_bidirectional = kind is MethodKind.BIDIRECTIONAL
        self.frontend = frontend
        self.ask = frontend.handle
        self.admission = admission
        self.limits = limits
        self.wheel = wheel
