"""Bodies of requests: JSON or TOML, of a limited size, refused with the place of whatever is wrong."""

import asyncio
import json
import re
import tomllib
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from muster.api.clients import read_whole
from muster.api.problems import ApiError, FieldError
from muster.core.conversion import SpecError, convert
from muster.core.spec_check import check_spec
from muster.events.spec import JobSpec

BODY_LIMIT_BYTES: Final = 1 << 20
TOML_LIMIT_BYTES: Final = 1 << 18
"""A TOML parser takes seconds for a megabyte."""
JSON_TYPE: Final = "application/json"
TOML_TYPE: Final = "application/toml"
T = TypeVar("T", bound=msgspec.Struct)

DEEPEST_KEY: Final = 16
_TEXT: Final = re.compile(  # each part takes all it can and gives nothing back: the time is linear
    r'''"""(?:(?!""")(?:[^\\]|\\.))*+(?:""")?|\'{3}(?:(?!\'{3}).)*+(?:\'{3})?'''
    r"""|"(?:[^"\\\n]|\\.)*+"?|'[^'\n]*+'?|#[^\n]*+""",
    re.DOTALL,
)
_BLANKS: Final = re.compile(r"[ \t]+")
_LONG_KEY: Final = re.compile(rf"(?:\.[A-Za-z0-9_-]+){{{DEEPEST_KEY}}}")


async def read_spec(request: web.Request) -> JobSpec:
    """The job that a body asks for, checked. Raises ApiError that points at each field that cannot be right."""
    body = await read_whole(request)
    raw = await asyncio.to_thread(_toml, body) if request.content_type == TOML_TYPE else _json(body)
    try:
        return check_spec(raw)
    except SpecError as error:
        raise ApiError(
            422,
            "invalid_job",
            "this is no job that Muster can run",
            next_step="correct the fields named in errors; /openapi.json describes all of them",
            errors=[FieldError(problem.pointer, problem.detail) for problem in error.problems],
        ) from error


def _toml(body: bytes) -> dict[str, Any]:
    if len(body) > TOML_LIMIT_BYTES:
        detail = f"at most {TOML_LIMIT_BYTES} bytes of TOML are taken"
        raise ApiError(413, "too_large", "the body is too large", detail=detail, next_step="send it as JSON")
    try:
        text = body.decode()
        long_key = _LONG_KEY.search(_BLANKS.sub("", _TEXT.sub("t", text)))
        if not long_key:
            return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise _broken("TOML", str(error) or "nested too deeply") from error
    raise _broken("TOML", f"a key has more than {DEEPEST_KEY} parts")  # a parser's time grows with their cube


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _broken("JSON", _place(body) or str(error) or "nested too deeply") from error


def _place(body: bytes) -> str:
    """At which line and column a body stops being JSON ("" = the second opinion finds nothing wrong)."""
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        return f"{error.msg} (at line {error.lineno}, column {error.colno})"
    except (ValueError, RecursionError) as error:
        return str(error)
    return ""


def _broken(language: str, detail: str) -> ApiError:
    return ApiError(
        400,
        "broken_body",
        f"the body is not {language}",
        detail=detail,
        errors=[FieldError("", detail)],
        next_step="correct it at the place named",
    )


async def read_json(request: web.Request) -> Any:
    """A JSON body, decoded. Raises ApiError."""
    return _json(await read_whole(request))


async def read_body(request: web.Request, kind: type[T]) -> T:
    """A small JSON body as a Struct; no body at all is one with every field left out."""
    raw = _json(await read_whole(request) or b"{}")
    try:
        return convert(raw, kind)
    except SpecError as error:
        found = [FieldError(problem.pointer, problem.detail) for problem in error.problems]
        raise ApiError(422, "invalid_body", "the body is not as it must be", errors=found) from error
