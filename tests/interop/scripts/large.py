"""Large tensors through tritonclient over HTTP: prints whether each came back as it was sent.

python large.py HOST:PORT
"""

import json
import sys

import numpy as np
import tritonclient.http as triton

SIZES = (1000, 300_000, 4_000_000)


def main() -> None:
    """Send each, twice on one connection."""
    client = triton.InferenceServerClient(sys.argv[1], network_timeout=60)
    seen = {}
    for size in SIZES:
        array = np.random.default_rng(size).random((1, size), dtype=np.float32)
        infer_input = triton.InferInput("INPUT0", list(array.shape), "FP32")
        infer_input.set_data_from_numpy(array, binary_data=True)
        found = [client.infer("identity_fp32", [infer_input]).as_numpy("OUTPUT0") for _ in range(2)]
        seen[str(size)] = all(bool((each == array).all()) for each in found)
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main()
