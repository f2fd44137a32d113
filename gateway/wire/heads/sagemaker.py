"""The headers of SageMaker's containers that two protocols read.

Source: docs/protocols/mlflow.md, "9. SageMaker".
"""

from typing import Final

from gateway.wire.heads.request_id import valid_request_id
from gateway.wire.http import Headers

_ATTRIBUTES: Final = "x-amzn-sagemaker-custom-attributes"
_INFERENCE_ID: Final = "x-amzn-sagemaker-inference-id"
REQUEST_HEADERS: Final = (_ATTRIBUTES, _INFERENCE_ID)
"""What callers send."""
RESPONSE_HEADERS: Final = (_ATTRIBUTES,)
"""What responses have."""
_MOST_ATTRIBUTES: Final = 1024
_MOST_ID: Final = 64


def custom_attributes(headers: Headers) -> tuple[tuple[str, str], ...]:
    """Return the custom attributes of a request as a header of its response; nothing for none.

    Longer ones, and those with characters that a header cannot have, are not returned.
    """
    value = headers.get(_ATTRIBUTES)
    if value is None or len(value) > _MOST_ATTRIBUTES:
        return ()
    is_visible = value.isascii() and value.isprintable()
    return (("X-Amzn-SageMaker-Custom-Attributes", value),) if is_visible else ()


def inference_id(headers: Headers) -> str:
    """Return the caller's id of an inference as a request id; "" for none."""
    found = headers.get(_INFERENCE_ID) or ""
    return valid_request_id(found) if len(found) <= _MOST_ID else ""
