"""What real clients with different credentials see of one inference, as one JSON document.

    python access_clients.py CARRIER ADDRESS SCHEMAS NAME=CREDENTIAL ...

A credential is an API key, a token, or nothing. Each client sends it as its users do: in a header,
in the metadata, in the password of its URL, or as `authentication_data`. The values of OUTPUT0 are
printed, or what the client says about its error.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

TIMEOUT_S = 20
ROW = list(range(16))
MODEL = "add_sub"

Ask = Callable[[str, str], Any]
"""Makes an inference at an address with a credential, and returns the values of OUTPUT0."""


def header_of(credential: str) -> dict[str, str]:
    """Return the header: that of tokens, that of keys, or none."""
    if not credential:
        return {}
    if credential.count(".") == 2:  # a token
        return {"authorization": f"Bearer {credential}"}
    return {"x-api-key": credential}


def host_of(address: str, credential: str) -> str:
    """Return an address with the credential as the password of any user."""
    return f"any:{credential}@{address}" if credential else address


def tritonclient(carrier: str) -> Ask:
    """Return the client of Triton, which sends headers."""
    import numpy as np  # noqa: PLC0415  # of this environment alone

    if carrier == "oip.http":
        import tritonclient.http as triton  # noqa: PLC0415
    else:
        import tritonclient.grpc as triton  # noqa: PLC0415

    def ask(address: str, credential: str) -> Any:
        inputs = [triton.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
        for each in inputs:
            each.set_data_from_numpy(np.array([ROW], np.int32))
        with triton.InferenceServerClient(address) as client:
            result = client.infer(MODEL, inputs, headers=header_of(credential))
            return result.as_numpy("OUTPUT0").reshape(-1).tolist()

    return ask


def tensorrtserver(carrier: str) -> Ask:
    """Return the client of TensorRT v1: over HTTP it sends passwords, over gRPC nothing."""
    from tests.interop.scripts import tensorrt_client as trtis  # noqa: PLC0415  # it finds OpenSSL

    api = import_module("tensorrtserver.api")

    protocol = api.ProtocolType.from_str(carrier.removeprefix("trtis."))

    def ask(address: str, credential: str) -> Any:
        url = host_of(address, credential)
        context = api.InferContext(url, protocol, MODEL)
        inputs = {name: [trtis.LEFT] for name in ("INPUT0", "INPUT1")}
        return context.run(inputs, {"OUTPUT0": trtis.RAW}, 1)["OUTPUT0"][0].tolist()

    return ask


def graphpipe(_carrier: str) -> Ask:
    """Return Oracle's client, which sends passwords."""
    import numpy as np  # noqa: PLC0415
    from graphpipe import remote  # noqa: PLC0415

    row = np.array([ROW], np.int32)

    def ask(address: str, credential: str) -> Any:
        uri = f"http://{host_of(address, credential)}/graphpipe/{MODEL}"
        return remote.execute_multi(uri, [row, row], None, None)[0].reshape(-1).tolist()

    return ask


def grps_http(_carrier: str) -> Ask:
    """Return `requests`, with which the samples of grps ask."""
    import requests  # noqa: PLC0415

    pair = [
        {"name": name, "dtype": "DT_INT32", "shape": [1, 16], "flat_int32": ROW}
        for name in ("INPUT0", "INPUT1")
    ]

    def ask(address: str, credential: str) -> Any:
        url = f"http://{address}/grps/v1/infer/predict?model={MODEL}"
        body = {"gtensors": {"tensors": pair}}
        reply = requests.post(url, json=body, headers=header_of(credential), timeout=TIMEOUT_S)
        status = reply.json()["status"]
        if status["status"] != "SUCCESS":
            return f"{reply.status_code} {json.dumps(status)}"
        return reply.json()["gtensors"]["tensors"][0]["flat_int32"]

    return ask


def grps_grpc(_carrier: str) -> Ask:
    """Return a stub that protoc makes of the schema."""
    import grpc  # noqa: PLC0415

    from tests.interop.scripts.grps_client import stubs  # noqa: PLC0415

    pb, service = stubs(Path(sys.argv[3]))
    pair = [
        pb.GenericTensor(name=name, dtype=pb.DT_INT32, shape=[1, 16], flat_int32=ROW)
        for name in ("INPUT0", "INPUT1")
    ]
    message = pb.GrpsMessage(gtensors=pb.GenericTensorData(tensors=pair), model=MODEL)

    def ask(address: str, credential: str) -> Any:
        metadata = [*header_of(credential).items()]
        with grpc.insecure_channel(address) as channel:
            predict = service.GrpsServiceStub(channel).Predict
            reply = predict(message, metadata=metadata, timeout=TIMEOUT_S)
        if reply.status.status == pb.Status.FAILURE:
            return f"{reply.status.code} {reply.status.msg}"
        return list(reply.gtensors.tensors[0].flat_int32)

    return ask


def brpc(_carrier: str) -> Ask:
    """Return the independent client of brpc, which sends `authentication_data`."""
    from tests.cases import brpc_oracle as oracle  # noqa: PLC0415

    pair = [oracle.Tensor(name, oracle.INT32, (1, 16), (*ROW,)) for name in ("INPUT0", "INPUT1")]
    message = oracle.message(MODEL, pair)

    def ask(address: str, credential: str) -> Any:
        with oracle.Client(address) as client:
            reply = client.ask(oracle.Question("Predict", message, credential=credential))
            if not reply.code and reply.status[2] == oracle.SUCCESS:
                return list((reply.message.tensors or ())[0].values)
            text = f"{reply.code} {reply.text}" if reply.code else f"{reply.status[:2]}"
            return f"{text}; {'closed' if is_closed(client) else 'open'}"

    def is_closed(client: Any) -> bool:
        """Ask again, without a credential, on the same connection."""
        client.send(oracle.Question("CheckLiveness"))
        return client.answer() is None

    return ask


CLIENTS: Mapping[str, Callable[[str], Ask]] = {
    "oip.http": tritonclient,
    "oip.grpc": tritonclient,
    "trtis.http": tensorrtserver,
    "trtis.grpc": tensorrtserver,
    "graphpipe.http": graphpipe,
    "grps.http": grps_http,
    "grps.grpc": grps_grpc,
    "grps.brpc": brpc,
}


def main() -> None:
    """Ask with each credential, in order."""
    carrier, address, _, *credentials = sys.argv[1:]
    ask = CLIENTS[carrier](carrier)
    seen: dict[str, Any] = {}
    for name, _, credential in (each.partition("=") for each in credentials):
        try:
            seen[name] = ask(address, credential)
        except Exception as error:  # noqa: BLE001  # each client has its own
            seen[name] = f"{type(error).__name__}: {error}"
    json.dump(seen, sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # threads of tensorrtserver outlive its contexts


main()
