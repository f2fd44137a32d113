"""The model of the recordings: doubles numbers, and writes texts in capitals."""

from typing import Any

import numpy as np
from seldon_core.flask_utils import SeldonMicroserviceException


class SeldonDemo:
    """A model of Seldon, which needs no base class."""

    def predict(self, data: Any, names: Any = None, meta: Any = None) -> Any:
        """Return what the model makes of an array, a text, bytes or JSON."""
        if isinstance(data, bytes | bytearray):
            return data[::-1]
        if isinstance(data, str):
            if data == "refuse":
                raise SeldonMicroserviceException("refused", status_code=422, reason="MY_REASON")
            return data.upper()
        if isinstance(data, dict):
            return {"got": data}
        return data * 2 if np.asarray(data).dtype.kind in "fiu" else data

    def tags(self) -> dict[str, str]:
        """Return the tags of every answer."""
        return {"tag": "t"}
