"""Envoy's configuration: a plain proxy, or its JSON transcoder with a gRPC server."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

_TYPE = "type.googleapis.com/envoy.extensions"
_HTTP_OPTIONS = f"{_TYPE}.upstreams.http.v3.HttpProtocolOptions"
_HTTP2 = {
    "initial_stream_window_size": 1 << 28,
    "initial_connection_window_size": 1 << 28,
    "max_concurrent_streams": 1000,
}
_SERVICE = "inference.GRPCInferenceService"


def proxy(port: int, carrier: str, upstream_port: int, hosts: Sequence[str]) -> dict[str, Any]:
    """Return the configuration of a proxy that only forwards, to a port of all *hosts*."""
    upstreams = [_address(upstream_port, host) for host in hosts]
    return _config(port, carrier, carrier, upstreams, [])


def transcoder(port: int, upstream_port: int, descriptors: Path) -> dict[str, Any]:
    """Return the configuration of a proxy from proto3 JSON to gRPC."""
    options = {
        "@type": f"{_TYPE}.filters.http.grpc_json_transcoder.v3.GrpcJsonTranscoder",
        "proto_descriptor": str(descriptors),
        "services": [_SERVICE],
        "auto_mapping": True,
        "max_request_body_size": 1 << 26,
        "max_response_body_size": 1 << 26,
    }
    name = "envoy.filters.http.grpc_json_transcoder"
    return _config(
        port, "http", "grpc", [_address(upstream_port)], [{"name": name, "typed_config": options}]
    )


def _config(
    port: int,
    front: str,
    back: str,
    upstreams: list[dict[str, Any]],
    filters: list[dict[str, Any]],
) -> dict[str, Any]:
    router = {
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": f"{_TYPE}.filters.http.router.v3.Router"},
    }
    manager = {
        "@type": f"{_TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "codec_type": "HTTP2" if front == "grpc" else "HTTP1",
        "http2_protocol_options": _HTTP2,
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [
                        {"match": {"prefix": "/"}, "route": {"cluster": "server", "timeout": "0s"}}
                    ],
                }
            ]
        },
        "http_filters": [*filters, router],
    }
    explicit = (
        {"http2_protocol_options": _HTTP2} if back == "grpc" else {"http_protocol_options": {}}
    )
    return {
        "static_resources": {
            "listeners": [
                {
                    "address": _address(port),
                    "per_connection_buffer_limit_bytes": 1 << 26,
                    "filter_chains": [
                        {
                            "filters": [
                                {
                                    "name": "envoy.filters.network.http_connection_manager",
                                    "typed_config": manager,
                                }
                            ]
                        }
                    ],
                }
            ],
            "clusters": [
                {
                    "name": "server",
                    "type": "STATIC",
                    "per_connection_buffer_limit_bytes": 1 << 26,
                    "typed_extension_protocol_options": {
                        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                            "@type": _HTTP_OPTIONS,
                            "explicit_http_config": explicit,
                        }
                    },
                    "load_assignment": {
                        "cluster_name": "server",
                        "endpoints": [
                            {
                                "lb_endpoints": [
                                    {"endpoint": {"address": each}} for each in upstreams
                                ]
                            }
                        ],
                    },
                }
            ],
        }
    }


def _address(port: int, host: str = "127.0.0.1") -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}
