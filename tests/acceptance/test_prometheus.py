"""A real Prometheus scrapes a daemon with authenticators by the example in etc/prometheus."""

import json
import shutil
import subprocess
import time
import urllib.request
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from auditord.testing.daemon import running_daemon
from auditord_builtin.access.tokens import TokenFile, new_token
from tests.ports import free_port

EXAMPLE: Final = Path(__file__).parents[2] / "etc/prometheus/prometheus.yml"

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None,
    reason="Prometheus is not installed; as root, tests/services/prometheus-install installs it",
)


def wait_for_scrape(url: str) -> list[dict[str, Any]]:  # Any: JSON
    """Return the targets when each was scraped once."""
    deadline = time.monotonic() + 60
    while True:
        with suppress(OSError), urllib.request.urlopen(f"{url}/api/v1/targets", timeout=5) as answer:  # noqa: S310 ours
            targets: list[dict[str, Any]] = json.load(answer)["data"]["activeTargets"]
            if targets and all(each["health"] != "unknown" for each in targets):
                return targets
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_example_scrapes_with_a_token(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    stored, token = new_token("prometheus", ["monitor"], datetime.now(UTC), None)
    TokenFile(tmp_path / "state").change(lambda _: [stored])
    (tmp_path / "token").write_text(f"{token}\n")
    document = yaml.safe_load(EXAMPLE.read_text())
    [job] = document["scrape_configs"]
    del job["tls_config"]
    with running_daemon(tmp_path, {"authenticators": {"tokens": {"kind": "tokens"}}}) as daemon:
        job |= {"scheme": "http", "scrape_interval": "1s"}
        job["static_configs"] = [{"targets": [daemon.url.removeprefix("http://")]}]
        with_token = {**job, "authorization": {"credentials_file": str(tmp_path / "token")}}
        without = {name: value for name, value in job.items() if name != "authorization"} | {"job_name": "stranger"}
        (tmp_path / "prometheus.yml").write_text(json.dumps({"scrape_configs": [with_token, without]}))
        address = f"127.0.0.1:{free_port()}"
        server = [
            "prometheus",
            f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/data",
            f"--web.listen-address={address}",
        ]
        with (tmp_path / "log").open("w") as log, subprocess.Popen(server, stdout=log, stderr=log) as process:
            try:
                targets = wait_for_scrape(f"http://{address}")
            finally:
                process.terminate()
    assert {each["scrapePool"]: each["health"] for each in targets} == {"auditord": "up", "stranger": "down"}
