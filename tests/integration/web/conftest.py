"""The server as a process of its own, over a real store."""

import json
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from auditord.duplicates import Duplicates

SERVER = Path(__file__).with_name("server_process.py")


@contextmanager
def _server(folder: Path, store: str, duplicates: Duplicates) -> Generator[int, None, None]:
    listen = ["127.0.0.1:0", f"unix:{folder}/api.sock"]
    command = [sys.executable, str(SERVER), str(folder), store, duplicates.value, *listen]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the server did not start"
        yield int(json.loads(line)[0].rpartition(":")[2])
        process.terminate()
        assert process.wait(20) == 0, "the server did not end in order"


@pytest.fixture
def start_server(tmp_path: Path, store_url: str) -> Generator[Callable[[Duplicates], int], None, None]:
    """Starts a server on an empty store, with the given meaning of duplicates; returns its port."""
    with ExitStack() as stack:
        yield lambda duplicates: stack.enter_context(_server(tmp_path, store_url, duplicates))


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Generator[int, None, None]:
    """The port of a server that the tests of a module share; it listens on ``api.sock`` in its folder as well."""
    folder = tmp_path_factory.mktemp("server")
    with _server(folder, f"sqlite:///{folder}/records.db", Duplicates.SAME_RUN) as found:
        yield found
