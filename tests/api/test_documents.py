"""The documents that are made from the types: valid, complete, and nothing in them points nowhere."""

import warnings
from typing import Any

import aiohttp
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it brings no types
from openapi_spec_validator import OpenAPIV31SpecValidator, validate

from muster.api.routes import ROUTES
from muster.events.types import Event


async def _document(http: aiohttp.ClientSession, path: str) -> dict[str, Any]:
    async with http.get(path) as answer:
        assert answer.status == 200
        body: dict[str, Any] = await answer.json()
        return body


async def test_openapi_is_valid_and_has_every_route(http: aiohttp.ClientSession) -> None:
    document = await _document(http, "/openapi.json")
    validate(document, cls=OpenAPIV31SpecValidator)
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(route.method, route.path) for route in ROUTES}
    fields = document["components"]["schemas"]["JobSpec"]["properties"]
    assert {"command", "gpus", "nodes", "gpu", "where"} <= fields.keys()


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        here = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return here + [ref for value in node.values() for ref in _references(value)]
    return [ref for value in node for ref in _references(value)] if isinstance(node, list) else []


def _resolve(document: dict[str, Any], reference: str) -> Any:
    node: Any = document
    for token in reference.removeprefix("#/").split("/"):
        node = node[token]
    return node


async def test_asyncapi_is_valid(http: aiohttp.ClientSession) -> None:
    document = await _document(http, "/asyncapi.json")
    with warnings.catch_warnings(action="ignore"):  # its models' field names make pydantic warn
        from asyncapi3 import AsyncAPI3  # noqa: PLC0415
    AsyncAPI3.model_validate(document)

    action = next(iter(document["operations"].values()))
    action["action"] = "shout"
    with pytest.raises(ValueError, match="Input should be 'send' or 'receive'"):
        AsyncAPI3.model_validate(document)


async def test_asyncapi_has_what_the_format_asks_for(http: aiohttp.ClientSession) -> None:
    document = await _document(http, "/asyncapi.json")
    assert document["asyncapi"] == "3.0.0"
    assert {"title", "version"} <= document["info"].keys()
    for name, channel in document["channels"].items():
        assert channel["address"].startswith(f"muster.{name}"), name
        tokens = {token.strip("{}") for token in channel["address"].split(".") if token.startswith("{")}
        assert tokens == channel["parameters"].keys()
        assert channel["messages"]
    for operation in document["operations"].values():
        assert operation["action"] in ("send", "receive")
        assert _resolve(document, operation["channel"]["$ref"])
    for reference in _references(document):
        assert _resolve(document, reference)
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


async def test_asyncapi_has_every_event(http: aiohttp.ClientSession) -> None:
    document = await _document(http, "/asyncapi.json")
    told = {message for channel in document["channels"].values() for message in channel["messages"]}
    assert {kind.__name__ for kind in Event.__args__} <= told
