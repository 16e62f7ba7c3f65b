"""The OpenAPI 3.1 document, from the table of routes and the types of bodies and answers."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from muster import __version__
from muster.api import parameters_doc
from muster.api.problems import PROBLEM_TYPE, ProblemView

if TYPE_CHECKING:
    from muster.api.routes import Route

ACCEPT: Final = "Accept"
"""Marks routes whose answer has several forms; OpenAPI says that by content types, not by a parameter."""
_REF: Final = "#/components/schemas/{name}"
_MEANING: Final = {
    200: "As asked",
    201: "In the log",
    202: "In the log; it takes effect soon",
    400: "Not understood",
    404: "Not there",
    409: "Not in the state that it is in",
    413: "Too large",
    415: "Not of a content type that is read here",
    422: "Understood, and refused",
    503: "Not now",
    507: "The log is nearly full",
}


def _types(routes: Iterable["Route"]) -> list[Any]:
    found: dict[Any, None] = {ProblemView: None}
    for route in routes:
        found |= {kind: None for kind in (route.answer, route.body) if isinstance(kind, type)}
    return list(found)


def openapi_document(routes: Iterable["Route"]) -> dict[str, Any]:
    """The document as JSON-like data."""
    routes = list(routes)
    kinds = _types(routes)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    by_kind = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_kind)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Muster",
            "version": __version__,
            "description": "A GPU-cluster scheduler on an event log. Every answer carries Muster-Seq, the sequence of "
            "the log that it stands for; errors are RFC 9457 problems.",
        },
        "servers": [{"url": "http://127.0.0.1:7077"}],
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(route: "Route", schemas: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.operation_id,
        "summary": route.summary,
        "responses": {str(status): _answer(route, schemas, status) for status in route.statuses},
    }
    named = [_path_parameter(name) for name in re.findall(r"{(\w+)}", route.path)]
    parameters = named + [_parameter(name) for name in route.parameters if name != ACCEPT]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        kinds = ["application/json", "application/toml"] if route.path == "/v1/jobs" else ["application/json"]
        operation["requestBody"] = {
            "required": route.path == "/v1/jobs" or route.method == "PUT",
            "content": {kind: {"schema": schemas[route.body]} for kind in kinds},
        }
    for status in sorted({400, *route.problems}):
        operation["responses"][str(status)] = {
            "description": _MEANING[status],
            "content": {PROBLEM_TYPE: {"schema": schemas[ProblemView]}},
        }
    return operation


def _answer(route: "Route", schemas: dict[Any, Any], status: int) -> dict[str, Any]:
    content: dict[str, Any]
    if isinstance(route.answer, str):
        content = {route.answer: {"schema": {} if route.answer == "application/json" else {"type": "string"}}}
    else:
        content = {"application/json": {"schema": schemas[route.answer]}}
    if ACCEPT in route.parameters:
        content |= {kind: {"schema": {"type": "string"}} for kind in ("application/x-ndjson", "text/event-stream")}
    header = {"description": "The sequence that the answer stands for", "schema": {"type": "integer"}}
    return {"description": _MEANING[status], "headers": {"Muster-Seq": header}, "content": content}


def _path_parameter(name: str) -> dict[str, Any]:
    lowest = {"id": 1, "index": 0}.get(name)
    schema = {"type": "string"} if lowest is None else {"type": "integer", "minimum": lowest}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _parameter(name: str) -> dict[str, Any]:
    where = "header" if name[0].isupper() else "query"
    return {"name": name, "in": where, **parameters_doc.PARAMETERS[name]}
