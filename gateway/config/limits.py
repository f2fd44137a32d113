"""The limits of listeners, messages and upstreams.

A key that is left out has the default of `gateway.transports.contract` or `gateway.ir.limits`. The
descriptions repeat these defaults, and a test compares the two.
"""

from typing import Any, Literal

from pydantic import Field

from gateway.settings.fields import Duration, Size
from gateway.settings.model import Model


class ServerLimitsConfig(Model):
    """Limits of a listener, for its HTTP server, gRPC server and each stream, in each worker."""

    message_bytes: Size | None = None
    """Largest body or message, both compressed and decompressed. Default: `64MiB`."""
    decompressed_ratio: int | None = Field(None, ge=1)
    """Largest ratio of decompressed to compressed size, against compression bombs. Default:
    `200`."""
    decompressed_elements: int | None = Field(None, ge=1)
    """BYTES elements, and texts and lists of JSON, of a compressed message besides one for each of
    its bytes. 128 bytes of other JSON count as one. Default: `4096`."""
    header_field_bytes: Size | None = None
    """Largest HTTP/1 header field. Default: `64KiB`."""
    header_total_bytes: Size | None = None
    """Largest HTTP/1 header section. Default: `96KiB`."""
    grpc_metadata_bytes: Size | None = None
    """Largest metadata of a gRPC call. Default: `16KiB`."""
    body_chunks: int | None = Field(None, ge=1)
    """Most chunks of an HTTP/1 body. Default: `65536`."""
    connections: int | None = Field(None, ge=0)
    """Most open connections. Further ones get 503, GOAWAY or an error of the stream's protocol.
    `0` means half of the file descriptors that the connections to upstreams leave. Default: `0`."""
    connections_per_address: int | None = Field(None, ge=0)
    """Most of one client address. `0` means as many as `connections`, or seven eighths if that
    is `0`. Default: `0`."""
    requests_in_flight: int | None = Field(None, ge=1)
    """Most requests at the same time. Others wait in a queue. Default: what `in_flight_bytes`
    allows, with 16 KiB for each."""
    requests_per_address: int | None = Field(None, ge=1)
    """Requests that no other client address, or connection of a unix socket, delays. It may have
    more while places are free. Default: a quarter of `requests_in_flight`, else 64."""
    requests_queued: int | None = Field(None, ge=0)
    """Most requests that wait for `requests_in_flight`. Further ones are refused as overloaded,
    those of the busiest address first. Default: `2048`."""
    queue_wait: Duration | None = None
    """Longest wait in the queue, or for memory of `in_flight_bytes`. The request is then refused
    as overloaded. Default: until its deadline; the timeout of its route counts the wait."""
    h2_streams: int | None = Field(None, ge=1)
    """Most concurrent streams of an HTTP/2 connection, and requests of a brpc one. Default:
    `1024`."""
    connection_age: Duration | None = None
    """Age, varied by 10 %, at which a gRPC connection ends after its calls, so that clients spread
    over replicas. Default: `1h`."""
    header_timeout: Duration | None = None
    """Longest time of a TLS handshake, and of a header section from its first byte. Default:
    `10s`."""
    idle_timeout: Duration | None = None
    """Longest time without a byte of a body, and in which a client accepts no byte of a
    response. Default: `30s`."""
    min_rate_bytes_s: Size | None = Field(None, ge=1)
    """Smallest average rate, in bytes per second after the first 10 s, of a body, and at which a
    client accepts a response. Default: `1024`."""
    body_timeout: Duration | None = None
    """Longest time of a whole body. Default: `5m`."""
    keepalive: Duration | None = None
    """Time after which an idle connection is closed. Default: `75s`."""
    pipelined_requests: int | None = Field(None, ge=1)
    """Most requests that an HTTP/1 or GraphPipe connection sends ahead of their responses.
    Default: `16`."""
    stream_requests: int | None = Field(None, ge=1)
    """Most messages of a bidirectional gRPC stream at the same time. Default: `64`."""
    cut_through_bytes: Size | None = None
    """Missing bytes from which on a body of binary tensors is forwarded while it arrives, if
    nothing in it changes. `0` receives every body first. Default: `2MiB`."""
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
    """Largest JSON part; binary tensors do not count. Default: `16MiB`."""
    json_depth: int | None = Field(None, ge=4, le=512)
    """Deepest nesting of JSON. Default: `64`."""
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
    """For upstreams: most other elements of such a request. Default: `2500000` for MLServer,
    `400000` for KServe."""
    request_bytes: Size | None = None
    """For upstreams: largest request over gRPC. Default: `4MiB` for MLServer, `8MiB` for KServe,
    else no limit."""
    bytes_rectangle: Size | None = None
    """For upstreams: most memory of the BYTES inputs of a request in MLServer over HTTP: count
    times longest times 4. Default: `64MiB`."""
    rank: int | None = Field(None, ge=1, le=64)
    """Most dimensions of a tensor. Default: `32`."""
    dim: int | None = Field(None, ge=1)
    """Largest dimension of a tensor. Default: `1099511627776`."""
    elements: int | None = Field(None, ge=1)
    """Most elements of a tensor. Default: `2147483647`."""
    bytes_elements: int | None = Field(None, ge=1)
    """Most BYTES elements of a message. It also limits nested lists of JSON tensors, and values
    of other JSON documents. Default: `1000000`."""
    bytes_element_size: Size | None = None
    """Largest element of a BYTES tensor. Default: `16MiB`."""
    classes: int | None = Field(None, ge=1)
    """Most classes of an output that a request may ask for. Default: `1000`."""
    model_name_bytes: Size | None = None
    """Longest model name, in UTF-8. Default: `255`."""
    name_bytes: Size | None = None
    """Longest name of a tensor, parameter, version or region, and longest request id, in UTF-8.
    Default: `1024`."""
    parameters: int | None = Field(None, ge=0)
    """Most parameters of a request or a tensor. Default: `64`."""
    error_text_bytes: Size | None = None
    """Where the error texts of the gateway are cut. Default: `1024`."""


class ClientLimitsConfig(Model):
    """Limits of an upstream, for each of its addresses in each worker."""

    message_bytes: Size | None = None
    """Largest response, both compressed and decompressed. Default: `64MiB`."""
    connections: int | None = Field(None, ge=1)
    """Most open connections. Default: a quarter of the file descriptors, at least 100."""
    in_flight: int | None = Field(None, ge=1)
    """Most requests that wait for a response. HTTP/1 also needs a connection for each. Default:
    no limit."""
    pending: int | None = Field(None, ge=0)
    """Most requests that wait for `in_flight` or `connections`. Further ones are refused as
    overloaded. Default: `1024`."""
    connect_timeout: Duration | None = None
    """Longest time to open a connection, TLS included. HTTP upstreams on a loopback address get
    at most `1s`. Default: `5s`, on a loopback address `1s`."""
    keepalive: Duration | None = None
    """Time after which an idle connection is closed. Without the key, HTTP inferences use only
    connections idle for at most 1.5s, or 1s less than the server says in `Keep-Alive: timeout=`.
    Default: `60s`."""
    resolve_floor: Duration | None = None
    """Time for which addresses of a host name are cached. With `resolve: all`, the shortest time
    between look-ups; the longest is 30 s. Default: `5s`."""
    # Retired keys, see retired.py.
    pending_by: Literal["route", "none"] | None = None
    connection_age: Duration | None = None
    resolve_cap: Duration | None = None
