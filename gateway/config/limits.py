"""The limits of listeners, messages and upstreams.

A key that is left out has the default of `gateway.transports.contract` or `gateway.ir.limits`. The
descriptions repeat these defaults, and a test compares the two.
"""

from typing import Any, Literal

from pydantic import Field

from gateway.settings.fields import Duration, Size
from gateway.settings.model import Model


class ServerLimitsConfig(Model):
    """Limits of a listener: connections, requests, bytes and times.

    Each limit applies separately to the HTTP server, the gRPC server and each stream of a listener.
    It also applies to each worker: with two workers a listener accepts twice as much.
    """

    message_bytes: Size | None = None
    """Largest request body or message, both compressed and decompressed. Larger requests are
    refused before they are read, if they declare their length. Default: `64MiB`."""
    decompressed_ratio: int | None = Field(None, ge=1)
    """Largest ratio of decompressed size to compressed size. It protects against compression bombs.
    Default: `200`."""
    decompressed_elements: int | None = Field(None, ge=1)
    """BYTES elements, and texts and lists of JSON, that a compressed message may have besides one
    for each compressed byte. 128 bytes of other JSON count as one. Default: `4096`."""
    header_field_bytes: Size | None = None
    """Largest HTTP/1 header field, name and value together. Default: `64KiB`."""
    header_total_bytes: Size | None = None
    """Largest HTTP/1 header section, all fields together. Default: `96KiB`."""
    grpc_metadata_bytes: Size | None = None
    """Largest metadata of a gRPC call. Default: `16KiB`."""
    body_chunks: int | None = Field(None, ge=1)
    """Most chunks of an HTTP/1 body. Default: `65536`."""
    connections: int | None = Field(None, ge=0)
    """Most open connections. Further ones get 503, GOAWAY or an error of the stream's protocol. `0`
    means half of the file descriptors that the connections to upstreams leave. Default: `0`."""
    connections_per_address: int | None = Field(None, ge=0)
    """Most open connections from one client address. `0` means as many as `connections` if that is
    set, and otherwise seven eighths of them. Default: `0`."""
    requests_in_flight: int | None = Field(None, ge=1)
    """Most requests that are processed at the same time. Further ones wait in a queue. Default: as
    many as `in_flight_bytes` allows, with 16 KiB for each."""
    requests_per_address: int | None = Field(None, ge=1)
    """Number of requests of one client address, or of one connection of a unix socket, that no
    other one delays. It may have more while places are free. Default: a quarter of
    `requests_in_flight`, or 64 if that is not set."""
    requests_queued: int | None = Field(None, ge=0)
    """Most requests that wait because `requests_in_flight` is reached. Further ones are refused as
    overloaded, those of the busiest address first. Default: `2048`."""
    queue_wait: Duration | None = None
    """Longest wait of a request in the queue, or for memory of `in_flight_bytes`. It is then
    refused as overloaded. Default: until its deadline. The timeout of its route counts the time in
    the queue."""
    h2_streams: int | None = Field(None, ge=1)
    """Most concurrent streams of an HTTP/2 connection, and requests of a brpc connection. Default:
    `1024`."""
    connection_age: Duration | None = None
    """Age, varied by 10 %, at which a gRPC connection is closed after its calls, so that clients
    spread over replicas. Default: `1h`."""
    header_timeout: Duration | None = None
    """Longest time to receive the header section of a request, from its first byte, and longest
    time of a TLS handshake. Default: `10s`."""
    idle_timeout: Duration | None = None
    """Longest time without a byte while a body is being received, and longest time that a client
    may accept no byte of a response. Default: `30s`."""
    min_rate_bytes_s: Size | None = Field(None, ge=1)
    """Smallest average rate, in bytes per second, at which a body must arrive, and at which a
    client must accept a response, after the first 10 s. Default: `1024`."""
    body_timeout: Duration | None = None
    """Longest time to receive a whole body. Default: `5m`."""
    keepalive: Duration | None = None
    """Time after which an idle connection is closed. Default: `75s`."""
    pipelined_requests: int | None = Field(None, ge=1)
    """Most requests that an HTTP/1 or GraphPipe connection may send ahead of their responses.
    Reading pauses at this number. Default: `16`."""
    stream_requests: int | None = Field(None, ge=1)
    """Most messages of a bidirectional gRPC stream that are processed at the same time. Default:
    `64`."""
    cut_through_bytes: Size | None = None
    """Size of the missing part from which a body is forwarded while it arrives. It applies to
    binary tensors that need no conversion. `0` receives every body first. Default: `2MiB`."""
    # Retired keys, see retired.py.
    decompressed_ratio_floor_bytes: Size | None = None
    header_line_bytes: Size | None = None
    header_count: int | None = Field(None, ge=1)
    body_idle_timeout: Duration | None = None
    body_min_rate_bytes_s: Size | None = None
    body_min_rate_grace: Duration | None = None
    write_idle_timeout: Duration | None = None
    write_min_rate_bytes_s: Size | None = Field(None, ge=1)
    write_min_rate_grace: Duration | None = None
    tls_handshake: Duration | None = None

    def by_side(self) -> dict[str, Any]:
        """Return the values that are set, by the names of `gateway.transports.contract`.

        A key for requests and responses sets both; a retired key for one of them wins.
        """
        values = self.model_dump(exclude_none=True)
        for key in ("idle_timeout", "min_rate_bytes_s"):
            both = values.pop(key, None)
            if both is not None:
                values = {f"body_{key}": both, f"write_{key}": both} | values
        if self.header_timeout is not None:
            values.setdefault("tls_handshake", self.header_timeout)
        return values


