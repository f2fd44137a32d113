"""Triton's extensions through a real tritonclient: what each call answers, as one JSON document.

Every step's answer, or error, stands under its name; what counts or times is reduced to what can
be told beforehand.
"""

import argparse
import asyncio
import importlib
import inspect
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

MODULES = {
    "http": "tritonclient.http",
    "grpc": "tritonclient.grpc",
    "aio_http": "tritonclient.http.aio",
    "aio_grpc": "tritonclient.grpc.aio",
}
_LET_GO_S = 5.0
_COUNTED_S = 5.0
COUNTED = ["classify", "1", True]
SCORES = np.array([[0.5, 0.25, 2.0, 1.0], [9.0, 0.1, 0.2, 0.3]], np.float32)


class Client:
    """One client of any of the four kinds, called as if all were alike.

    Args:
        kind: Of `MODULES`.
        url: HOST:PORT.
    """

    def __init__(self, kind: str, url: str) -> None:
        self.module = importlib.import_module(MODULES[kind])
        self.carrier = kind.removeprefix("aio_")
        self._loop = asyncio.new_event_loop()
        self._client = self._wait(self._make(url))

    async def _make(self, url: str) -> Any:
        return self.module.InferenceServerClient(url)

    def _wait(self, answer: Any) -> Any:
        return self._loop.run_until_complete(answer) if inspect.isawaitable(answer) else answer

    def __call__(self, method: str, *args: Any, **options: Any) -> Any:
        """Call *method* and return what it answers, as JSON where that is an option."""
        function = getattr(self._client, method)
        if "as_json" in inspect.signature(function).parameters:
            options["as_json"] = True
        return self._wait(function(*args, **options))

    def close(self) -> None:
        """Close the connections."""
        self._wait(self._client.close())
        self._loop.close()


def config(client: Client, model: str) -> Any:
    """Return a model's configuration; over gRPC it stands below a name."""
    found = client("get_model_config", model)
    return found.get("config", found)


def statistics(client: Client, model: str = "") -> Any:
    """Return which models and versions have been counted, and whether anything has been."""
    found = client("get_inference_statistics", model)["model_stats"]
    return sorted(
        [one["name"], one.get("version", ""), int(one.get("inference_count", 0)) > 0]
        for one in found
    )


def counted_statistics(client: Client, model: str = "") -> Any:
    """Return the statistics when they have an inference of `classify`: Triton replies before."""
    end = time.monotonic() + _COUNTED_S
    while (found := statistics(client, model)) and COUNTED not in found and time.monotonic() < end:
        time.sleep(0.02)
    return found


def index(client: Client) -> Any:
    """Return the models that are ready, with their versions, and the states of the others."""
    found = client("get_model_repository_index")
    entries = found if isinstance(found, list) else found.get("models", [])
    return sorted([one["name"], one.get("version", ""), one.get("state", "")] for one in entries)


def ready(client: Client, model: str) -> Any:
    """Return whether a model is ready."""
    return client("is_model_ready", model)


def classes(client: Client, **options: Any) -> Any:
    """Return the best two classes of two rows."""
    module = client.module
    tensor = module.InferInput("SCORES_IN", list(SCORES.shape), "FP32")
    tensor.set_data_from_numpy(SCORES)
    output = module.InferRequestedOutput("SCORES", class_count=2, **options)
    reply = client("infer", "classify", [tensor], outputs=[output])
    found = reply.as_numpy("SCORES")
    return [list(found.shape), [item.decode() for item in found.ravel()]]


@contextmanager
def region(name: str, size: int) -> Iterator[Any]:
    """Make a segment of shared memory and take it away at the end."""
    handle = shm.create_shared_memory_region(name, f"/{name}", size)
    try:
        yield handle
    finally:
        shm.destroy_shared_memory_region(handle)


def unregister(client: Client, *names: str) -> None:
    """Unregister regions of shared memory: a busy Triton lets go of them a moment after it answered."""
    end = time.monotonic() + _LET_GO_S
    while True:
        try:
            client("unregister_system_shared_memory", *names)
        except InferenceServerException as error:
            if "currently in use" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return


def shared(client: Client, name: str) -> Any:
    """Infer with input and output in shared memory, and return what the calls about it answer."""
    module, values = client.module, np.arange(6, dtype=np.float32).reshape(2, 3)
    seen: list[Any] = []
    with region(f"{name}_in", 24) as input_region, region(f"{name}_out", 32) as got:
        shm.set_shared_memory_region(input_region, [values])
        client("register_system_shared_memory", f"{name}_in", f"/{name}_in", 24)
        client("register_system_shared_memory", f"{name}_out", f"/{name}_out", 32)
        seen.append(_regions(client("get_system_shared_memory_status")))
        tensor = module.InferInput("INPUT0", [2, 3], "FP32")
        tensor.set_shared_memory(f"{name}_in", 24)
        output_request = module.InferRequestedOutput("OUTPUT0")
        output_request.set_shared_memory(f"{name}_out", 24, offset=8)
        reply = client("infer", "identity_fp32", [tensor], outputs=[output_request])
        output = reply.get_output("OUTPUT0")
        description = (
            output
            if isinstance(output, dict)
            else {"datatype": output.datatype, "shape": output.shape}
        )
        seen.append([description["datatype"], [int(size) for size in description["shape"]]])
        seen.append(shm.get_contents_as_numpy(got, np.float32, [2, 3], offset=8).tolist())
        unregister(client, f"{name}_in")
        seen.append(_regions(client("get_system_shared_memory_status")))
        unregister(client)
        seen.append(_regions(client("get_system_shared_memory_status")))
    return seen


