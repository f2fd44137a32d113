"""Test processes that are forked once the tests are collected: `pytest --processes 6`.

Processes of pytest-xdist collect all tests each, which takes 10 s of a core, and 30 s where no module is
compiled. These share what one process collected. Each takes a file that none has taken, runs its
tests in their order, and reports them to the first process.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, Final

import pytest

_FORK: Final = multiprocessing.get_context("fork")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the number of processes."""
    parser.addoption("--processes", type=int, help="run the tests in so many forked processes")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the collected tests in processes of their own, if the command line says how many."""
    config = session.config
    count = config.getoption("--processes")
    if not count or session.testsfailed or config.option.collectonly:
        return None  # as without this option
    files = [list(items) for _, items in itertools.groupby(session.items, lambda item: item.path)]
    config.pluginmanager.getplugin("capturemanager").stop_global_capturing()
    config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    taken = _FORK.Value("i", 0)
    processes: dict[Connection, ForkProcess] = {}
    for _ in range(count):
        reader, writer = _FORK.Pipe(duplex=False)
        process = _FORK.Process(target=_run, args=(config, files, taken, writer))
        process.start()
        writer.close()
        processes[reader] = process
    _report(session, processes)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    return True


def _report(session: pytest.Session, processes: dict[Connection, ForkProcess]) -> None:
    """Report what the processes report, until all have ended."""
    hook = session.config.hook
    running: dict[Connection, tuple[str, Any]] = {}
    while processes:
        for reader in wait(list(processes)):
            assert isinstance(reader, Connection)
            try:
                name, values = reader.recv()
            except EOFError:
                process = processes.pop(reader)
                process.join()
                if process.exitcode and not session.shouldfail:
                    nodeid, location = running.get(reader, ("a test process", ("", None, "")))
                    reason = f"its process ended with exit status {process.exitcode}"
                    report = pytest.TestReport(nodeid, location, {}, "failed", reason, "call")
                    hook.pytest_runtest_logreport(report=report)
                continue
            if name == "pytest_runtest_logstart":
                running[reader] = values["nodeid"], values["location"]
            elif name == "pytest_runtest_logreport":
                values["report"] = hook.pytest_report_from_serializable(
                    config=session.config, data=values["report"]
                )
            getattr(hook, name)(**values)
        if session.shouldfail:
            for process in processes.values():
                process.terminate()


class _Reports:
    """Takes the place of the terminal in a process: it sends reports to the first process."""

    def __init__(self, config: pytest.Config, writer: Connection) -> None:
        self._config = config
        self._tw = config.get_terminal_writer()  # for the stacks of a test out of time
        self._writer = writer

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        """Send that a test starts."""
        self._send("pytest_runtest_logstart", nodeid=nodeid, location=location)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send how a part of a test ended."""
        hook = self._config.hook
        data = hook.pytest_report_to_serializable(config=self._config, report=report)
        self._send("pytest_runtest_logreport", report=data)

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        """Send that a test has ended."""
        self._send("pytest_runtest_logfinish", nodeid=nodeid, location=location)

    def _send(self, name: str, **values: object) -> None:
        self._writer.send((name, values))


def _run(
    config: pytest.Config, files: Sequence[Sequence[pytest.Item]], taken: Any, writer: Connection
) -> None:
    """Run the tests of files, until all files are taken."""
    plugins = config.pluginmanager
    reports = _Reports(config, writer)
    plugins.unregister(name="terminalreporter")
    plugins.register(reports, "terminalreporter")
    capture = plugins.getplugin("capturemanager")
    capture.start_global_capturing()
    capture.suspend_global_capture()
    folders = config._tmp_path_factory  # type: ignore[attr-defined]
    folders._basetemp = folders.mktemp("process")
    items = itertools.chain.from_iterable(_take(files, taken))
    for item, following in itertools.pairwise(itertools.chain(items, [None])):
        assert item is not None
        config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def _take(files: Sequence[Sequence[pytest.Item]], taken: Any) -> Iterator[Sequence[pytest.Item]]:
    while True:
        with taken.get_lock():
            index = taken.value
            taken.value += 1
        if index >= len(files):
            return
        yield files[index]
