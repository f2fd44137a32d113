"""The command `gateway`. Read `commands.py` first, then the module of one command.

Exit status: 0 success, 1 failure or negative result, 2 usage or configuration error. Data goes to
standard output, and errors and notes to standard error.
"""

import os
import signal
import sys
import threading

from gateway import __version__


def main() -> None:
    """Run the command line and exit with its status."""
    _open_closed_streams()
    _end_at_sigterm()
    # Images of old clients set it to Python's runtime, 50 times slower: only their code needs that.
    os.environ.pop("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", None)
    try:
        _run()
    except KeyboardInterrupt:  # while modules are imported: commands handle it themselves
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
        sys.exit(128 + signal.SIGINT)  # process 1 survives its own signals


def _run() -> None:
    if sys.argv[1:] == ["--version"]:
        from gateway.accelerator import BUILD  # noqa: PLC0415  # loads the extension

        sys.stdout.write(f"gateway {__version__} ({BUILD})\n")
        return
    if sys.argv[1:3] == ["health", "--live"]:
        from gateway.cli.calling.liveness import live_address, run_live  # noqa: PLC0415  # only for probes

        address = live_address(sys.argv[1:])
        if address is not None:
            sys.exit(run_live(address))
    from gateway.cli.commands import run  # noqa: PLC0415  # slow to import

    status = run(sys.argv[1:])
    _end_at_sigterm()  # also while threads end
    if threading.active_count() > 1:
        from gateway.concurrency.process_end import end_within  # noqa: PLC0415  # rarely needed

        end_within(status)
    sys.exit(status)


def _end_at_sigterm() -> None:
    """Let SIGTERM end process 1, for which the kernel does nothing without a handler."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, _frame: os._exit(128 + number))


def _open_closed_streams() -> None:
    """Open the standard streams that are closed on /dev/null, so that no socket gets their place.

    Whatever is then written to standard error, also by libraries, would go to a client. Processes
    that this one starts get them, too.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115