class MessageLimitsConfig(Model):
    """Limits on the content of one message, the same for every protocol."""

    json_bytes: Size | None = None
    """Largest JSON part of a message. Binary tensors do not count. Default: `16MiB`."""
    json_depth: int | None = Field(None, ge=4, le=512)
    """Largest nesting depth of JSON objects and lists. Default: `64`."""
    json_keys: int | None = Field(None, ge=1)
    """Most keys of a JSON object. Default: `10000`."""
    tensors: int | None = Field(None, ge=1)
    """Most tensors of a request or of the metadata of a model. Default: `2048`."""
    outputs: int | None = Field(None, ge=1)
    """Most outputs that a request may name. Default: `2048`."""
    json_strings: int | None = Field(None, ge=1)
    """For upstreams: most BYTES elements of a request for MLServer or KServe over HTTP. MLServer
    gets 2.5 times as many over gRPC. Default: `100000`."""
    json_numbers: int | None = Field(None, ge=1)
    """For upstreams: most other elements of a request for MLServer or KServe over HTTP. Default:
    `2500000` for MLServer, `400000` for KServe."""
    request_bytes: Size | None = None
    """For upstreams: largest request that the server accepts over gRPC. Default: `4MiB` for
    MLServer, `8MiB` for KServe, otherwise no limit."""
    bytes_rectangle: Size | None = None
    """For upstreams: largest memory of the BYTES inputs of a request in MLServer over HTTP, which
    makes each element as wide as the longest one: count times longest times 4. Default: `64MiB`."""
    rank: int | None = Field(None, ge=1, le=64)
    """Most dimensions of a tensor. Default: `32`."""
    dim: int | None = Field(None, ge=1)
    """Largest single dimension of a tensor. Default: `1099511627776`, which is 2 to the power
    of 40."""
    elements: int | None = Field(None, ge=1)
    """Most elements of a tensor. Default: `2147483647`."""
    bytes_elements: int | None = Field(None, ge=1)
    """Most BYTES elements of a message, all tensors together. It also limits nested lists of JSON
    tensors, and values of other JSON documents. Default: `1000000`."""
    bytes_element_size: Size | None = None
    """Largest element of a BYTES tensor. Default: `16MiB`."""
    classes: int | None = Field(None, ge=1)
    """Most classes of one output that a request may ask for. Default: `1000`."""
    model_name_bytes: Size | None = None
    """Longest model name, in bytes of UTF-8. Default: `255`."""
    name_bytes: Size | None = None
    """Longest name of a tensor, parameter, version or shared-memory region, and longest request
    id, in bytes of UTF-8. Default: `1024`."""
    parameters: int | None = Field(None, ge=0)
    """Most parameters of a request or of one of its tensors. Default: `64`."""
    error_text_bytes: Size | None = None
    """Size at which the error texts of the gateway are cut. Default: `1024`."""


class ClientLimitsConfig(Model):
    """Limits of an upstream. They apply separately to each worker and to each of its addresses."""

    message_bytes: Size | None = None
    """Largest response body or message, both compressed and decompressed. Default: `64MiB`."""
    connections: int | None = Field(None, ge=1)
    """Most open connections. Default: a quarter of the file descriptors of the process, and at
    least 100."""
    in_flight: int | None = Field(None, ge=1)
    """Most requests that wait for a response. HTTP/1 also needs a connection for each. Default: no
    such limit."""
    pending: int | None = Field(None, ge=0)
    """Most requests that wait because `in_flight` or `connections` is reached. Further ones are
    refused as overloaded. Default: `1024`."""
    connect_timeout: Duration | None = None
    """Longest time to open a connection, TLS handshake included. HTTP upstreams on a loopback
    address get at most `1s`. Default: `5s`, or `1s` for every upstream on a loopback address."""
    keepalive: Duration | None = None
    """Time after which an idle connection is closed. Without the key, HTTP requests that must not
    be sent twice, such as inferences, use only connections that were idle for at most 1.5s, or 1s
    less than the server says in `Keep-Alive: timeout=`. Default: `60s`."""
    resolve_floor: Duration | None = None
    """Time for which the addresses of a host name are cached. With `resolve: all`, the shortest
    time between two look-ups; the longest is 30 s. Default: `5s`."""
    # Retired keys, see retired.py.
    pending_by: Literal["route", "none"] | None = None
    connection_age: Duration | None = None
    resolve_cap: Duration | None = None
