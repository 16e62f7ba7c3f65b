"""The HTTP client of the command line, before servers that are no Muster servers."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from click.testing import CliRunner

from muster.api.cli import main


class _Stranger(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"[1]\n")

    def log_message(self, *words: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def stranger() -> Iterator[str]:
    """The address of another program's web server."""
    with HTTPServer(("127.0.0.1", 0), _Stranger) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("command", ["queue", "history", "replay", "diff 1", "audit", "events"])
def test_another_programs_server_is_told_from_musters(stranger: str, command: str) -> None:
    result = CliRunner().invoke(main, [*command.split(), "--server", stranger])
    assert result.exit_code == 69
    assert f"what answers at {stranger} is no Muster server" in result.stderr
