"""Carrying out the checks with one of tritonclient's clients, and printing what it saw.

A script gives a `Session`, which is how one client does one step; everything else is here.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tests.interop.scripts.checks import CHECKS
from tests.interop.scripts.steps import Check, Infer, Query, Transport
from tests.interop.scripts.tensors import printed

STREAM_TIMEOUT_S = 8.0
"""How long a stream may take to its last response."""

VOLATILE_PARAMETERS = frozenset({"binary_data_size"})
"""How an output travelled; printed as `binary` instead."""

Printed = Any
"""A JSON value."""


class Session(Protocol):
    """One client, opened for one check; every method may raise what the client raises."""

    def query(self, query: Query) -> Any:
        """Return the answer to *query* as the client gives it."""

    def infer(self, step: Infer) -> Any:
        """Return the result of one inference."""

    def infer_at_once(self, steps: Sequence[Infer]) -> Sequence[Any]:
        """Return the results, or exceptions, of all *steps*, which are under way together."""

    def infer_stream(self, steps: Sequence[Infer]) -> Sequence[Any]:
        """Return the results and exceptions that answer a stream of *steps*."""

    def close(self) -> None:
        """Close the connections."""


def parse_arguments(description: str, *transports: Transport) -> argparse.Namespace:
    """Return the command line: `url`, `checks` (names, or None for all) and `transport`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--url", required=True, help="HOST:PORT, without a scheme")
    parser.add_argument("--checks", help="names, with commas between; all of them if absent")
    parser.add_argument("--transport", choices=transports, default=transports[0])
    return parser.parse_args()


def main(open_session: Callable[[], Session], transport: Transport, selection: str | None) -> None:
    """Carry out the *selection* of checks of *transport*, a fresh session each; print the answers."""
    names = selection.split(",") if selection else list(CHECKS)
    checks = [CHECKS[name] for name in names if transport in CHECKS[name].transports]
    json.dump({check.name: _carry_out(check, open_session) for check in checks}, sys.stdout)


def _carry_out(check: Check, open_session: Callable[[], Session]) -> list[Printed]:
    session = open_session()
    try:
        return _take_steps(check, session)
    finally:
        # gevent's client cannot be closed after an `async_infer` that failed.
        with contextlib.suppress(Exception):
            session.close()


def _take_steps(check: Check, session: Session) -> list[Printed]:
    infers = [step for step in check.steps if isinstance(step, Infer)]
    if check.manner == "stream":
        return _guarded(lambda: [_result(each) for each in session.infer_stream(infers)])
    if check.manner == "at_once":
        return _guarded(lambda: [_result(each) for each in session.infer_at_once(infers)])
    return [_step(step, session) for step in check.steps]


def _guarded(act: Callable[[], list[Printed]]) -> list[Printed]:
    try:
        return act()
    except Exception as error:  # noqa: BLE001  # whatever a client raises is what it saw
        return [_error(error)]


def _step(step: Infer | Query, session: Session) -> Printed:
    try:
        if isinstance(step, Query):
            return {"answer": _only_members(_plain(session.query(step)), step.only)}
        return _result(session.infer(step))
    except Exception as error:  # noqa: BLE001  # whatever a client raises is what it saw
        return _error(error)


def _error(error: BaseException) -> Printed:
    message = getattr(error, "message", None)
    status = getattr(error, "status", None)
    return {
        "error": {
            "type": type(error).__name__,
            "status": str(status()) if callable(status) else None,
            "message": str(message()) if callable(message) else str(error),
        }
    }


def _result(result: Any) -> Printed:
    """Return what is printed of a result: the answer's members, and each output as numpy has it."""
    if isinstance(result, BaseException):
        return _error(result)
    response = result.get_response()
    document = response if isinstance(response, dict) else result.get_response(as_json=True)
    members = {
        key: document[key]
        for key in ("model_name", "model_version", "id", "parameters")
        if document.get(key)
    }
    raw = None if isinstance(response, dict) else bool(response.raw_output_contents)
    outputs = [_output(result, each, raw) for each in document.get("outputs") or []]
    return {**members, "outputs": outputs}


def _output(result: Any, described: Mapping[str, Any], raw: bool | None) -> Printed:
    parameters = described.get("parameters") or {}
    name = described["name"]
    shape = tuple(int(axis) for axis in described.get("shape") or ())
    other = {key: parameters[key] for key in parameters if key not in VOLATILE_PARAMETERS}
    return {
        **printed(name, described["datatype"], shape, result.as_numpy(name)),
        "binary": "binary_data_size" in parameters if raw is None else raw,
        **({"parameters": other} if other else {}),
    }


def _plain(answer: Any) -> Printed:
    """Return *answer* with lists of named things in the order of their names, as servers vary."""
    if isinstance(answer, list) and answer and all(isinstance(each, dict) for each in answer):
        if all({"name", "version"} <= each.keys() for each in answer):
            return sorted(answer, key=lambda each: (each["name"], each["version"]))
        return [_plain(each) for each in answer]
    if isinstance(answer, dict):
        return {key: _plain(value) for key, value in answer.items()}
    return answer


def _only_members(answer: Printed, only: tuple[str, ...]) -> Printed:
    if not only:
        return answer
    if isinstance(answer, dict):
        return {key: _only_members(value, only) for key, value in answer.items() if key in only}
    if isinstance(answer, list):
        return [_only_members(each, only) for each in answer]
    return answer
