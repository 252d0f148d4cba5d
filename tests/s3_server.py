"""An object store: moto's server, a process of its own that speaks S3 over HTTP."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Final

from tests.ports import await_port, free_port

BUCKET: Final = "accounting"
_START_SECONDS: Final = 60


class S3Server:
    """A running server with an empty bucket.

    Args:
        port: on loopback.
    """

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self._port = port

    def request(self, method: str, path: str) -> int:
        """Ask it without credentials; returns the status."""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            connection.request(method, path)
            return connection.getresponse().status
        finally:
            connection.close()


def s3_properties(endpoint: str) -> dict[str, str]:
    """The properties of a catalog that say how it is reached."""
    return {
        "s3.endpoint": endpoint,
        "s3.region": "eu",
        "s3.access-key-id": "key",
        "s3.secret-access-key": "secret",
    }


@contextmanager
def s3_server() -> Generator[S3Server, None, None]:
    """A server with a bucket."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        await_port(port, _START_SECONDS)
        server = S3Server(port)
        assert server.request("PUT", f"/{BUCKET}") == 200
        yield server
    finally:
        process.terminate()
        process.wait(30)
