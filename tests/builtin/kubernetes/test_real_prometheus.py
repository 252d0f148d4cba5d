"""A real Prometheus: Debian's package (tests/services/prometheus-install), behind TLS and a path prefix."""

import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path

import pytest

from auditord_hookspecs import Record
from tests.builtin.kubernetes.conftest import Site
from tests.builtin.kubernetes.pod_maker import NOW, make_pod, over
from tests.host_certificates import Authority
from tests.ports import free_port

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        shutil.which("prometheus") is None or shutil.which("promtool") is None,
        reason="Prometheus is not installed; as root, tests/services/prometheus-install installs it",
    ),
]

SECONDS, STEP = 3600, 30


def exposition() -> str:
    """An hour of a pod with a counter, a peak of memory and a restart of the node's agent; and of another pod."""
    cpu, memory = ["# TYPE pod_cpu_usage_seconds counter"], ["# TYPE pod_memory_working_set_bytes gauge"]
    for second in range(0, SECONDS, STEP):
        at = (NOW - timedelta(seconds=SECONDS - second)).timestamp()
        for name, rate in (("job1", 0.5), ("other", 9)):
            labels = f'{{namespace="grid",pod="{name}",node="n1"}}'
            cpu.append(f"pod_cpu_usage_seconds_total{labels} {second * rate} {at:.0f}")
            peak = 3_000_000_000 if second == SECONDS // 2 else 1_000_000_000
            memory.append(f"pod_memory_working_set_bytes{labels} {peak} {at:.0f}")
    return "\n".join([*cpu, *memory, "# EOF", ""])


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Whom the collector trusts."""
    return Authority(tmp_path)


@pytest.fixture
def url(tmp_path: Path, authority: Authority) -> Generator[str, None, None]:
    """A Prometheus that remembers the hour."""
    (tmp_path / "hour").write_text(exposition())
    data = tmp_path / "data"
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(tmp_path / "hour"), str(data)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    host = authority.issue("localhost")
    web = tmp_path / "web.yml"
    web.write_text(f"tls_server_config:\n  cert_file: {host.certificate}\n  key_file: {host.key}\n")
    (tmp_path / "prometheus.yml").write_text("{}\n")
    port = free_port()
    server = [
        "prometheus",
        f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={data}",
        f"--web.listen-address=127.0.0.1:{port}",
        f"--web.config.file={web}",
        "--web.route-prefix=/k8s",
        "--web.external-url=/k8s",
    ]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(server, stdout=log, stderr=log) as process:
        try:
            _wait_for(f"https://localhost:{port}/k8s/-/ready", authority, tmp_path / "log")
            yield f"https://localhost:{port}/k8s"
        finally:
            process.terminate()


def _wait_for(url: str, authority: Authority, log: Path) -> None:
    trust, deadline = ssl.create_default_context(cafile=authority.file), time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, context=trust, timeout=5):  # noqa: S310 https, and our own
                return
        except (urllib.error.URLError, OSError):
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)


def amounts(record: Record) -> dict[str, int]:
    return {component.name: component.amount for component in record.components}


async def test_it_knows_what_a_pod_used(url: str, authority: Authority, site: Site) -> None:
    site.server.put(over(make_pod(), NOW - timedelta(seconds=1)))
    options = {"url": url, "tls": {"ca": authority.file}}
    [record] = await site.collect(prometheus=options, components="auditor")
    assert (amounts(record)["cpu"], amounts(record)["memory"]) == ((SECONDS - STEP) // 2, 3_000_000_000)


async def test_a_pod_that_it_does_not_know_and_a_question_that_it_cannot_read(
    url: str, authority: Authority, site: Site
) -> None:
    site.server.put(over(make_pod("stranger"), NOW - timedelta(seconds=1)))
    options = {"url": url, "tls": {"ca": authority.file}, "cpu_query": "sum(("}
    for _ in range(2):
        assert await site.collect(prometheus=options) == []
        site.context.moment += timedelta(minutes=5)
    [record] = await site.collect(prometheus=options)
    assert not {"TotalCPU", "MaxRSS"} & amounts(record).keys()
