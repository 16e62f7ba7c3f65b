"""Bodies of requests: JSON or TOML, of a limited size, refused with the place of whatever is wrong."""

import json
import tomllib
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from muster.api.problems import ApiError, FieldError
from muster.core.spec_check import SpecError, check_spec, problem_of
from muster.events.spec import JobSpec

BODY_LIMIT_BYTES: Final = 1 << 20
JSON_TYPE: Final = "application/json"
TOML_TYPE: Final = "application/toml"
T = TypeVar("T", bound=msgspec.Struct)


async def read_spec(request: web.Request) -> JobSpec:
    """The job that a body asks for, checked. Raises ApiError that points at each field that cannot be right."""
    body = await request.read()
    raw = _toml(body) if request.content_type == TOML_TYPE else _json(body)
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
    try:
        return tomllib.loads(body.decode())
    except (ValueError, RecursionError) as error:
        raise _broken("TOML", str(error) or "nested too deeply") from error


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


async def read_body(request: web.Request, kind: type[T]) -> T:
    """A small JSON body as a Struct; no body at all is one with every field left out."""
    raw = _json(await request.read() or b"{}")
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        found = problem_of(error)
        raise ApiError(
            422, "invalid_body", "the body is not as it must be", errors=[FieldError(found.pointer, found.detail)]
        ) from error
