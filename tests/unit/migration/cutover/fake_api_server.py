"""A Kubernetes API server that keeps Leases and ConfigMaps, in a thread of its own."""

from __future__ import annotations

import asyncio
import copy
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trustme
import yaml
from aiohttp import web

ROLE = Path(__file__).parents[4] / "deploy/kustomize/overlays/migration/rights.yaml"
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "DELETE": "delete"}
MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")


class FakeApiServer:
    """Objects with versions, and the rights of the role in `deploy/`.

    Attributes:
        objects: By kind and name.
        requests: Method, kind and name of each request that got a reply.
        cut_off: Tokens whose connections are closed without a reply.
        stalled: Tokens that get no reply.
        statuses: Status of all replies to a token.
        before_create: Called in a thread before an object is created.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.requests: list[tuple[str, str, str]] = []
        self.cut_off: set[str] = set()
        self.stalled: set[str] = set()
        self.statuses: dict[str, int] = {}
        self.before_create: Callable[[], None] | None = None
        self.port = 0
        self.authority = trustme.CA()
        self._version = 100
        self._loop = asyncio.new_event_loop()
        self._ends = asyncio.Event()
        self._lock = threading.Lock()
        self._transports: set[asyncio.Transport] = set()
        documents = list(yaml.safe_load_all(ROLE.read_text()))
        role = next(each for each in documents if each["kind"] == "Role")
        self.rights = {
            (rule["apiGroups"][0], kind, verb)
            for rule in role["rules"]
            for kind in rule["resources"]
            for verb in rule["verbs"]
        }

    @contextmanager
    def running(self) -> Iterator[None]:
        ready = threading.Event()
        thread = threading.Thread(target=self._loop.run_until_complete, args=[self._serve(ready)])
        thread.start()
        try:
            assert ready.wait(60)
            yield
        finally:
            self._loop.call_soon_threadsafe(self._ends.set)
            thread.join()
            self._loop.close()

    async def _serve(self, ready: threading.Event) -> None:
        app = web.Application()
        base = "/{root:api|apis}{group:(/coordination.k8s.io)?}/v1/namespaces/models/{kind}"
        app.router.add_route("*", base, self._reply)
        app.router.add_route("*", base + "/{name}", self._reply)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert("127.0.0.1").configure_cert(context)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        self.port = runner.addresses[0][1]
        ready.set()
        await self._ends.wait()
        for transport in self._transports:
            transport.abort()
        await runner.cleanup()
        for _ in range(10):
            await asyncio.sleep(0)  # lets aborted connections end

    async def _reply(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        self._transports.add(request.transport)
        token = request.headers.get("Authorization", "").removeprefix("bearer ")
        if token in self.stalled:
            await self._ends.wait()
        if token in self.cut_off:
            request.transport.abort()
            return web.Response()
        kind, name = request.match_info["kind"], request.match_info.get("name", "")
        body = await request.json() if request.can_read_body else {}
        if request.method == "POST" and self.before_create is not None:
            await asyncio.to_thread(self.before_create)
        with self._lock:
            self.requests.append((request.method, kind, name))
            status = self.statuses.get(token)
            if not token.startswith("token-"):
                status = 401
            verb = "list" if request.method == "GET" and not name else VERBS[request.method]
            group = request.match_info["group"].strip("/")
            if status is None and (group, kind, verb) not in self.rights:
                status = 403
            found: dict[str, Any] = {"message": "refused by the test"}
            if status is None:
                selector = request.query.get("labelSelector", "")
                status, found = self._serve_verb(verb, kind, name, body, selector)
        return web.json_response(found, status=status)

    def _serve_verb(  # noqa: PLR0911  # one for each reply
        self, verb: str, kind: str, name: str, body: dict[str, Any], selector: str
    ) -> tuple[int, dict[str, Any]]:
        if verb == "list":
            label, _, value = selector.partition("=")
            items = [
                each
                for (one, _), each in self.objects.items()
                if one == kind and each["metadata"].get("labels", {}).get(label) == value
            ]
            return 200, {"items": items, "metadata": {}}
        name = name or body["metadata"]["name"]
        current = self.objects.get((kind, name))
        if verb == "create":
            if current is not None:
                return 409, {"message": f"{name} already exists"}
            return 201, self.put(kind, name, body)
        if current is None:
            return 404, {"message": f"{name} not found"}
        if verb == "delete":
            del self.objects[kind, name]
            return 200, {"status": "Success"}
        if verb == "update":
            version = body["metadata"].get("resourceVersion")
            if version not in (None, current["metadata"]["resourceVersion"]):
                return 409, {"message": "the object has been modified"}
            return 200, self.put(kind, name, body)
        return 200, current

    def put(self, kind: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Write an object; it keeps its version if nothing has changed."""
        times = [body.get("spec", {}).get(each) for each in ("acquireTime", "renewTime")]
        assert all(each is None or MICRO_TIME.fullmatch(each) for each in times), times
        current = self.objects.get((kind, name))
        body = copy.deepcopy(body)
        body["metadata"].pop("resourceVersion", None)
        if current is not None:
            before = {key: each for key, each in current.items() if key != "metadata"}
            if before == {key: each for key, each in body.items() if key != "metadata"}:
                return current
        self._version += 1
        body["metadata"] |= {"namespace": "models", "resourceVersion": str(self._version)}
        self.objects[kind, name] = body
        return body
