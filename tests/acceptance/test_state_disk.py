"""The real daemon on a state disk that is full, turns read-only or loses power: no start is refused afterwards.

STATE_DISK_TEST_SECONDS says how long the test with faults at random goes on for each record store: 20 without it.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from random import Random

import pytest

from auditord_hookspecs.wire import decode_record
from tests.acceptance.daemon_process import PATIENCE, DaemonProcess, wait_until
from tests.postgres_server import NoServer, OwnServer, own_server

pytestmark = pytest.mark.timeout(3600)

AUDITORD = (sys.executable, "-m", "auditord")
SECONDS = float(os.environ.get("STATE_DISK_TEST_SECONDS", "20"))


class Disk:
    """A small file system of its own, which can be filled and cut off."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "disk"
        self._image = folder / "disk.img"
        self._filling = self.folder / "filling"

    def make(self) -> None:
        """Make the file system and mount it; skip the test where that is impossible."""
        self.folder.mkdir()
        with self._image.open("wb") as image:
            image.truncate(24 << 20)
        if os.geteuid() != 0 or self._call("mkfs.ext4", "-q", "-m", "0", self._image) or self.mount():
            pytest.skip("mounting a small ext4 needs root and a loop device")

    def mount(self) -> int:
        return self._call("mount", "-o", "loop", self._image, self.folder)

    def unmount(self) -> None:
        wait_until(lambda: self._call("umount", self.folder) == 0)

    def renew(self) -> None:
        """Mount it anew.

        It stays read-only as long as another namespace has the old mount, such as that of a container that was started
        meanwhile.
        """
        wait_until(
            lambda: self._call("umount", self.folder) == self.mount() == self._call("touch", self._filling) == 0,
            lambda: f"{self.folder} stays read-only",
        )

    def fill(self) -> None:
        """Leave no room."""
        with self._filling.open("wb", buffering=0) as file, suppress(OSError):
            for size in (1 << 16, 1 << 10, 1):
                with suppress(OSError):
                    while True:
                        file.write(b"\0" * size)

    def free(self) -> None:
        self._filling.unlink(missing_ok=True)

    def cut_off(self) -> None:
        """Let the kernel turn it read-only while it is in use, as after a fault; what was not synced is lost."""
        assert self._call("mount", "-o", "remount,abort", self.folder) == 0

    @staticmethod
    def _call(*command: str | Path) -> int:
        return subprocess.run(command, capture_output=True, check=False).returncode


class Site(DaemonProcess):
    """A daemon whose state folder is on the disk, and whose record store may be elsewhere."""

    def __init__(self, folder: Path, disk: Disk, url: str) -> None:
        super().__init__(folder / "log", {"PATH": os.environ["PATH"], "HOME": str(folder)})
        self.disk = disk
        self.file = folder / "auditord.yml"
        document = {
            "state_dir": str(disk.folder / "state"),
            "api": {"listen": ["127.0.0.1:0"]},
            "store": {"url": url},
            "shutdown": {"grace": "1s"},
        }
        self.file.write_text(json.dumps(document))
        self.acknowledged = set[str]()
        self._numbers = count(1)

    @contextmanager
    def daemon(self) -> Generator["subprocess.Popen[bytes]", None, None]:
        """A daemon that is ready."""
        with self.running([*AUDITORD, "run", "--config", self.file]) as process:
            wait_until(lambda: "is ready" in self.text() or process.poll() is not None, self.last_words)
            assert process.poll() is None, self.last_words()
            yield process

    def post(self) -> None:
        """Post a record, and note it if the daemon takes it."""
        name = f"job-{next(self._numbers)}"
        record = {"record_id": name, "components": list[str](), "start_time": "2024-02-03T04:05:06Z"}
        body = json.dumps({**record, "stop_time": "2024-02-03T05:05:06Z"}).encode()
        request = urllib.request.Request(f"{self.url()}/record", body, {"content-type": "application/json"})  # noqa: S310 our own
        with suppress(OSError), urllib.request.urlopen(request, timeout=PATIENCE):  # noqa: S310 our own
            self.acknowledged.add(name)

    def stored(self) -> list[str]:
        try:
            with urllib.request.urlopen(f"{self.url()}/records", timeout=PATIENCE) as answer:  # noqa: S310 our own
                lines = answer.read().replace(b"}{", b"}\n{").splitlines()
        except urllib.error.HTTPError:
            return []
        return sorted(decode_record(line).record_id for line in lines)


@pytest.fixture
def disk(tmp_path: Path) -> Generator[Disk, None, None]:
    disk = Disk(tmp_path)
    disk.make()
    yield disk
    disk.unmount()


