"""Proxies before the gateway: nginx and HAProxy, each in a strict and a lenient configuration.

They keep few connections to the gateway and share them between all clients: bytes that one parser
takes for the end of a request and the other for its middle reach another client.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.hostile.process import eventually
from tests.hostile.wire import Address
from tests.interop.programs import program

FRONTS = ("nginx", "nginx-streaming", "haproxy", "haproxy-lenient")
_START_S = 60.0

_NGINX = """
daemon off;
worker_processes 1;
error_log {folder}/error.log;
pid {folder}/nginx.pid;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  scgi_temp_path {folder}/scgi;
  uwsgi_temp_path {folder}/uwsgi;
  client_header_timeout 500ms;
  client_body_timeout 500ms;
  client_max_body_size 8m;
  upstream gateway {{ server {upstream}; keepalive 2; }}
  server {{
    listen 127.0.0.1:{port};
    {options}
    location / {{
      proxy_pass http://gateway;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_next_upstream off;
    }}
  }}
}}
"""
_NGINX_OPTIONS = {
    "nginx": "",
    "nginx-streaming": "proxy_request_buffering off; proxy_buffering off; "
    "ignore_invalid_headers off; underscores_in_headers on; merge_slashes off;",
}
_HAPROXY = """
defaults
  mode http
  timeout connect 2s
  timeout client 1s
  timeout server 5s
  timeout http-request 500ms
  option http-keep-alive
  http-reuse always
  retries 0
frontend front
  bind 127.0.0.1:{port}
  {options}
  default_backend gateway
backend gateway
  {backend}
  server one {upstream} pool-max-conn 2
"""
_LENIENT = {
    "haproxy": ("", ""),
    "haproxy-lenient": (
        "option accept-invalid-http-request",
        "option accept-invalid-http-response",
    ),
}


@contextmanager
def front(name: str, upstream: str, folder: Path) -> Iterator[Address]:
    """Run the proxy *name* of `FRONTS` in front of *upstream*; yield its address."""
    address = ("127.0.0.1", _free_port())
    process = subprocess.Popen(
        _command(name, upstream, address[1], folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        _wait_for(address, process)
        yield address
        assert process.poll() is None, "the proxy has ended"
    finally:
        process.terminate()
        process.wait(_START_S)
        assert process.stderr is not None
        process.stderr.close()


def _command(name: str, upstream: str, port: int, folder: Path) -> list[str]:
    file = folder / f"{name}.conf"
    if name in _NGINX_OPTIONS:
        options = _NGINX_OPTIONS[name]
        text = _NGINX.format(folder=folder, upstream=upstream, port=port, options=options)
        file.write_text(text)
        return [program("nginx"), "-p", str(folder), "-c", str(file), "-e", f"{folder}/start.log"]
    options, backend = _LENIENT[name]
    file.write_text(_HAPROXY.format(upstream=upstream, port=port, options=options, backend=backend))
    return [program("haproxy"), "-q", "-f", str(file)]


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _wait_for(address: Address, process: subprocess.Popen[bytes]) -> None:
    def is_open() -> bool:
        if process.poll() is not None:
            assert process.stderr is not None
            raise AssertionError(process.stderr.read().decode(errors="replace")[-2000:])
        with suppress(OSError), socket.create_connection(address, 1):
            return True
        return False

    assert eventually(is_open, _START_S), "the proxy does not start"