def _regions(found: Any) -> Any:
    listed = found if isinstance(found, list) else list(found.get("regions", {}).values())
    return sorted(
        [one["name"], one["key"], int(one.get("offset", 0)), int(one["byte_size"])]
        for one in listed
    )


def trace(client: Client, *args: Any, **options: Any) -> Any:
    """Return trace settings, changed or not, in the form of gRPC."""
    method = "update_trace_settings" if options.get("settings") else "get_trace_settings"
    found = client(method, *args, **options)
    settings = found.get("settings", found)
    return {
        key: value["value"]
        if isinstance(value, dict)
        else value
        if isinstance(value, list)
        else [value]
        for key, value in sorted(settings.items())
        if key != "trace_file" and value
    }


def logging(client: Client, **settings: Any) -> Any:
    """Return log settings, changed or not, in the form of HTTP."""
    method = "update_log_settings" if settings else "get_log_settings"
    found = client(method, *([settings] if settings else []))
    listed = found.get("settings", found)
    return {
        key: next(iter(value.values()), None) if isinstance(value, dict) else value
        for key, value in sorted(listed.items())
    }


def reloaded(client: Client) -> Any:
    """Unload a model and load it again, and return what is seen of it at each turn."""
    seen = [ready(client, "versions")]
    client("unload_model", "versions", unload_dependents=True)
    for _ in range(100):
        if not ready(client, "versions"):
            break
    seen.append(ready(client, "versions"))
    client("load_model", "versions")
    return [*seen, ready(client, "versions")]


def overridden(client: Client) -> Any:
    """Load a model with another configuration, look at it, and load it as it was."""
    before = config(client, "add_sub")
    seen = []
    for size in (3, int(before["max_batch_size"])):
        text = json.dumps({**before, "max_batch_size": size})
        client("load_model", "add_sub", config=text)
        seen.append(int(config(client, "add_sub")["max_batch_size"]))
    return seen


def steps(name: str) -> dict[str, Callable[[Client], Any]]:
    """Return what is done, by name, in this order; *name* is that of regions of shared memory."""
    return {
        "extensions": lambda client: sorted(client("get_server_metadata")["extensions"]),
        "identity": lambda client: [
            client("get_server_metadata")[key] for key in ("name", "version")
        ],
        "config": lambda client: config(client, "add_sub"),
        "config_version": lambda client: client("get_model_config", "versions", "1") is not None,
        "config_unknown": lambda client: config(client, "nope"),
        "classes": classes,
        "statistics": lambda client: counted_statistics(client, "classify"),
        "statistics_of_all": lambda client: COUNTED in counted_statistics(client),
        "index": index,
        "reload": reloaded,
        "override": overridden,
        "load_unknown": lambda client: client("load_model", "nope"),
        "load_bad_file": lambda client: client(
            "load_model", "add_sub", config="{}", files={"file:../../x": b"x"}
        ),
        "trace": trace,
        "trace_of_a_model": lambda client: trace(client, model_name="add_sub"),
        "trace_change": lambda client: trace(
            client, model_name="add_sub", settings={"trace_rate": "5", "trace_level": ["OFF"]}
        ),
        "trace_clear": lambda client: trace(
            client, model_name="add_sub", settings={"trace_rate": None, "trace_level": None}
        ),
        "log": logging,
        "log_change": lambda client: logging(client, log_verbose_level=1),
        "log_back": lambda client: logging(client, log_verbose_level=0),
        "log_unknown": lambda client: logging(client, no_such_setting=1),
        "shared_memory": lambda client: shared(client, name),
        "shared_memory_unknown_key": lambda client: client(
            "register_system_shared_memory", "r", "/no_such_segment_anywhere", 8
        ),
        "cuda_shared_memory": lambda client: _regions_of_cuda(
            client("get_cuda_shared_memory_status")
        ),
    }


def _regions_of_cuda(found: Any) -> Any:
    return found if isinstance(found, list) else list(found.get("regions", {}))


def main() -> None:
    """Carry out the steps and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="HOST:PORT")
    parser.add_argument("--kind", required=True, choices=MODULES)
    parser.add_argument("--steps", default="", help="names, with commas; all by default")
    arguments = parser.parse_args()
    client = Client(arguments.kind, arguments.url)
    all_steps = steps(f"interop_{arguments.kind}")
    seen: dict[str, Any] = {}
    for name in arguments.steps.split(",") if arguments.steps else all_steps:
        try:
            seen[name] = {"answer": all_steps[name](client)}
        except Exception as error:  # noqa: BLE001  # what the client says is what is looked at
            seen[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
    client.close()
    print(json.dumps(seen))  # read by the test


if __name__ == "__main__":
    main()
