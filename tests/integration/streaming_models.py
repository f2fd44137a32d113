"""Models that reply many times, for tests of streams; each reports its end to a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np

from gateway.backends.base import Job
from gateway.backends.python import declares
from gateway.ir.metadata import TensorMetadata as Tensor
from gateway.ir.tensors.datatypes import Datatype

FLOOD_BYTES = 1 << 20

Answers = AsyncIterator[dict[str, Any]]

_TEXT = (Tensor("text", Datatype.BYTES, (1,)),)
_TOKEN = (Tensor("token", Datatype.BYTES, (1,)),)


def _token(text: str) -> dict[str, Any]:
    return {"token": np.array([text.encode()], dtype=object)}


def _path(inputs: dict[str, Any]) -> Path:
    return Path(inputs["text"][0].decode())


@declares(inputs=_TEXT, outputs=_TOKEN)
async def endless(inputs: dict[str, Any], _job: Job) -> Answers:
    """Yield a word every millisecond; write to the file *text* when it is stopped."""
    number = 0
    try:
        while True:
            yield _token(f"word {number} ")
            number += 1
            await asyncio.sleep(0.001)
    finally:
        _path(inputs).touch()


@declares(inputs=_TEXT, outputs=_TOKEN)
async def silent(inputs: dict[str, Any], _job: Job) -> Answers:
    """Yield one word and nothing more; write to the file *text* when it is stopped.

    The file *text*.begun exists once it has begun.
    """
    _path(inputs).with_suffix(".begun").touch()
    try:
        yield _token("word")
        await asyncio.Event().wait()
    finally:
        _path(inputs).touch()


@declares(inputs=_TEXT, outputs=_TOKEN)
async def thinking(inputs: dict[str, Any], _job: Job) -> Answers:
    """Never yield; write to the file *text* at the start and at the end."""
    path = _path(inputs)
    path.with_suffix(".begun").write_text("yes")
    try:
        await asyncio.Event().wait()
        yield _token("never")
    finally:
        path.touch()


@declares(inputs=_TEXT, outputs=(Tensor("data", Datatype.FP32, (-1,)),))
async def flood(inputs: dict[str, Any], _job: Job) -> Answers:
    """Yield a MiB as often as it is read; write to the file *text* how often that was."""
    path, data = _path(inputs), np.zeros(FLOOD_BYTES // 4, np.float32)
    number = 0
    while True:
        number += 1
        path.write_text(str(number))
        yield {"data": data}
        await asyncio.sleep(0)


@declares(inputs=_TEXT, outputs=_TOKEN)
async def breaks(_inputs: dict[str, Any], _job: Job) -> Answers:
    """Yield two words and fail."""
    yield _token("one ")
    yield _token("two")
    raise ValueError("this model breaks on purpose")


@declares(inputs=_TEXT, outputs=_TOKEN)
async def mute(_inputs: dict[str, Any], _job: Job) -> Answers:
    """Yield nothing."""
    for word in list[str]():
        yield _token(word)


_RAW = (Tensor("gmap.s_b.raw", Datatype.BYTES, (1,)),)


@declares(inputs=_RAW, outputs=_RAW)
def mapped(inputs: dict[str, Any], job: Job) -> dict[str, Any]:
    """Return a map of grps: its bytes are tensors, its other entries parameters."""
    job.reply_parameters.update(job.parameters)
    return inputs


@declares(inputs=_TEXT, outputs=_TOKEN)
async def letters(inputs: dict[str, Any], _job: Job) -> Answers:
    """Repeat the text letter by letter: the same text as `speak`, in more replies."""
    for letter in inputs["text"][0].decode():
        yield _token(letter)


@declares(inputs=_TEXT, outputs=_TOKEN)
async def shouts(inputs: dict[str, Any], _job: Job) -> Answers:
    """Repeat the text in capitals, word by word as `speak`."""
    for number, word in enumerate(inputs["text"][0].decode().upper().split(" ")):
        yield _token(f" {word}" if number else word)
