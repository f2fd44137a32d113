"""Calls a gateway with MLflow's scoring client, and prints what it sees as JSON."""

import json
import sys
from typing import Any

import numpy as np
import pandas as pd
from mlflow.pyfunc.scoring_server.client import ScoringServerClient

HOST, PORT = sys.argv[1].rsplit(":", 1)
SEEN: dict[str, Any] = {}

client = ScoringServerClient(HOST, int(PORT))
client.wait_server_ready(timeout=30)


def predictions(data: Any, params: dict[str, Any] | None = None) -> Any:
    """Return what the client reads."""
    found = client.invoke(data, params=params).get_predictions()
    return found.to_dict(orient="list") if isinstance(found, pd.DataFrame) else found


rows = np.array([[1, 2, 3, 4], [0.5, 0.25, 0, 0]], np.float32)
SEEN["array"] = predictions(rows)
SEEN["list"] = predictions(rows.tolist())
SEEN["frame"] = predictions(pd.DataFrame(rows, columns=list("abcd"), index=[7, 9]))
SEEN["text"] = predictions(json.dumps({"instances": rows.tolist()}))
SEEN["params"] = predictions(rows, {"scale": 2.0})
try:
    client.invoke([[1, "q", 3, 4]])
    SEEN["refused"] = None
except Exception as error:  # noqa: BLE001  # the client raises no other class
    SEEN["refused"] = str(error)
print(json.dumps(SEEN))
