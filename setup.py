"""Chooses whether the compiled functions are part of the build; `pyproject.toml` has all the rest.

GATEWAY_PURE=1 leaves them out: the wheel then runs on every platform, with the functions in Python.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

ACCELERATED = Extension(
    "gateway._accelerated",
    sources=["gateway/_accelerated.pyx"],
    depends=sorted(str(path) for path in Path("gateway/compiled").glob("*.pxi")),
    extra_compile_args=["-g0"],  # debugging symbols would be most of its 500 KB
    optional=True,  # without a C compiler it is left out; see gateway/accelerator.py
)

setup(ext_modules=[] if os.environ.get("GATEWAY_PURE") == "1" else [ACCELERATED])
