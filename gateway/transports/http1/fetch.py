"""One GET over a connection of its own, without redirects: key sets, and pages of metrics."""

from time import monotonic
from urllib.parse import urlsplit

from gateway.transports.contract import ClientLimits
from gateway.transports.http1.client import HttpClient
from gateway.transports.net.tls_files import TlsContext
from gateway.wire.http import Headers, HttpRequest, HttpResponse


async def fetch(
    url: str,
    *,
    accept: str,
    timeout_s: float,
    max_bytes: int,
    tls: TlsContext | None = None,
    address: str = "",
) -> HttpResponse:
    """Return the response to a GET of *url*.

    Args:
        url: With the scheme http or https.
        accept: The media type that is expected.
        timeout_s: The time for all of it.
        max_bytes: The largest response.
        tls: The context for https; None for the authorities of the system.
        address: The IP address of the host; "" looks it up.

    Raises:
        GatewayError: The server cannot be reached, or its response is wrong.
        OSError: As GatewayError.
    """
    parts = urlsplit(url)
    server = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    limits = ClientLimits(message_bytes=max_bytes, connections=1, connect_timeout_s=timeout_s)
    client = HttpClient(server, limits, tls=tls, address=address)
    headers = Headers((("Accept", accept), ("User-Agent", "tensor-gateway")))
    try:
        request = HttpRequest("GET", parts.path or "/", parts.query, headers)
        response: HttpResponse = await client.send(request, deadline=monotonic() + timeout_s)
    finally:
        await client.close()
    return response
