"""Private descriptor pools: no conflict with other packages, and the runtime."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.internal import api_implementation

from gateway.schema import open_inference_pb2 as oip
from gateway.schema import pool

CONFLICT = """
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

def other():
    file = descriptor_pb2.FileDescriptorProto(
        name="open_inference.proto", package="inference", syntax="proto3"
    )
    file.message_type.add(name="ServerLiveRequest").field.add(
        name="other", number=1, type=descriptor_pb2.FieldDescriptorProto.TYPE_BOOL
    )
    default = descriptor_pool.Default()
    default.AddSerializedFile(file.SerializeToString())
    found = default.FindMessageTypeByName("inference.ServerLiveRequest")
    assert message_factory.GetMessageClass(found)(other=True).other

def ours():
    from gateway.schema import open_inference_pb2
    assert open_inference_pb2.ServerLiveResponse(live=True).SerializeToString() == b"\\x08\\x01"
    assert not open_inference_pb2.ServerLiveRequest.DESCRIPTOR.fields
"""


@pytest.mark.parametrize("order", ["other(); ours()", "ours(); other()"])
def test_coexists_with_another_package(order: str) -> None:
    """Another package may register the same names in the default pool, before us or after."""
    subprocess.run([sys.executable, "-c", f"{CONFLICT}\n{order}\n"], check=True)


def test_stays_out_of_the_default_pool() -> None:
    """None of our symbols is registered process-wide."""
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("inference.ModelInferRequest")


def test_finds_classes() -> None:
    """A message class is found by full name, and is the generated module's."""
    assert pool.message_class("oip", "inference.ModelConfig") is oip.ModelConfig
    assert oip.ModelInferRequest.InferInputTensor is pool.message_class(
        "oip", "inference.ModelInferRequest.InferInputTensor"
    )
    assert oip.ModelConfig(input=[oip.ModelInput(data_type=oip.TYPE_FP32)]).input[0].data_type == 11
    assert oip.DataType.Name(oip.TYPE_BF16) == "TYPE_BF16"


def test_raises_for_unknown_names() -> None:
    """Unknown folders, files and messages raise KeyError."""
    with pytest.raises(KeyError):
        pool.descriptor_pool("nothing")
    with pytest.raises(KeyError):
        pool.file_descriptor("oip", "nothing.proto")
    with pytest.raises(KeyError):
        pool.message_class("oip", "inference.Nothing")


def test_serves_reflection() -> None:
    """The pool finds the file of a service, in the form server reflection sends."""
    file = pool.descriptor_pool("oip").FindFileContainingSymbol("inference.GRPCInferenceService")
    service = file.services_by_name["GRPCInferenceService"]
    assert len(service.methods) == 20
    assert (
        service.methods_by_name["ModelStreamInfer"].output_type.name == "ModelStreamInferResponse"
    )
    assert file.serialized_pb


def test_rejects_the_pure_python_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the setting to change; the default runtime is accepted."""
    pool.require_fast_runtime()
    monkeypatch.setattr(api_implementation, "Type", lambda: "python")
    with pytest.raises(RuntimeError, match="PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"):
        pool.require_fast_runtime()


def test_all_protocols_are_imported_with_the_pure_python_runtime() -> None:
    """What uses the package as a library then learns from the start what to change."""
    code = (
        "import importlib; from gateway.registry import PROTOCOLS\n"
        "for each in PROTOCOLS.values(): importlib.import_module(each.partition(':')[0])\n"
        "from gateway.schema.pool import require_fast_runtime; require_fast_runtime()"
    )
    environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "RuntimeError: protobuf runs on its 'python'" in ran.stderr.splitlines()[-1]


def test_the_command_runs_where_the_pure_python_runtime_is_set() -> None:
    """Images of old TensorFlow clients set it for their own code."""
    environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    code = (
        "import sys; sys.argv[1:] = ['--version']; from gateway.cli import main; main()\n"
        "from gateway.schema.pool import require_fast_runtime; require_fast_runtime()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