@pytest.fixture
def server() -> Generator[OwnServer, None, None]:
    try:
        with own_server(()) as running:
            yield running
    except NoServer as error:
        pytest.skip(str(error))


def test_entries_that_could_not_be_settled_on_a_full_disk_are_delivered_after_a_kill(
    tmp_path: Path, disk: Disk, server: OwnServer
) -> None:
    site = Site(tmp_path, disk, server.url)
    assert site.run([*AUDITORD, "database", "migrate", "--config", site.file]).returncode == 0
    with site.daemon() as process:
        server.stop()
        for _ in range(5):
            site.post()
        assert len(site.acknowledged) == 5
        disk.fill()
        server.start()
        wait_until(lambda: site.text().count("no room left") >= 5, site.last_words)
        process.kill()
        process.wait()
    disk.free()
    with site.daemon():
        wait_until(lambda: site.stored() == sorted(site.acknowledged), site.last_words)


def test_a_stop_on_a_disk_that_turned_read_only_is_in_order(tmp_path: Path, disk: Disk) -> None:
    site = Site(tmp_path, disk, f"sqlite://{tmp_path / 'records.db'}")
    with site.daemon() as process:
        site.post()
        disk.cut_off()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0, site.last_words()
    disk.renew()
    with site.daemon():
        wait_until(lambda: site.stored() == ["job-1"], site.last_words)


def test_a_fatal_signal_leaves_its_name_in_the_log(tmp_path: Path) -> None:
    """The kernel sends SIGBUS where a page of SQLite's shared memory cannot be had, here since its file was cut.

    The stacks follow, but a second thread that meets the same page may end the process while they are being written.
    """
    site = Site(tmp_path, Disk(tmp_path), f"sqlite://{tmp_path / 'records.db'}")
    site.disk.folder.mkdir()
    with site.daemon() as process:
        os.truncate(site.disk.folder / "state" / "spool.db-shm", 0)
        process.send_signal(signal.SIGTERM)  # the stop writes to the spool
        assert process.wait(PATIENCE) == -signal.SIGBUS, site.last_words()
    assert "Fatal Python error: Bus error" in site.text()


class Faults:
    """Faults at random, one after another, until the time is up."""

    def __init__(self, site: Site, server: OwnServer | None, random: Random) -> None:
        self._site = site
        self._server = server
        self._random = random
        self._is_away = False
        self.ends: dict[str, int] = {}

    def strike(self) -> None:
        """Run the daemon once, and let something happen to it."""
        disk, fault = self._site.disk, self._random.choice(["kill", "stop", "full", "full", "read-only"])
        with self._site.daemon() as process:
            self._load()
            if fault == "full":
                disk.fill()
            elif fault == "read-only":
                disk.cut_off()
            self._load()
            process.send_signal(signal.SIGTERM if fault == "stop" or self._random.random() < 0.3 else signal.SIGKILL)
            process.wait(PATIENCE)
            self.ends[f"{fault}: {process.returncode}"] = self.ends.get(f"{fault}: {process.returncode}", 0) + 1
        self._let_store(away=False)
        if fault == "read-only":
            disk.renew()
        disk.free()

    def _load(self) -> None:
        self._let_store(away=self._random.random() < 0.5)
        until = time.monotonic() + self._random.uniform(0, 2)
        while time.monotonic() < until:
            self._site.post()
            time.sleep(0.02)

    def _let_store(self, *, away: bool) -> None:
        if self._server is not None and away is not self._is_away:
            (self._server.stop if away else self._server.start)()
            self._is_away = away


@pytest.mark.parametrize("store", ["sqlite", "sqlite elsewhere", "postgresql"])
def test_after_faults_of_the_disk_at_random_the_daemon_starts_with_all_that_it_acknowledged(
    tmp_path: Path, disk: Disk, store: str, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue("server") if store == "postgresql" else None
    files = {"sqlite": disk.folder / "records.db", "sqlite elsewhere": tmp_path / "records.db"}
    site = Site(tmp_path, disk, server.url if server else f"sqlite://{files[store]}")
    assert server is None or site.run([*AUDITORD, "database", "migrate", "--config", site.file]).returncode == 0
    faults, until = Faults(site, server, Random(store)), time.monotonic() + SECONDS  # noqa: S311 the same faults each time
    while time.monotonic() < until:
        faults.strike()
    with site.daemon():
        wait_until(lambda: site.acknowledged <= set(site.stored()), site.last_words)
        assert len(site.stored()) == len(set(site.stored()))
    sys.stdout.write(f"{store}: {faults.ends}\n")
