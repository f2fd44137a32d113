"""The OpenAPI document of `/seldon.json`: the paths of the protocol, and its message."""

from typing import Any, Final

import orjson

_MESSAGE: Final = {"$ref": "#/components/schemas/SeldonMessage"}
_JSON: Final = {"application/json": {"schema": _MESSAGE}}
_ANSWER: Final = {"description": "A SeldonMessage.", "content": _JSON}


def _post(title: str) -> dict[str, Any]:
    return {
        "post": {
            "operationId": title,
            "requestBody": {"required": True, "content": _JSON},
            "responses": {"200": _ANSWER, "400": _ANSWER},
        }
    }


def _get(title: str) -> dict[str, Any]:
    return {"get": {"operationId": title, "responses": {"200": {"description": title}}}}


_DATA: Final = {
    "type": "object",
    "properties": {
        "names": {"type": "array", "items": {"type": "string"}},
        "ndarray": {"type": "array", "items": {}},
        "tensor": {
            "type": "object",
            "properties": {
                "shape": {"type": "array", "items": {"type": "integer", "format": "int32"}},
                "values": {"type": "array", "items": {"type": "number", "format": "double"}},
            },
        },
        "tftensor": {"type": "object"},
    },
}
_STATUS: Final = {
    "type": "object",
    "properties": {
        "code": {"type": "integer", "format": "int32"},
        "info": {"type": "string"},
        "reason": {"type": "string"},
        "status": {"type": "integer", "format": "int32"},
    },
}
_DOCUMENT: Final = {
    "openapi": "3.0.0",
    "info": {"title": "Seldon External API", "version": "0.1"},
    "paths": {
        "/api/v1.0/predictions": _post("Predict"),
        "/seldon/{namespace}/{deployment}/api/v1.0/predictions": {
            **_post("PredictDeployment"),
            "parameters": [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in ("namespace", "deployment")
            ],
        },
        "/predict": _post("PredictMicroservice"),
        "/api/v1.0/feedback": _post("SendFeedback"),
        "/api/v1.0/metadata": _get("Metadata"),
        "/health/ping": _get("HealthPing"),
        "/health/status": _get("HealthStatus"),
    },
    "components": {
        "schemas": {
            "SeldonMessage": {
                "type": "object",
                "properties": {
                    "status": _STATUS,
                    "meta": {
                        "type": "object",
                        "properties": {"puid": {"type": "string"}, "tags": {"type": "object"}},
                    },
                    "data": _DATA,
                    "binData": {"type": "string", "format": "byte"},
                    "strData": {"type": "string"},
                    "jsonData": {},
                },
            }
        }
    },
}

OPENAPI: Final = orjson.dumps(_DOCUMENT)
