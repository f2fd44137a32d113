"""Recorded messages of HTTP, which are files with their head and body."""

from __future__ import annotations

from pathlib import Path

from gateway.wire.http import Headers, HttpRequest, HttpResponse


def recorded_request(folder: Path, name: str) -> HttpRequest:
    """Return a recorded request."""
    line, headers, body = _parts(folder / f"{name}.req.http")
    method, target, _ = line.split(" ")
    path, _, query = target.partition("?")
    return HttpRequest(method, path, query, headers, (memoryview(body),))


def recorded_response(folder: Path, name: str) -> HttpResponse:
    """Return the recorded response to it."""
    line, headers, body = _parts(folder / f"{name}.resp.http")
    return HttpResponse(int(line.split(" ")[1]), headers, (memoryview(body),))


def _parts(file: Path) -> tuple[str, Headers, bytes]:
    head, _, body = file.read_bytes().partition(b"\r\n\r\n")
    line, *fields = head.decode().split("\r\n")
    pairs = [(key, value.strip()) for key, _, value in (each.partition(":") for each in fields)]
    return line, Headers(pairs), body
