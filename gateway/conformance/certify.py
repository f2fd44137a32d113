"""Asks a server the rules of its protocol, and says of each whether it keeps it.

Nothing of the gateway stands between: requests are bytes, and what comes back is read by
`replies`, not by the codecs.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, Final
from zlib import crc32

from gateway.config.tls import TlsConfig, client_files
from gateway.conformance.findings import NO_MODELS, Findings, RuleFinding, Subject, Verdict
from gateway.conformance.replies import (
    ServerReply,
    graphpipe_reply,
    grpc_reply,
    http_reply,
    mismatches,
)
from gateway.conformance.requests import CannotAsk, RequestSubject, RuleRequest, request_of
from gateway.conformance.rules import (
    ConformanceRule,
    RuleStep,
    is_named,
    known_differences,
    load_discovery,
    load_rules,
)
from gateway.conformance.tensors import (
    CertifiedModel,
    DeclaredTensor,
    InferenceCase,
    free_dimensions,
    has_values,
    named_model,
)
from gateway.ir.errors import DeadlineExceeded, GatewayError
from gateway.ir.texts import visible
from gateway.settings.units import Url, parse_url
from gateway.transports.choice import grpc_client, http_client
from gateway.transports.contract import ClientLimits
from gateway.wire.grpc import GrpcRequest, Metadata

MOST_REQUESTS: Final = 2000
MOST_S: Final = 120.0
MOST_IN_FLIGHT: Final = 16
_MOST_BYTES: Final = 16 << 20
_MOST_REPLIES: Final = 1000
_MOST_MODELS: Final = 32
_MOST_ASKED: Final = 3
_MOST_TEXTS: Final = 3
_SHOWN: Final = 400

_NEEDS: Final[Mapping[str, tuple[Callable[[CertifiedModel, Any], bool], str]]] = {
    "datatype": (
        lambda model, kind: kind in model.datatypes and model.expect != "",
        "with an input of the datatype and a known answer: --model NAME --expect identity",
    ),
    "first": (
        lambda model, kind: model.datatypes[:1] == (kind,),
        "whose first input is {}",
    ),
    "matrix": (
        lambda model, _: len(model.inputs) > 0 and len(model.inputs[0].shape) > 1,
        "that returns matrices: --model NAME --expect identity",
    ),
    "identity": (
        lambda model, _: model.expect == "identity",
        "that returns its inputs: --model NAME --expect identity",
    ),
    "known": (
        lambda model, _: model.expect != "",
        "whose answer is known: --model NAME --expect identity",
    ),
    "variable": (
        lambda model, _: all(free_dimensions(each.shape) for each in model.inputs),
        "with inputs of variable size",
    ),
    "version": (lambda model, _: len(model.versions) > 0, "that names its versions"),
    "inputs": (lambda model, count: len(model.inputs) >= count, "with {} inputs"),
    "sequence": (
        lambda model, _: model.takes_numbered_sequences,
        "whose configuration has sequences with ids that are numbers",
    ),
    "decoupled": (lambda model, _: model.is_decoupled, "whose configuration says decoupled"),
    "model": (lambda _model, _: True, "to infer with"),
}
"""What rules need of models, and how a finding calls it."""


@dataclass(frozen=True, slots=True)
class _DescribedServer:
    """What the server says of itself; with a fault nothing can be told."""

    name: str = ""
    version: str = ""
    extensions: tuple[str, ...] = ()
    models: tuple[CertifiedModel, ...] = ()
    fault: str = ""


@dataclass(frozen=True, slots=True)
class _Judgement:
    """What came of a rule and one model."""

    verdict: Verdict
    found: str
    request: str = ""


async def certify_server(  # noqa: PLR0913  # keyword-only, but for the first
    url: Url | str,
    *,
    models: Sequence[str] = (),
    expect: Mapping[str, str] | None = None,
    control: bool = False,
    hurt: bool = False,
    only: Sequence[str] = (),
    ignore: Sequence[str] = (),
    seed: int = 0,
    rate: float | None = None,
    timeout_s: float = 5.0,
    most_s: float = MOST_S,
    headers: Metadata = (),
    tls: TlsConfig | None = None,
    on_finding: Callable[[RuleFinding], None] | None = None,
) -> Findings:
    """Ask a server the rules of its protocol.

    Args:
        url: The server.
        models: Ask only about these; those of the server's index by default, and of *expect*.
        expect: What models return, by name: `identity`, `sum`, or the path of a file.
        control: Ask what loads and unloads models, too.
        hurt: Ask what harms some servers, too.
        only: Ids or groups of rules to ask; all by default.
        ignore: Ids or groups of rules to leave out.
        seed: Chooses the order of values, and ids.
        rate: The most requests in a second.
        timeout_s: How long one reply may take.
        most_s: How long all may take; what is left then cannot be told.
        headers: Sent with each request, such as a credential.
        tls: How to connect; as the URL says by default.
        on_finding: Receives each finding when it is known.

    Raises:
        LookupError: There are no rules of the protocol, or a name in *only* or *ignore* has none.
        ValueError: The URL or a TLS file is wrong.
    """
    address = parse_url(url) if isinstance(url, str) else url
    protocol = address.form
    rules = chosen_rules(protocol, only, ignore)
    line = _LimitedClient(address, tls, timeout_s, most_s, rate)
    try:
        asker = _Certification(
            line, RequestSubject(address, headers, seed=seed), control=control, hurt=hurt
        )
        await asker.discover(protocol, models, dict(expect or {}))
        found = await asker.ask_all(rules, on_finding)
    finally:
        await line.close()
    server = asker.server
    subject = Subject(str(address), protocol, visible(server.name, 80), visible(server.version, 80))
    return Findings(subject, found, ())


def chosen_rules(
    protocol: str, only: Sequence[str], ignore: Sequence[str]
) -> list[ConformanceRule]:
    """Return the rules of a protocol that are asked.

    Raises:
        LookupError: There are none, or a name belongs to none.
    """
    rules = load_rules(protocol)
    for name in (*only, *ignore):
        if not any(is_named(rule.id, [name]) for rule in rules):
            raise LookupError(f"no rule of {protocol!r} is called {name!r}; --list has them")
    return [
        rule
        for rule in rules
        if (not only or is_named(rule.id, only)) and not is_named(rule.id, ignore)
    ]


class _CannotTell(Exception):  # no error: a verdict
    """Why nothing can be told."""


class _LimitedClient:
    """Sends requests within the limits of a certification."""

    def __init__(
        self, url: Url, tls: TlsConfig | None, timeout_s: float, most_s: float, rate: float | None
    ) -> None:
        limits = ClientLimits(message_bytes=_MOST_BYTES, connections=MOST_IN_FLIGHT)
        config = TlsConfig() if tls is None and url.tls else tls
        files = client_files(str(url), config, Path())
        self._protocol = url.protocol
        self._client: Any = (
            http_client("native", f"{url.authority}{url.path}", limits, tls=files)
            if url.carrier == "http"
            else grpc_client("native", url.authority, limits, tls=files)
        )
        self._timeout_s = timeout_s
        self._end = monotonic() + most_s
        self._most_s = most_s
        self._pause_s = 1 / rate if rate else 0.0
        self._next = 0.0
        self._sent = 0
        self._places = asyncio.Semaphore(MOST_IN_FLIGHT)

    async def close(self) -> None:
        await self._client.close()

    async def send(self, request: RuleRequest) -> tuple[list[ServerReply], str]:
        """Return the replies, and why a stream with replies has no end.

        Raises:
            _CannotTell: None came, or a limit is reached.
        """
        async with self._places:
            self._next = max(self._next + self._pause_s, monotonic())
            if self._pause_s:
                await asyncio.sleep(self._next - monotonic())
            deadline = min(monotonic() + self._timeout_s, self._end)
            if monotonic() >= self._end:
                raise _CannotTell(f"not asked: {self._most_s:g} s have passed")
            if self._sent >= MOST_REQUESTS:
                raise _CannotTell(f"not asked: {MOST_REQUESTS} requests are the most")
            self._sent += 1
            wire, replies = request.wire, list[ServerReply]()
            try:
                if request.is_stream:
                    async with aclosing(self._client.stream(wire, deadline=deadline)) as stream:
                        async for each in stream:
                            replies.append(self._reply(each, request))
                            if len(replies) >= _MOST_REPLIES:
                                raise _CannotTell(f"a stream of more than {_MOST_REPLIES} replies")
                else:
                    reply = await self._client.send(wire, deadline=deadline)
                    replies.append(self._reply(reply, request))
            except DeadlineExceeded:
                if replies:
                    return replies, f"the stream has no end within {self._timeout_s:g} s"
                raise _CannotTell(f"no reply within {self._timeout_s:g} s") from None
            except GatewayError as error:
                raise _CannotTell(visible(error.message, _SHOWN)) from error
            return replies or [ServerReply("nothing")], ""

    def _reply(self, reply: Any, request: RuleRequest) -> ServerReply:
        wire = request.wire
        if isinstance(wire, GrpcRequest):
            return grpc_reply(reply, self._protocol, wire.method[1:])
        if request.table:
            return graphpipe_reply(reply, request.table)
        return http_reply(reply, has_tensors=wire.path.endswith("/infer"))


class _Certification:
    """Asks the rules of one server."""

    def __init__(
        self, line: _LimitedClient, subject: RequestSubject, *, control: bool, hurt: bool
    ) -> None:
        self._line = line
        self._subject = subject
        self._flags = {"control": control, "hurt": hurt}
        self.server = _DescribedServer()

    async def discover(
        self, protocol: str, names: Sequence[str], expect: Mapping[str, str]
    ) -> None:
        """Find out what the server says of itself and its models."""
        steps = load_discovery(protocol)
        if steps is None:
            answers = {**dict.fromkeys(names, ""), **expect}
            models = (named_model(name, each) for name, each in answers.items())
            self.server = _DescribedServer(models=tuple(models))
            return
        try:
            reply = await self._question(steps["server"], self._subject)
        except _CannotTell as error:
            self.server = _DescribedServer(fault=str(error))
            return
        document = reply.document
        if not isinstance(document, dict) or not reply.is_success:
            self.server = _DescribedServer(fault=f"no metadata of Open Inference: {reply.text()}")
            return
        found = dict.fromkeys((*names, *expect))
        if all(name in expect for name in found):
            found |= dict.fromkeys(await self._index(steps["index"]))
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._model(steps, name, expect))
                for name in list(found)[:_MOST_MODELS]
            ]
        self.server = _DescribedServer(
            _text(document.get("name")),
            _text(document.get("version")),
            tuple(map(_text, _list(document.get("extensions")))),
            tuple(task.result() for task in tasks),
        )

    async def _index(self, steps: Sequence[Mapping[str, Any]]) -> list[str]:
        for step in steps:
            try:
                document = (await self._question(step, self._subject)).document
            except _CannotTell:
                continue
            entries = document.get("models") if isinstance(document, dict) else document
            found = [
                each.get("name") if isinstance(each, dict) else each for each in _list(entries)
            ]
            if names := {each for each in found if isinstance(each, str) and each.isprintable()}:
                return sorted(names - {""})
        return []

    async def _model(
        self, steps: Mapping[str, Any], name: str, expect: Mapping[str, str]
    ) -> CertifiedModel:
        model = CertifiedModel(name, expect=expect.get(name, ""))
        subject = replace(self._subject, model=model)
        try:
            reply = await self._question(steps["model"], subject)
            config = (await self._question(steps["config"], subject)).document
        except (_CannotTell, ValueError) as error:
            return replace(model, fault=visible(str(error), _SHOWN))
        if not reply.is_success:
            return replace(model, fault=f"no metadata: {reply.text()}")
        try:
            found = reply.document
            inputs, outputs = (_declared(found[key]) for key in ("inputs", "outputs"))
        except (LookupError, TypeError, ValueError):
            return replace(model, fault="its metadata have no usable inputs and outputs")
        versions = tuple(each for each in _list(found.get("versions")) if isinstance(each, str))
        config = config.get("config", config) if isinstance(config, dict) else {}
        config = config if isinstance(config, dict) else {}
        return replace(model, versions=versions, inputs=inputs, outputs=outputs, config=config)

    async def _question(self, step: Mapping[str, Any], subject: RequestSubject) -> ServerReply:
        replies, _ = await self._line.send(request_of(step, subject))
        return replies[-1]

    async def ask_all(
        self, rules: Sequence[ConformanceRule], on_finding: Callable[[RuleFinding], None] | None
    ) -> list[RuleFinding]:
        """Return a finding for each rule; what changes or harms the server is asked last."""

        async def ask(rule: ConformanceRule) -> RuleFinding:
            finding = await self._ask(rule)
            if on_finding is not None:
                on_finding(finding)
            return finding

        harmless = [rule for rule in rules if not rule.needs.keys() & self._flags.keys()]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(rule)) for rule in harmless]
        found = {rule.id: task.result() for rule, task in zip(harmless, tasks, strict=True)}
        for rule in rules:
            if rule.id not in found:
                found[rule.id] = await ask(rule)
        return [found[rule.id] for rule in rules]

    async def _ask(self, rule: ConformanceRule) -> RuleFinding:
        missing = [name for name in self._flags if name in rule.needs and not self._flags[name]]
        if missing or self.server.fault:
            reason = f"asked with --{missing[0]} only" if missing else self.server.fault
            return self._finding(rule, _Judgement(Verdict.CANNOT_TELL, reason))
        needs_model = bool(rule.needs.keys() & _NEEDS.keys())
        models = [each for each in self.server.models if self._fits(rule, each)]
        if needs_model and not models:
            return self._finding(rule, _Judgement(Verdict.CANNOT_TELL, self._nothing_fits(rule)))
        outputs = rule.needs.get("outputs", 0)
        models.sort(key=lambda model: (not model.expect, len(model.outputs) < outputs))
        judged: list[_Judgement] = []
        for model in models[:_MOST_ASKED] if needs_model else [CertifiedModel("")]:
            try:
                judged.append(await self._judge(rule, model))
            except (CannotAsk, ValueError) as error:  # perhaps of the next one
                judged.append(_Judgement(Verdict.CANNOT_TELL, visible(str(error), _SHOWN)))
            else:
                if not rule.needs.get("every"):
                    break
        order = (Verdict.DIFFERS, Verdict.KEEPS, Verdict.CANNOT_TELL)
        return self._finding(rule, min(judged, key=lambda each: order.index(each.verdict)))

    def _fits(self, rule: ConformanceRule, model: CertifiedModel) -> bool:
        needs = rule.needs
        has_all = all(_NEEDS[name][0](model, needs[name]) for name in needs.keys() & _NEEDS.keys())
        if not any("infer" in step.request for step in rule.steps):
            return has_all  # what is wrong with its metadata is what such a rule finds out
        kind = needs.get("datatype") or (*model.datatypes, "")[0]
        values = [step.request.get("values", "plain") for step in rule.steps]
        return (
            has_all
            and not model.fault
            and model.has_sequences == ("sequence" in needs)
            and model.is_decoupled == ("decoupled" in needs)
            and (model.expect != "identity" or all(has_values(each, kind) for each in values))
        )

    def _nothing_fits(self, rule: ConformanceRule) -> str:
        if not self.server.models:
            return NO_MODELS
        faults = [f"model {each.name!r}: {each.fault}" for each in self.server.models if each.fault]
        if len(faults) == len(self.server.models):
            return visible(faults[0], _SHOWN)
        name = next(name for name in _NEEDS if name in rule.needs)
        return f"there is no model {_NEEDS[name][1].format(rule.needs[name])}"

    async def _judge(self, rule: ConformanceRule, model: CertifiedModel) -> _Judgement:
        """Send the requests of a rule until a reply differs. Raises CannotAsk, ValueError."""
        seed = crc32(f"{self._subject.seed} {rule.id}".encode())
        base = replace(self._subject, model=model, seed=seed)
        replies: list[ServerReply] = []
        request, excuse, wrong, has_success = "", "", [], False
        for step, case in _cases(rule, model, self._subject.seed):
            subject = replace(base, case=case)
            made = request_of(step.request, subject)
            request = made.command
            try:
                replies, endless = await self._line.send(made)
            except _CannotTell as error:
                is_hurt = "hurt" in rule.needs and replies
                verdict = Verdict.DIFFERS if is_hurt else Verdict.CANNOT_TELL
                return _Judgement(
                    verdict, f"the server is hurt: {error}" if is_hurt else str(error), request
                )
            wrong = _wrong(step, replies, endless, subject)
            has_success = has_success or replies[-1].is_success
            excuse = self._excuse(
                rule, step, model, replies[-1], differs=bool(wrong), has_success=has_success
            )
            if wrong:
                break
        text = "; ".join(wrong[:_MOST_TEXTS]) or replies[-1].text()
        if excuse:
            return _Judgement(Verdict.CANNOT_TELL, f"{excuse}: {text}", request)
        return _Judgement(Verdict.DIFFERS if wrong else Verdict.KEEPS, text, request)

    def _excuse(
        self,
        rule: ConformanceRule,
        step: RuleStep,
        model: CertifiedModel,
        reply: ServerReply,
        *,
        differs: bool,
        has_success: bool,
    ) -> str:
        """Return why a reply tells nothing about a rule; "" if it does.

        With *has_success* it, or an earlier one to a request of the rule, is a success.
        """
        extension = rule.needs.get("extension") or rule.needs.get("understood")
        is_unknown = extension is not None and extension not in self.server.extensions
        # A success shows that the server knows an extension, where the rule takes it for that.
        is_excused = not has_success or (differs and "extension" in rule.needs)
        if is_unknown and is_excused:
            return "the server does not announce the extension"
        is_valid = any(each in {"200", "OK"} for answer in step.answers for each in answer.status)
        is_refused = not reply.is_success or reply.error
        if differs and "infer" in step.request and is_valid and is_refused and not model.expect:
            return f"model {model.name!r} may not take the values that were made for it"
        return ""

    def _finding(self, rule: ConformanceRule, judged: _Judgement) -> RuleFinding:
        verdict, found = judged.verdict, judged.found
        if rule.open and verdict is not Verdict.CANNOT_TELL:
            verdict, found = Verdict.SAYS_NOTHING, f"{found} ({rule.open})"
        if verdict is Verdict.DIFFERS:
            for each in known_differences():
                is_its = each.server in self.server.name.lower()
                if is_its and {rule.id, rule.group} & set(each.rules):
                    found = f"{found} (known of {each.server}: {each.what}; {each.gateway})"
        return RuleFinding(
            rule.id, rule.group, verdict, rule.says, found, rule.source, judged.request
        )


def _cases(
    rule: ConformanceRule, model: CertifiedModel, seed: int
) -> Iterator[tuple[RuleStep, InferenceCase]]:
    """Yield the steps with what they send: a single step sends all values of its set."""
    for step in rule.steps:
        cases = [InferenceCase()]
        if "infer" in step.request or "known" in rule.needs:
            values, kind = step.request.get("values", "plain"), rule.needs.get("datatype", "")
            cases = model.cases(values, kind, seed) or cases
        for case in cases if len(rule.steps) == 1 else cases[:1]:
            yield step, case


def _wrong(
    step: RuleStep, replies: Sequence[ServerReply], endless: str, subject: RequestSubject
) -> list[str]:
    """Return how the replies differ from the answers of a step; nothing for one of them."""
    found: list[str] = [endless] if endless else []
    for reply in replies:
        tried = [(answer, mismatches(answer, reply, subject)) for answer in step.answers]
        if all(wrong for _, wrong in tried):
            near = [wrong for answer, wrong in tried if reply.status in answer.status]
            found += near[0] if near else tried[0][1]
    return found


def _declared(entries: Any) -> tuple[DeclaredTensor, ...]:
    return tuple(
        DeclaredTensor(str(each["name"]), str(each["datatype"]), tuple(map(int, each["shape"])))
        for each in entries
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
