"""Load on a number of connections for a number of seconds, and one checked request.

It uses wrk and h2load where they are installed, and pyload.py otherwise, which is slower and says
so. brpcload.py generates the load of brpc, and appload.py requests as applications send them.
"""

import http.client
import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from benchmarks.grps import ask_brpc
from benchmarks.messages import GRPC_METHOD, Message

_GRACE_S = 30.0
_ASK_S = 20.0

_WRK_SCRIPT = """
local bodies, fields, at = {{}}, {{{fields}}}, 0
for index, name in ipairs({{{bodies}}}) do
  local file = io.open(name, "rb")
  bodies[index] = file:read("*a")
  file:close()
end
wrk.method = "POST"
wrk.body = bodies[1]
for name, value in pairs(fields[1]) do wrk.headers[name] = value end
if #bodies > 1 then
  init = function()
    for index, body in ipairs(bodies) do
      bodies[index] = wrk.format(nil, nil, fields[index], body)
    end
  end
  request = function()
    at = at % #bodies + 1
    return bodies[at]
  end
end
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format("RESULT %d %d %d %f %f\\n", summary.requests, summary.duration,
    e.connect + e.read + e.write + e.status + e.timeout,
    latency:percentile(50), latency:percentile(99)))
end
"""
_WRK_RESULT = re.compile(r"RESULT (\d+) (\d+) (\d+) ([\d.]+) ([\d.]+)")
_H2_COUNTS = re.compile(r"(\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout")
_H2_TIME = re.compile(r"finished in ([\d.]+)(us|ms|s)")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class Target:
    """The address, and the request to repeat.

    Attributes:
        carrier: "http", "grpc" or "brpc".
        path: HTTP path, or gRPC method with "" for Open Inference's.
        others: Further requests, sent in turn by wrk only.
        kind: Of requests as applications send them, sent by appload; "" for those above.
    """

    carrier: str
    port: int
    path: str
    message: Message
    others: tuple[Message, ...] = ()
    kind: str = ""

    @property
    def method(self) -> str:
        """The gRPC method."""
        return self.path or GRPC_METHOD


@dataclass(frozen=True)
class Measured:
    """The result of one run of the load generator.

    Attributes:
        seconds: How long it took.
        p50_us: Median latency.
    """

    requests: int
    errors: int
    seconds: float
    p50_us: float
    p99_us: float


@dataclass(frozen=True)
class TimedReply:
    """The reply to one request of an open loop.

    Attributes:
        us: From sending the request to the end of the reply.
        is_ok: Whether the status is 200.
    """

    us: int
    is_ok: bool


def tools() -> dict[str, str]:
    """Return the load generator of each carrier."""
    return {
        "http": "wrk" if shutil.which("wrk") else "pyload",
        "grpc": "h2load" if shutil.which("h2load") else "pyload",
        "brpc": "brpcload",
    }


def run(target: Target, connections: int, seconds: float, core: int) -> Measured:
    """Send *target* on *connections* connections for *seconds*, from *core*.

    Raises:
        RuntimeError: There was no response, twice.
    """
    for _ in range(2):
        measured = _run(target, connections, seconds, core)
        if measured.requests:
            return measured
    raise RuntimeError(f"no request was answered within {seconds:g} s")


def _run(target: Target, connections: int, seconds: float, core: int) -> Measured:
    tool = "appload" if target.kind else tools()[target.carrier]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if tool == "wrk":
            return _wrk(target, connections, seconds, core, folder)
        if tool == "h2load":
            return _h2load(target, connections, seconds, core, folder)
        question = _question(target, connections, seconds, folder)
        return Measured(**_python(tool, question, core, seconds))


def open_loop(
    target: Target, connections: int, rate: int, seconds: float, core: int
) -> list[TimedReply]:
    """Send *target* over HTTP/1 *rate* times per second, however late the replies are.

    Raises:
        RuntimeError: h2load is missing; or the load generator has failed, or got no reply.
    """
    if target.kind:
        return _timed_by_appload(target, connections, rate, seconds, core)
    if shutil.which("h2load") is None:
        raise RuntimeError("h2load is not installed: apt-get install nghttp2-client")
    with tempfile.TemporaryDirectory() as name:
        body, log = Path(name) / "body", Path(name) / "log"
        body.write_bytes(target.message.body)
        words = ["h2load", "--h1", "-t1", f"-c{connections}", f"--rps={rate / connections:g}"]
        words += [f"-D{max(1, round(seconds))}", f"--data={body}", f"--log-file={log}"]
        for field in target.message.fields:
            words += ["-H", ": ".join(field)]
        out = output([*words, _url(target)], core, seconds)
        replies = timed_replies(log.read_text())
    if not replies:
        raise RuntimeError(f"h2load finished no request: {out[-500:]}")
    return replies


