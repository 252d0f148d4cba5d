"""A real Spark for tests: a standalone master, two workers and a Spark Connect server on this host.

``SPARK_HOME`` names it (what ``pip install pyspark`` puts there will do), with the runtime of Iceberg for its version
in its folder ``jars``; the client is the extra ``lake-spark``.
"""

import os
import subprocess
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Final

from tests.ports import await_port, free_ports

WORKERS: Final = 2
_START_SECONDS: Final = 600
_HERE: Final = ("--host", "127.0.0.1", "--webui-port", "0")
_PACKAGE: Final = "org.apache.spark.deploy"
_QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Of each Java: none of them lives so long that better machine code or a parallel collector would pay."""


def missing() -> str | None:
    """The reason why there is none; None if there can be one."""
    home = os.environ.get("SPARK_HOME")
    if which("java") is None:
        return "there is no java"
    if home is None:
        return "SPARK_HOME does not name a Spark"
    if not list(Path(home, "jars").glob("iceberg-spark-runtime-*.jar")):
        return f"{home}/jars has no iceberg-spark-runtime-….jar"
    return None if find_spec("pyspark") else "the extra lake-spark is not installed"


@contextmanager
def spark_cluster(folder: Path) -> Generator[str, None, None]:
    """Start all of it; gives the URL of the Spark Connect server."""
    home = Path(os.environ["SPARK_HOME"])
    master, connect = free_ports(2)
    url = f"spark://127.0.0.1:{master}"
    launch = str(home / "bin/spark-class")
    limits = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / "work")]
    options = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": _QUICK,
        "spark.executor.extraJavaOptions": _QUICK,
        "spark.executor.memory": "900m",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.ansi.enabled": "false",  # the daemon has to ask for it
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(connect),
    }
    with ExitStack() as stack:
        main = [launch, f"{_PACKAGE}.master.Master", *_HERE, "--port", str(master)]
        stack.enter_context(_running(main, folder / "master.log"))
        await_port(master, _START_SECONDS)
        for number in range(WORKERS):
            log = folder / f"worker{number}.log"
            stack.enter_context(_running([launch, f"{_PACKAGE}.worker.Worker", *_HERE, *limits, url], log))
        configured = [part for pair in options.items() for part in ("--conf", "=".join(pair))]
        server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        submit = [str(home / "bin/spark-submit"), "--master", url, *configured, *server]
        stack.enter_context(_running(submit, folder / "connect.log"))
        await_port(connect, _START_SECONDS)
        yield f"sc://127.0.0.1:{connect}"


@contextmanager
def _running(command: Sequence[str], log: Path) -> Generator[None, None, None]:
    options = {"SPARK_DAEMON_JAVA_OPTS": _QUICK, "SPARK_LAUNCHER_OPTS": _QUICK}
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1", **options}
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)
