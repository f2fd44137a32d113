"""The command `serve`: serves a configuration file, a sidecar, or the demo models.

What serves is imported when it is needed, so that `--help` is cheap.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.config_flags import ConfigArgument, ConfigOption, config_path
from gateway.cli.output import WRONG_USAGE, fail
from gateway.cli.serving.tls_flags import TlsFlags, tls_flags
from gateway.settings.units import parse_workers

HttpOption = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="ADDR",
        help="HOST:PORT for HTTP, or off. Default 127.0.0.1:8000, or 127.0.0.1:18000 if an "
        "upstream on this machine uses one of the ports 8000 to 8002.",
    ),
]
GrpcOption = Annotated[
    str | None,
    typer.Option(
        "--grpc",
        metavar="ADDR",
        help="HOST:PORT for gRPC, or off. Default 127.0.0.1:8001, or 127.0.0.1:18001 if the "
        "default of --http is 18000.",
    ),
]
GraphpipeTcpOption = Annotated[
    str | None,
    typer.Option(
        "--graphpipe-tcp",
        metavar="ADDR",
        help="HOST:PORT for GraphPipe over TCP; it serves --default-model.",
    ),
]
GraphpipeUnixOption = Annotated[
    str | None,
    typer.Option(
        "--graphpipe-unix",
        metavar="PATH",
        help="Unix socket for GraphPipe; it serves --default-model.",
    ),
]
BrpcOption = Annotated[
    str | None,
    typer.Option(
        "--brpc",
        metavar="ADDR",
        help="HOST:PORT for grps over brpc (baidu_std), HTTP and gRPC on the same port.",
    ),
]
AdminOption = Annotated[
    str | None,
    typer.Option(
        "--admin",
        metavar="ADDR",
        help="HOST:PORT for probes, metrics, status and commands, or off. Default 127.0.0.1:9901 "
        "if it is free.",
    ),
]

WorkersOption = Annotated[
    str | None,
    typer.Option(
        "--workers",
        metavar="N",
        help="Processes that share the ports, or auto for one per core. Default 1, or the value "
        "in CONFIG.yaml.",
    ),
]


@tls_flags
def serve(  # noqa: PLR0913  # one for each flag
    config: ConfigArgument = None,
    *,
    config_option: ConfigOption = None,
    upstream: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Serve as a sidecar of this server: oip+grpc://HOST:PORT or oip+http://HOST:PORT "
            "(grpc:// and http:// mean the same), trtis+grpc://HOST:PORT, trtis+http://HOST:PORT, "
            "graphpipe+http://HOST:PORT, graphpipe+tcp://HOST:PORT, graphpipe+unix:///PATH, "
            "grps+http://HOST:PORT, grps+grpc://HOST:PORT, grps+brpc://HOST:PORT, "
            "tfs+http://HOST:PORT, tfs+grpc://HOST:PORT, torchserve+http://HOST:PORT, "
            "torchserve+grpc://HOST:PORT, seldon+http://HOST:PORT, seldon+grpc://HOST:PORT, "
            "mlflow+http://HOST:PORT or openai+http://HOST:PORT. https, grpcs, "
            "brpcs, and tls for tcp, mean the same with TLS; repeatable.",
        ),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Serve the demo models digits and language.")
    ] = False,
    http: HttpOption = None,
    grpc: GrpcOption = None,
    graphpipe_tcp: GraphpipeTcpOption = None,
    graphpipe_unix: GraphpipeUnixOption = None,
    brpc: BrpcOption = None,
    admin: AdminOption = None,
    workers: WorkersOption = None,
    default_model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Model of requests that name none."),
    ] = None,
    enable: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=VALUE]",
            help="Switch on an extension that changes the server: model_control, model_config, "
            "model_files, trace, logging=target, shared_memory=map, shared_memory=forward:KEYS; "
            "repeatable. Extensions that change nothing are on; NAME=off or NAME=false switches "
            "one off.",
        ),
    ] = None,
    identity: Annotated[
        str | None,
        typer.Option(
            metavar="WHOSE",
            help="Name and version in server metadata: gateway or upstream. Default gateway.",
        ),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Longest time until the response, or until the first one of a stream, such as "
            "30s. Default: as long as the client allows.",
        ),
    ] = None,
    no_passthrough: Annotated[
        bool,
        typer.Option(
            "--no-passthrough",
            help="Respond with 404 to HTTP paths of no protocol, instead of forwarding them to the "
            "first HTTP upstream.",
        ),
    ] = False,
    stock: Annotated[
        str | None,
        typer.Option(
            "--stock", metavar="DIR", help="Count who calls what, in files of this directory."
        ),
    ] = None,
    capture: Annotated[
        str | None,
        typer.Option("--capture", metavar="DIR", help="Record inferences in this directory."),
    ] = None,
    sample: Annotated[
        str | None,
        typer.Option("--sample", metavar="PERCENT", help="Record only this share, such as 5%."),
    ] = None,
    payload: Annotated[
        str | None,
        typer.Option(
            "--payload",
            metavar="none|hash|full",
            help="What of the elements of tensors is recorded: nothing by default.",
        ),
    ] = None,
    tls: TlsFlags = TlsFlags(),  # noqa: B008  # frozen
) -> None:
    """Serve: `serve CONFIG.yaml`, `serve --upstream URL`, or `serve --demo`.

    `serve` alone serves the first of these files: that of GATEWAY_CONFIG; gateway.yaml in the
    folder where the platform of a container puts models; /etc/gateway/gateway.yaml.
    SIGTERM and SIGINT stop it, after the calls in flight. SIGUSR1 opens log files again.
    Exit status: 0 stopped, 1 could not start or a worker keeps dying, 2 usage or configuration
    error.

    Example: gateway serve --upstream oip+grpc://127.0.0.1:9001
    """
    from gateway.cli.configuration import load_checked  # noqa: PLC0415  # slow to import
    from gateway.cli.demo.config import demo_config  # noqa: PLC0415
    from gateway.cli.serving.container import found_config  # noqa: PLC0415
    from gateway.cli.serving.run import run_loaded, run_mapping  # noqa: PLC0415
    from gateway.cli.serving.sidecar import sidecar_config  # noqa: PLC0415

    path = config_path(config, config_option)
    if path is None and not upstream and not demo:
        path = found_config(os.environ)
    if (path is not None) + bool(upstream) + demo != 1:
        fail("expected exactly one of CONFIG.yaml, --upstream URL and --demo", WRONG_USAGE)
    addresses = {"--http": http, "--grpc": grpc, "--admin": admin}
    sidecar = {
        "--default-model": default_model,
        "--enable": enable or None,
        "--identity": identity,
        "--timeout": timeout,
        "--no-passthrough": no_passthrough or None,
    }
    streams = {"--graphpipe-tcp": graphpipe_tcp, "--graphpipe-unix": graphpipe_unix}
    recording = {"--stock": stock, "--capture": capture, "--sample": sample, "--payload": payload}
    if path is not None:
        own = {**addresses, **streams, "--brpc": brpc, **sidecar, **recording, **tls.given}
        _reject(own, "CONFIG.yaml; set it there")
        raise typer.Exit(run_loaded(lambda: load_checked(path, workers=_worker_count(workers))))
    if demo:
        _reject(sidecar, "--demo, which has no upstream")
        _reject(streams, "--demo, which has two models")
        _reject(tls.of_upstreams, "--demo, which has no upstream")
        raise typer.Exit(
            run_mapping(
                lambda: tls.added_to(
                    {
                        **demo_config(http=http, grpc=grpc, brpc=brpc, admin=admin),
                        **_stock_config(stock),
                        **_capture_config(capture, sample, payload),
                    }
                ),
                workers=_worker_count(workers),
            )
        )
    status = run_mapping(
        lambda: tls.added_to(
            {
                **sidecar_config(
                    upstream or (),
                    http=http,
                    grpc=grpc,
                    graphpipe_tcp=graphpipe_tcp,
                    graphpipe_unix=graphpipe_unix,
                    brpc=brpc,
                    admin=admin,
                    default_model=default_model,
                    enable=enable or (),
                    identity=identity,
                    timeout=timeout,
                    passthrough=not no_passthrough,
                ),
                **_stock_config(stock),
                **_capture_config(capture, sample, payload),
            }
        ),
        workers=_worker_count(workers),
    )
    raise typer.Exit(status)


def _stock_config(directory: str | None) -> dict[str, Any]:
    """Return the keys `state` and `stock` of --stock, if there is one."""
    if directory is None:
        return {}
    return {"state": {"directory": str(Path(directory).absolute())}, "stock": {}}


def _capture_config(
    directory: str | None, sample: str | None, payload: str | None
) -> dict[str, Any]:
    """Return the key `capture` of the flags, if there is one.

    Raises:
        ValueError: A flag needs --capture, or has no percentage.
    """
    if directory is None:
        if sample is not None or payload is not None:
            flag = "--payload" if sample is None else "--sample"
            raise ValueError(f"{flag} needs --capture DIR")
        return {}
    config: dict[str, Any] = {"directory": str(Path(directory).absolute())}
    if sample is not None:
        config["percent"] = sample.removesuffix("%")
    if payload is not None:
        config["payload"] = payload
    return {"capture": config}


def _worker_count(workers: str | None) -> int | None:
    if workers is None:
        return None
    try:
        return parse_workers(workers)
    except ValueError as error:
        fail(f"--workers {error}", WRONG_USAGE)


def _reject(flags: Mapping[str, object], reason: str) -> None:
    present = [flag for flag, value in flags.items() if value is not None]
    if present:
        fail(f"{present[0]} is not allowed with {reason}", WRONG_USAGE)
