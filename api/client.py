"""The HTTP client of the command line. Standard library only, so that a command starts at once."""

import http.client
import json
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

DEFAULT_SERVER: Final = "http://127.0.0.1:7077"
TIMEOUT_S: Final = 45.0
_SEQUENCE_HEADER: Final = "Muster-Seq"
"""Every answer of a server has it."""
JSON_TYPE: Final = "application/json"
SEND_TRIES: Final = 5
RETRY_PAUSE_S: Final = 0.2

Json = dict[str, Any]


class UnreachableError(Exception):
    """No answer from the server. `sent` tells whether the request may have reached it."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class RefusedError(Exception):
    """The server answered with a problem (RFC 9457): `problem` is its body, `status` its HTTP status."""

    def __init__(self, status: int, problem: Json) -> None:
        super().__init__(str(problem.get("title") or f"HTTP status {status}"))
        self.status = status
        self.problem = problem


def parse_server(server: str) -> tuple[str, int]:
    """`http://HOST:PORT` as host and port. Raises ValueError."""
    parts = urlsplit(server if "//" in server else f"http://{server}")
    if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/"):
        raise ValueError(f"{server!r} is no server address: write http://HOST:PORT")
    return parts.hostname, parts.port or 80


class Client:
    """One server, as one user. Every call opens a connection of its own."""

    def __init__(self, server: str, user: str) -> None:
        self.server = server
        self._host, self._port = parse_server(server)
        self._user = user

    def get(self, path: str, parameters: Mapping[str, Any] | None = None, *, timeout_s: float = TIMEOUT_S) -> Json:
        """Read a JSON object. Raises RefusedError or UnreachableError."""
        return self._send("GET", _with_query(path, parameters), None, {}, timeout_s)

    def post(
        self,
        path: str,
        body: Json | None = None,
        parameters: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> Json:
        """Write. A connection lost on the way is tried again only where an Idempotency-Key makes that harmless."""
        tries = SEND_TRIES if "Idempotency-Key" in (headers or {}) else 1
        return self._write("POST", path, body, parameters, dict(headers or {}), tries, timeout_s)

    def put(self, path: str, body: Any, parameters: Mapping[str, Any] | None = None) -> Json:
        """Make it so. Sending it again makes no difference, so a connection lost on the way is tried again."""
        return self._write("PUT", path, body, parameters, {}, SEND_TRIES)

    def delete(self, path: str) -> Json:
        """Take it away."""
        return self._write("DELETE", path, None, None, {}, 1)

    def _write(
        self,
        method: str,
        path: str,
        body: Any,
        parameters: Mapping[str, Any] | None,
        headers: dict[str, str],
        tries: int,
        timeout_s: float = TIMEOUT_S,
    ) -> Json:
        payload = json.dumps(body, default=str).encode() if body is not None else b""
        if body is not None:
            headers["Content-Type"] = JSON_TYPE
        for attempt in range(1, tries + 1):
            try:
                return self._send(method, _with_query(path, parameters), payload, headers, timeout_s)
            except UnreachableError:
                if attempt == tries:
                    raise
                time.sleep(RETRY_PAUSE_S * attempt)
        raise AssertionError("unreachable")

    def stream(
        self,
        path: str,
        parameters: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        body: Json | None = None,
    ) -> Iterator[bytes]:
        """Read an answer that may never end, as it comes, to a `body` where there is one. Raises like `get`, also in
        the middle."""
        connection = self._connect(None)
        method, payload, headers = "GET", None, dict(headers or {})
        if body is not None:
            method, payload, headers["Content-Type"] = "POST", json.dumps(body, default=str).encode(), JSON_TYPE
        try:
            answer = self._request(connection, method, _with_query(path, parameters), payload, headers)
            if answer.status >= http.client.BAD_REQUEST:
                _raise_for(answer.status, answer.read())
            while chunk := answer.read1(65536):
                yield chunk
        except (OSError, http.client.HTTPException) as error:
            raise UnreachableError(f"the connection to {self.server} broke: {error}", sent=True) from error
        finally:
            connection.close()

    def _send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], timeout_s: float) -> Json:
        connection = self._connect(timeout_s)
        try:
            answer = self._request(connection, method, path, body, headers)
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise UnreachableError(f"no answer from {self.server}: {error}", sent=True) from error
        finally:
            connection.close()
        if answer.status >= http.client.BAD_REQUEST:
            _raise_for(answer.status, content)
        decoded: Json = json.loads(content)
        return decoded

    def _connect(self, timeout_s: float | None) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        try:
            connection.connect()
        except OSError as error:
            raise UnreachableError(f"no server at {self.server}: {error.strerror or error}", sent=False) from error
        assert isinstance(connection.sock, socket.socket)
        connection.sock.settimeout(timeout_s)
        return connection

    def _request(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> http.client.HTTPResponse:
        connection.request(method, path, body, {"Muster-User": self._user, **headers})
        answer = connection.getresponse()
        if answer.status < http.client.BAD_REQUEST and _SEQUENCE_HEADER not in answer.headers:
            answer.close()
            raise UnreachableError(f"what answers at {self.server} is no Muster server", sent=True)
        return answer


def _with_query(path: str, parameters: Mapping[str, Any] | None) -> str:
    chosen = {name: value for name, value in (parameters or {}).items() if value is not None}
    return f"{path}?{urlencode(chosen)}" if chosen else path


def _raise_for(status: int, content: bytes) -> None:
    try:
        problem = json.loads(content)
    except ValueError:
        problem = {}
    raise RefusedError(status, problem if isinstance(problem, dict) else {})
