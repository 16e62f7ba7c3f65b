"""The HTTP server: the routes put together, what every request must pass, and where it listens.

Rules: it listens on loopback only, and answers only requests whose Host is a loopback name (a web page that rebinds
its own name to this machine is refused) and whose Origin, where a browser sends one, is too. Every error is an
RFC 9457 problem. An answer never says more of an internal error than that there was one.
"""

import asyncio
import ipaddress
import logging
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from muster.api.answers import SEQUENCE_HEADER, problem
from muster.api.auditing import AUDITING
from muster.api.bodies import BODY_LIMIT_BYTES, JSON_TYPE, TOML_TYPE
from muster.api.clients import CLIENTS, Clients, connections_limit
from muster.api.http_types import Handler
from muster.api.parameters import check_names
from muster.api.problems import ApiError, no_such
from muster.api.routes import QUERIES, ROUTES, TIMELESS, WRITERS
from muster.api.service import SERVICE, Service
from muster.api.whatif import ASKING, Questions
from muster.events.log import LogError

LOOPBACK: Final = "127.0.0.1"
DEFAULT_PORT: Final = 7077
SHUTDOWN_S: Final = 2.0
BACKLOG: Final = 128
"""So many connections are taken at once, before the first of them is counted."""

_logger = logging.getLogger(__name__)
_server_logger = logging.getLogger(f"{__name__}.server")


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether a record of the server's tells of a fault of ours: what is no HTTP is its sender's: one quiet line."""
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, HttpProcessingError | web.RequestPayloadError):
        return True
    _logger.info("a request is not HTTP: %s", " ".join(str(error).split())[:200])
    return False


_server_logger.addFilter(_is_ours)


class AddressError(Exception):
    """An address that the server does not listen on."""


def check_address(host: str) -> None:
    """Raise AddressError for anything but loopback."""
    if not _is_loopback(host):
        raise AddressError(
            f"{host} is not a loopback address: until there are access tokens the API listens on loopback only;"
            " reach it from elsewhere through an SSH tunnel"
        )


def _is_loopback(host: str) -> bool:
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _host_of(authority: str) -> str:
    """The host of `HOST[:PORT]`; "" where it is not of that form."""
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return ""


def _check_origin(request: web.Request) -> None:
    authority = request.headers.get("Host", "")
    if not _is_loopback(_host_of(authority)):
        raise ApiError(
            421,
            "wrong_host",
            "this server does not answer for that host",
            detail=authority[:200],
            next_step="use http://127.0.0.1:PORT or http://localhost:PORT",
        )
    if request.headers.get("Sec-Fetch-Site") == "cross-site":  # a browser says so of reads too, which name no Origin
        raise ApiError(403, "wrong_origin", "a page of another site may not use this server")
    origin = request.headers.get("Origin")
    if origin is not None and not _is_loopback(_host_of(origin.partition("//")[2])):
        raise ApiError(403, "wrong_origin", "a page of another site may not use this server", detail=origin[:200])


def _check_content(request: web.Request) -> None:
    has_body = request.body_exists or request.method == "PUT" or request.path == "/v1/jobs"
    if request.method not in ("POST", "PUT") or not has_body:
        return
    allowed = (JSON_TYPE, TOML_TYPE) if request.path == "/v1/jobs" else (JSON_TYPE,)
    if "Content-Type" not in request.headers or request.content_type not in allowed:
        raise ApiError(
            415,
            "wrong_content_type",
            "the body's content type is not one that is read here",
            detail=request.headers.get("Content-Type", "none")[:200],
            next_step=f"send it as {' or '.join(allowed)}",
        )


def _check_writable(service: Service) -> None:
    if service.read_only:
        step = "send it to the server of the cluster itself"
        raise ApiError(409, "read_only", "nothing can be written here", detail=service.read_only, next_step=step)


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Check the request, turn whatever goes wrong into a problem, and say for which sequence the answer stands."""
    with request.app[CLIENTS].answering(request):
        response = await _handle(request, handler)
    if not response.prepared:
        response.headers.setdefault(SEQUENCE_HEADER, str(request.app[SERVICE].state.sequence))
    return response


async def _handle(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        _check_origin(request)
        _check_content(request)
        called = request.match_info.handler
        if called in WRITERS:
            _check_writable(request.app[SERVICE])
        if (known := QUERIES.get(called)) is not None:
            check_names(request, known, TIMELESS.get(called, ""))
        return await handler(request)
    except ApiError as error:
        return problem(error)
    except web.HTTPRequestEntityTooLarge:
        detail = f"at most {BODY_LIMIT_BYTES} bytes are taken"
        return problem(ApiError(413, "too_large", "the body is too large", detail=detail))
    except web.RequestPayloadError as error:
        detail = " ".join(str(error).split())[:200]
        return problem(ApiError(400, "broken_body", "the body is not sent as its headers say", detail=detail))
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        return problem(ApiError(405, "wrong_method", f"{request.method} is not for this path", detail=allowed))
    except web.HTTPNotFound:
        return problem(no_such("path", request.path[:200], "/openapi.json lists the paths"))
    except (LogError, TimeoutError) as error:
        detail = str(error) or "it took too long"
        return problem(ApiError(503, "log_unavailable", "the log does not answer", detail=detail, retry_after_s=2))
    except (ConnectionError, web.HTTPException):
        raise
    except Exception:
        _logger.exception("%s %s failed", request.method, request.path)
        return problem(ApiError(500, "internal", "something went wrong here", next_step="the server's log says more"))


def make_app(service: Service, clients: Clients) -> web.Application:
    """The application with all routes."""
    app = web.Application(middlewares=[_guard], client_max_size=BODY_LIMIT_BYTES)
    app[SERVICE] = service
    app[CLIENTS] = clients
    app[AUDITING] = asyncio.Lock()
    app[ASKING] = Questions()
    for route in ROUTES:
        app.router.add_route(route.method, route.pattern, route.handler)
    return app


class HttpServer:
    """The application on an address. `port` 0 takes a free one; `url` says which."""

    def __init__(
        self, service: Service, host: str = LOOPBACK, port: int = DEFAULT_PORT, clients: Clients | None = None
    ) -> None:
        check_address(host)
        self._clients = clients or Clients(connections_limit())
        self._listening: asyncio.Server | None = None
        self._watching: asyncio.Task[None] | None = None
        self._host, self._port = host, port
        self._runner = web.AppRunner(
            make_app(service, self._clients),
            access_log=None,
            logger=_server_logger,
            shutdown_timeout=SHUTDOWN_S,
            handler_cancellation=True,  # whoever follows something and leaves is not waited for
        )

    async def start(self) -> None:
        """Listen. Raises OSError where the port is taken."""
        await self._runner.setup()
        self._clients.server = self._runner.server
        loop = asyncio.get_running_loop()
        try:
            self._listening = await loop.create_server(self._clients, self._host, self._port, backlog=BACKLOG)
        except OSError:
            await self._runner.cleanup()
            raise
        self._watching = loop.create_task(self._clients.watch())

    @property
    def url(self) -> str:
        """Where it listens."""
        assert self._listening is not None
        host, port = self._listening.sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def stop(self) -> None:
        """Stop listening; streams are cut."""
        if self._listening is not None and self._watching is not None:
            self._listening.close()
            self._watching.cancel()
            await asyncio.wait({self._watching})
        await self._runner.cleanup()
