"""Envoy's `Check`: what a server of external authorization is asked about a call, and its reply."""

from __future__ import annotations

import time
from typing import Final

from google.protobuf.message import DecodeError

from gateway.ir.errors import UpstreamProtocolError
from gateway.ir.identity import Identity
from gateway.ir.texts import joinable
from gateway.policies.access.external import ALLOWED, ExternalFacts, ExternalVerdict
from gateway.schema import external_auth_pb2 as pb
from gateway.transports.contract import GrpcClient
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus

CHECK: Final = "/envoy.service.auth.v3.Authorization/Check"
_FORBIDDEN: Final = 403
_TOO_MANY: Final = 429


async def check(
    client: GrpcClient, timeout_s: float, identity: Identity, facts: ExternalFacts
) -> ExternalVerdict:
    """Ask a server of Envoy's external authorization.

    Raises:
        GatewayError: It cannot be reached, or replies with what cannot be read.

    Source: envoy/service/auth/v3/external_auth.proto.
    """
    message = check_request(identity, facts).SerializeToString()
    deadline = time.monotonic() + timeout_s
    response: GrpcResponse = await client.send(GrpcRequest(CHECK, (message,)), deadline=deadline)
    if response.status is not GrpcStatus.OK:
        raise UpstreamProtocolError(f"Check ended with {response.status.name}: {response.details}")
    try:
        return verdict_of(pb.CheckResponse.FromString(bytes(response.view)))
    except DecodeError as error:
        raise UpstreamProtocolError(f"not a CheckResponse: {error}") from error


def check_request(identity: Identity, facts: ExternalFacts) -> pb.CheckRequest:
    """Return the question about a call, without its body and credentials."""
    request = pb.CheckRequest()
    attributes = request.attributes
    attributes.source.principal = identity.name
    attributes.source.address.socket_address.address = facts.address
    http = attributes.request.http
    http.id, http.method, http.path = facts.request_id, facts.method, facts.path
    http.host, http.protocol, http.size = facts.host, facts.protocol, facts.size_bytes
    for name, value in facts.headers:  # of several fields all count: RFC 9110 5.3
        http.headers[name] = f"{http.headers[name]},{value}" if name in http.headers else value
    attributes.context_extensions.update(
        client=identity.name,
        groups=",".join(joinable(each, ",") for each in sorted(identity.groups)),
        tier=identity.tier,
        listener=facts.listener,
        protocol=facts.protocol,
        operation=facts.operation,
        model=facts.model,
        version=facts.version,
        elements=str(facts.elements),
        bytes=str(facts.size_bytes),
        inputs=facts.inputs,
    )
    return request


def verdict_of(response: pb.CheckResponse) -> ExternalVerdict:
    """Return the decision of a reply: code 0 allows."""
    if response.status.code == 0:
        return ALLOWED
    denied = response.denied_response
    is_limit = denied.status.code == _TOO_MANY
    return ExternalVerdict(_TOO_MANY if is_limit else _FORBIDDEN, denied.body)
