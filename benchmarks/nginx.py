"""nginx's configuration: one worker that forwards HTTP/1 or gRPC and writes no access log."""

from collections.abc import Sequence
from pathlib import Path

_LONG = 1_000_000_000
_PAGE = """
daemon off;
user root;
worker_processes 1;
pid {folder}/pid;
error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  keepalive_requests {long};
  client_max_body_size 0;
  client_body_buffer_size 1m;
  http2_body_preread_size 16m;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  scgi_temp_path {folder}/scgi;
  uwsgi_temp_path {folder}/uwsgi;
  upstream server {{
    {upstreams}
    keepalive 64;
    keepalive_requests {long};
  }}
  server {{
    listen 127.0.0.1:{port}{http2};
    location / {{
{location}
    }}
  }}
}}
"""
_HTTP = """
      proxy_pass http://server;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_request_buffering off;"""
_GRPC = """
      grpc_pass grpc://server;"""


def proxy(folder: Path, port: int, carrier: str, upstream_port: int, hosts: Sequence[str]) -> str:
    """Return the configuration of a proxy that only forwards.

    Args:
        folder: For the files of nginx.
        port: Port of the proxy.
        carrier: Of clients and upstream: "http" or "grpc".
        upstream_port: Port of the upstream.
        hosts: Its addresses.
    """
    grpc = carrier == "grpc"
    return _PAGE.format(
        folder=folder,
        port=port,
        upstreams=" ".join(f"server {host}:{upstream_port};" for host in hosts),
        long=_LONG,
        http2=" http2" if grpc else "",
        location=_GRPC if grpc else _HTTP,
    )