def _timed_by_appload(
    target: Target, connections: int, rate: int, seconds: float, core: int
) -> list[TimedReply]:
    """Return the replies to requests as applications send them; the errors stand first."""
    with tempfile.TemporaryDirectory() as name:
        question = _question(target, connections, seconds, Path(name)) | {"rate": rate}
        found = _python("appload", question, core, seconds)
    if not found["latencies"]:
        raise RuntimeError("appload finished no request")
    return [TimedReply(us, n >= found["errors"]) for n, us in enumerate(found["latencies"])]


def timed_replies(log: str) -> list[TimedReply]:
    """Return the replies in a log of h2load: start, status and microseconds in each line."""
    lines = (line.split("\t") for line in log.splitlines())
    return [TimedReply(int(us), status == "200") for _, status, us in lines]


def ask(target: Target) -> Message:
    """Send one request and return the response.

    Raises:
        RuntimeError: It is an error.
    """
    if target.carrier == "http":
        connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=_ASK_S)
        try:
            connection.request(
                "POST", target.path, target.message.body, dict(target.message.fields)
            )
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise RuntimeError(f"answered with status {answer.status}: {body[:300]!r}")
        return Message(body, tuple(answer.getheaders()))
    if target.carrier == "brpc":
        return Message(ask_brpc(target.port, target.message.body, _ASK_S))
    with grpc.insecure_channel(f"127.0.0.1:{target.port}") as channel:
        try:
            reply: bytes = channel.unary_unary(target.method)(
                target.message.body, timeout=_ASK_S, wait_for_ready=True
            )
        except grpc.RpcError as error:
            raise RuntimeError(f"answered with {error.code()}: {error.details()}") from error
    return Message(reply)


def _wrk(target: Target, connections: int, seconds: float, core: int, folder: Path) -> Measured:
    bodies, fields, script = [], [], folder / "script.lua"
    for number, message in enumerate((target.message, *target.others)):
        bodies.append(folder / f"body-{number}")
        bodies[-1].write_bytes(message.body)
        pairs = [f"[{json.dumps(name)}] = {json.dumps(value)}" for name, value in message.fields]
        fields.append("{" + ", ".join(pairs) + "}")
    names = ", ".join(json.dumps(str(body)) for body in bodies)
    script.write_text(_WRK_SCRIPT.format(bodies=names, fields=", ".join(fields)))
    words = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "10s"]
    out = output([*words, "-s", str(script), _url(target)], core, seconds)
    found = _WRK_RESULT.search(out)
    if found is None:
        raise RuntimeError(f"wrk gave no result: {out[-500:]}")
    requests, duration_us, errors = (int(found[index]) for index in (1, 2, 3))
    return Measured(requests, errors, duration_us / 1e6, float(found[4]), float(found[5]))


def _h2load(target: Target, connections: int, seconds: float, core: int, folder: Path) -> Measured:
    body, log = folder / "body", folder / "log"
    size = len(target.message.body).to_bytes(4, "big")
    body.write_bytes(b"\0" + size + target.message.body)
    words = ["h2load", "-t1", f"-c{connections}", "-m1", f"-D{max(1, round(seconds))}"]
    words += ["-w30", "-W30", f"--data={body}", f"--log-file={log}"]
    words += ["-H", "content-type: application/grpc", "-H", "te: trailers", _url(target)]
    out = output(words, core, seconds)
    counts, time = _H2_COUNTS.search(out), _H2_TIME.search(out)
    if counts is None or time is None:
        raise RuntimeError(f"h2load gave no result: {out[-500:]}")
    latencies = sorted(each.us for each in timed_replies(log.read_text()))
    if not latencies:
        raise RuntimeError(f"h2load finished no request: {out[-500:]}")
    return Measured(
        int(counts[1]),
        int(counts[2]) + int(counts[3]),
        float(time[1]) * _UNITS[time[2]],
        latencies[len(latencies) // 2],
        latencies[len(latencies) * 99 // 100],
    )


def _question(target: Target, connections: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Return what the load generators in Python are told."""
    body = folder / "body"
    body.write_bytes(target.message.body)
    return {
        "carrier": target.carrier,
        "port": target.port,
        "path": target.path if target.carrier == "http" else target.method,
        "kind": target.kind,
        "body": str(body),
        "fields": dict(target.message.fields),
        "connections": connections,
        "seconds": seconds,
        "rate": 0,
    }


def _python(tool: str, question: dict[str, Any], core: int, seconds: float) -> dict[str, Any]:
    """Run a load generator in Python, and return its result."""
    words = [sys.executable, "-m", f"benchmarks.{tool}", json.dumps(question)]
    found: dict[str, Any] = json.loads(output(words, core, seconds))
    return found


def _url(target: Target) -> str:
    path = target.path if target.carrier == "http" else target.method
    return f"http://127.0.0.1:{target.port}{path}"


def output(words: list[str], core: int, seconds: float) -> str:
    """Run a program on *core* for about a number of seconds, and return its output."""
    done = subprocess.run(
        ["taskset", "-c", str(core), *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=seconds + _GRACE_S,
    )
    if done.returncode:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}: {done.stderr[-500:]}")
    return done.stdout
