"""The container for real: built twice with podman, run read-only as its user, stopped, and started with its volume."""

import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.json_objects import objects
from tests.ports import free_port

ROOT: Final = Path(__file__).parents[3]
BASE: Final = "localhost/auditord-test-base"
CERTIFICATES: Final = "/etc/ssl/certs"

# crun refuses a machine on which both versions of cgroups are mounted; podman gets a view without the second.
ONE_CGROUP: Final = 'umount /sys/fs/cgroup/unified 2> /dev/null; exec "$@"'
LIMITS: Final = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096")
# No systemd runs here that podman could ask for a timer; the health check is called by hand.
RUN: Final = ("--network=host", "--no-healthcheck", "--read-only", "--tmpfs=/tmp", *LIMITS)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.getuid() != 0, reason="the test's namespaces need root"),
]


def podman(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = ["unshare", "--mount", "sh", "-c", ONE_CGROUP, "sh", "podman", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, f"podman {' '.join(words)}\n{done.stdout}{done.stderr}"
    return done


def built(tag: str) -> str:
    """Build without any layer of an earlier build; the digests of the base, and of all that is in it besides."""
    options = [
        "--quiet",
        "--no-cache",
        "--layers=false",  # one for each instruction would take time, and stay behind
        "--isolation=chroot",
        "--network=host",
        "--format=docker",
        "--timestamp=1767225600",
        f"--volume={CERTIFICATES}:{CERTIFICATES}:ro",
        f"--build-arg=PYTHON_IMAGE={BASE}",
        f"--file={ROOT}/etc/container/Containerfile",
        f"--tag={tag}",
    ]
    podman("build", *options, str(ROOT))
    return podman("inspect", "--format={{.RootFS.Layers}}", tag).stdout


@pytest.fixture(scope="module")
def image() -> Generator[str, None, None]:
    if shutil.which("podman") is None or podman("image", "exists", BASE, check=False).returncode:
        pytest.skip("needs podman and a base image (tests/services/container-install)")
    tag = f"localhost/auditord-test-{os.getpid()}"
    try:
        assert built(tag) == built(f"{tag}-again")
        yield tag
    finally:
        podman("image", "rm", "--force", tag, f"{tag}-again", check=False)


class Container:
    """A container that runs the daemon on a port of the host."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{free_port()}"

    def run(self, image: str) -> None:
        environment = f"--env=AUDITORD_API__LISTEN={json.dumps([self.url.removeprefix('http://')])}"
        volume = f"--volume={self.name}:/var/lib/auditord"
        podman("run", "--detach", f"--name={self.name}", *RUN, environment, volume, image)
        self.wait()

    def wait(self) -> None:
        """Return when it is healthy by the image's own health check."""
        for _ in range(600):
            if podman("exec", self.name, "healthcheck", check=False).returncode == 0:
                return
            time.sleep(0.2)
        raise AssertionError(podman("logs", self.name, check=False).stderr)

    def page(self) -> str:
        """The overview, as a browser gets it."""
        request = urllib.request.Request(f"{self.url}/", headers={"Accept": "text/html"})  # noqa: S310 a URL of ours
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 the same
            return str(answer.read().decode())

    def records(self) -> Sequence[Any]:
        with urllib.request.urlopen(f"{self.url}/records", timeout=10) as answer:  # noqa: S310 a URL of ours
            return objects(answer.read())

    def post(self, record: Any) -> None:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/record", json.dumps(record).encode(), headers)  # noqa: S310 ours
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 a URL of ours
            assert answer.status == 200


def job(name: str) -> Any:
    times = {"start_time": "2026-06-01T08:00:00Z", "stop_time": "2026-06-01T09:00:00Z"}
    return {"record_id": name, "meta": {}, "components": [], **times}


def ids(records: Sequence[Any]) -> list[str]:
    return sorted(each["record_id"] for each in records)


def test_the_image_names_what_is_in_it(image: str) -> None:
    text = podman("run", "--rm", *RUN, "--entrypoint=cat", image, "/opt/auditord/sbom.cdx.json").stdout
    bill = json.loads(text)
    assert bill["bomFormat"] == "CycloneDX"
    assert {"aiohttp", "kubernetes_asyncio", "msgspec", "psycopg"} <= {each["name"] for each in bill["components"]}


def test_the_image_has_no_programs_of_dependencies(image: str) -> None:
    names = podman("run", "--rm", *RUN, "--entrypoint=ls", image, "/opt/auditord/bin").stdout.split()
    programs = {name for name in names if not name.startswith("pip")}
    assert {"auditord", "auditord-epilog"} <= programs
    assert {name for name in programs if not name.startswith(("auditord", "python"))} == set()


def test_it_runs_read_only_as_nobody_in_particular(image: str) -> None:
    assert podman("run", "--rm", *RUN, "--entrypoint=id", image, "-u").stdout == "10001\n"
    volume = f"{image.rpartition('/')[2]}-demo"
    try:
        done = podman("run", "--rm", *RUN, f"--volume={volume}:/var/lib/auditord", image, "demo", "--check")
        assert "The demo succeeded." in done.stdout
    finally:
        podman("volume", "rm", "--force", volume, check=False)


def test_records_outlive_the_container(image: str) -> None:
    container = Container(image.rpartition("/")[2])
    try:
        container.run(image)
        container.post(job("before"))
        assert "<h1" in container.page()
        podman("exec", container.name, "healthcheck", "--alive")
        podman("stop", "--time=60", container.name)
        assert podman("inspect", "--format={{.State.ExitCode}}", container.name).stdout == "0\n"
        podman("start", container.name)
        container.wait()
        container.post(job("after the restart"))
        podman("rm", "--force", "--time=60", container.name)
        container.run(image)
        assert ids(container.records()) == ["after the restart", "before"]
    finally:
        podman("rm", "--force", container.name, check=False)
        podman("volume", "rm", "--force", container.name, check=False)
