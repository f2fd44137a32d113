"""The containers of Vertex AI.

Source: docs/how-to/vertex.md.
"""

from typing import Final

from gateway.api.platform import Platform

_FACTS: Final = (
    "MODE",
    "MODE_VERSION",
    "HTTP_PORT",
    "PREDICT_ROUTE",
    "HEALTH_ROUTE",
    "ENDPOINT_ID",
    "DEPLOYED_MODEL_ID",
    "PROJECT_NUMBER",
    "MACHINE_TYPE",
)

PLATFORM: Final = Platform(
    name="Vertex AI",
    marker="AIP_MODE",
    facts={key.removeprefix("MODE_").lower(): f"AIP_{key}" for key in _FACTS},
    contract="AIP_MODE_VERSION",
    known_contract="1",
    storage="AIP_STORAGE_URI",
    port="AIP_HTTP_PORT",
    routes={
        "AIP_PREDICT_ROUTE": ("vertex", "predict"),
        "AIP_HEALTH_ROUTE": ("vertex", "health"),
    },
)
