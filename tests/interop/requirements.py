"""What the interop tests install, by environment: the one place where versions are pinned.

Each environment is apart from the others and from the gateway's, because these packages clash
with one another over protobuf symbols.  How they are installed is in `environments.py`.
"""

from collections.abc import Mapping
from types import MappingProxyType

REQUIREMENTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        # numpy 2 makes this python backend read every element size as 0, without an error.
        "triton": ("nvidia-pytriton==0.7.0", "numpy<2"),
        "mlserver": ("mlserver==1.7.1",),
        "kserve": ("kserve==0.21.0",),
        # Without `[all]`: its `cuda` part needs a GPU and nothing here uses it.
        "client": ("tritonclient[http,grpc]==2.73.0", "numpy==2.4.6", "requests==2.34.2"),
        "tensorrt": (
            "tensorrtserver==1.11.0",
            "protobuf==3.20.3",
            "numpy==1.26.4",
            "setuptools==65.5.0",
            # Never imported: it brings the OpenSSL 1.1 that the client's library needs.
            "psycopg2-binary==2.9.5",
        ),
        "grps": ("grpcio-tools==1.85.1", "requests==2.34.2"),
        "tritony": ("tritony==0.0.23", "tritonclient[http,grpc]==2.73.0", "numpy==2.4.6"),
        "model_analyzer": ("triton-model-analyzer==1.58.0",),
        "mlflow": ("mlflow==3.17.2",),
        "torchserve": (
            "torchserve==0.12.0",
            *("numpy==2.4.6", "packaging==26.0", "psutil==7.2.2", "pyyaml==6.0.3"),
        ),
        "openai": ("openai==3.57.0", "cohere==7.3.1", "numpy==2.4.6"),
        "infinity": ("infinity-emb[server]==0.0.78",),
        "ovms": ("ovmsclient==2023.1", "numpy==2.4.6"),
        "graphpipe": ("numpy==2.4.6", "requests==2.34.2", "flatbuffers==25.12.19"),
    }
)

WITHOUT_DEPENDENCIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        # It pins a requests whose urllib3 cannot be imported from Python 3.10 on.
        "graphpipe": ("graphpipe==1.0.4",),
    }
)
"""What is installed after those, as it is."""

PERF_ANALYZER = "perf-analyzer==2.60.0"
"""NVIDIA's Performance Analyzer, which `perf_analyzer.py` unpacks beside the C library it needs."""
