"""Answers: JSON of a Struct with the sequence it stands for, and the problems of `muster.api.problems`."""

from collections.abc import Mapping
from typing import Final

import msgspec
from aiohttp import web

from muster.api.problems import PROBLEM_TYPE, ApiError

SEQUENCE_HEADER: Final = "Muster-Seq"
_encode: Final = msgspec.json.Encoder().encode


def answer(
    body: msgspec.Struct, sequence: int, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """A Struct as JSON, as of `sequence`."""
    return web.Response(
        body=_encode(body),
        status=status,
        content_type="application/json",
        headers={SEQUENCE_HEADER: str(sequence), **(headers or {})},
    )


def problem(error: ApiError) -> web.Response:
    """An error as `application/problem+json`."""
    headers = {"Retry-After": str(error.retry_after_s)} if error.retry_after_s else {}
    return web.Response(body=_encode(error.view), status=error.view.status, content_type=PROBLEM_TYPE, headers=headers)
