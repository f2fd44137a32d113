"""The command `serve`: serves a configuration file, a sidecar, or the demo models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from gateway.cli.configuration import ConfigArgument, ConfigOption, config_path, load_checked
from gateway.cli.output import WRONG_USAGE, fail
from gateway.cli.run import run_loaded, run_mapping
from gateway.config.sidecar import sidecar_config
from gateway.config.units import parse_workers
from gateway.demo.config import demo_config

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
        help="HOST:PORT for metrics and probes, or off. Default 127.0.0.1:9901 if it is free.",
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
            "graphpipe+http://HOST:PORT, "
            "graphpipe+tcp://HOST:PORT or graphpipe+unix:///PATH; repeatable.",
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
            help="Switch on an extension: repository_index, model_control, "
            "model_configuration, statistics=target, trace, logging=target, "
            "shared_memory=map, shared_memory=forward:KEYS ...; repeatable.",
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
) -> None:
    """Serve: `serve CONFIG.yaml`, `serve --upstream URL`, or `serve --demo`.

    SIGTERM and SIGINT stop it, after the calls in flight. Exit status: 0 stopped, 1 could not
    start or a worker keeps dying, 2 usage or configuration error.
    """
    path = config_path(config, config_option)
    if (path is not None) + bool(upstream) + demo != 1:
        fail("expected exactly one of CONFIG.yaml, --upstream URL and --demo", WRONG_USAGE)
    addresses = {"--http": http, "--grpc": grpc, "--admin": admin}
    sidecar = {
        "--default-model": default_model,
        "--enable": enable or None,
        "--no-passthrough": no_passthrough or None,
    }
    streams = {"--graphpipe-tcp": graphpipe_tcp, "--graphpipe-unix": graphpipe_unix}
    if path is not None:
        _reject({**addresses, **streams, "--brpc": brpc, **sidecar}, "CONFIG.yaml; set it there")
        raise typer.Exit(run_loaded(lambda: load_checked(path, workers=_worker_count(workers))))
    if demo:
        _reject(sidecar, "--demo, which has no upstream")
        _reject(streams, "--demo, which has two models")
        raise typer.Exit(
            run_mapping(
                lambda: demo_config(http=http, grpc=grpc, brpc=brpc, admin=admin),
                workers=_worker_count(workers),
            )
        )
    status = run_mapping(
        lambda: sidecar_config(
            upstream or (),
            http=http,
            grpc=grpc,
            graphpipe_tcp=graphpipe_tcp,
            graphpipe_unix=graphpipe_unix,
            brpc=brpc,
            admin=admin,
            default_model=default_model,
            enable=enable or (),
            passthrough=not no_passthrough,
        ),
        workers=_worker_count(workers),
    )
    raise typer.Exit(status)


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
