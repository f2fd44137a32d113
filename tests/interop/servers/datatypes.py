"""The datatypes that every server's identity models are made for."""

DATATYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "BF16", "FP32", "FP64", "BYTES",
)  # fmt: skip


def identity_name(datatype: str) -> str:
    """Return the name of the model that answers its one *datatype* input unchanged."""
    return f"identity_{datatype.lower()}"
