"""`/openapi.json` and `/asyncapi.json`."""

from functools import cache

import msgspec
from aiohttp import web

from muster.api.asyncapi import asyncapi_document
from muster.api.openapi import openapi_document


@cache
def _openapi() -> bytes:
    from muster.api.routes import ROUTES  # noqa: PLC0415 - the table of routes names this module's handlers

    return msgspec.json.encode(openapi_document(ROUTES))


@cache
def _asyncapi() -> bytes:
    return msgspec.json.encode(asyncapi_document())


async def openapi_json(request: web.Request) -> web.Response:  # noqa: ARG001 - a handler's signature
    """The HTTP interface as OpenAPI 3.1."""
    return web.Response(body=_openapi(), content_type="application/json")


async def asyncapi_json(request: web.Request) -> web.Response:  # noqa: ARG001 - a handler's signature
    """The log's events as AsyncAPI 3.0."""
    return web.Response(body=_asyncapi(), content_type="application/json")
