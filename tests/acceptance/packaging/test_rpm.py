"""The RPM: built twice alike, installed with its scriptlets, used, upgraded while records wait in the queue, removed.

All of it happens in a root of its own (:mod:`tests.scratch_root`). What systemd would be asked for is noted by a
program that stands there for ``systemctl``, since no systemd runs in it.
"""

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import auditord
from tests.acceptance.packaging.rebuilding import with_what_is_fetched
from tests.scratch_root import PATH, ScratchRoot, scratch_root

ROOT: Final = Path(__file__).parents[3]
SANDBOX: Final = ROOT / "tests/sandbox.py"
CONFIGURATION: Final = "/etc/auditord/auditord.yml"
SYSTEMCTL: Final = '#!/bin/sh\necho "$*" >> /run/systemctl.log\n'

STATE: Final = "/var/lib/auditord"
COMPLETE: Final = """\
. /usr/share/bash-completion/completions/auditord
complete -p auditord > /dev/null || exit 1
COMP_WORDS=(auditord '') COMP_CWORD=1
_auditord_completion auditord
echo "${COMPREPLY[@]}"
"""

LOOK_AT_THE_PAGE: Final = """\
import http.client, re, socket
def get(path):
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect("/tmp/api.sock")
    connection.request("GET", path, headers={"Accept": "text/html"})
    answer = connection.getresponse()
    print(answer.status)
    return answer.read().decode()
for path in ("/", "/usage", "/jobs", "/manual/slurm"):
    for asset in re.findall(r'(?:src|href)="(/[^"]+[.](?:css|js|svg))"', get(path)):
        get(asset)
"""

# Every job to a store here, and to one far away that does not answer.
SITE: Final[Mapping[str, Any]] = {
    "shutdown": {"grace": "2s"},
    "api": {"listen": ["unix:/tmp/api.sock"]},
    "collectors": {"files": {"kind": "files", "folder": "/var/spool/auditord-files", "settle": "0s"}},
    "senders": {"far": {"kind": "remote", "url": "http://127.0.0.1:9"}},
}
IDS: Final = ["job-0", "job-1", "job-2"]
JOBS: Final = "record_id,start_time,stop_time\n" + "".join(
    f"{each},2026-06-01T08:00:00Z,2026-06-01T09:30:00Z\n" for each in IDS
)


def built(folder: Path, *options: str | Path, umask: int = 0o022) -> Path:
    """Make the package with rpm/build."""
    command: list[str | Path] = [ROOT / "rpm/build", "--fast", "--work", folder / "work", *options, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False, umask=umask)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.strip())


def next_release(folder: Path, package: Path) -> Path:
    """The same files as the next release, packed from where the first build left them."""
    name, version, _ = package.name.split("-")
    asked = subprocess.run(["rpm", "-qp", "--requires", package], capture_output=True, text=True, check=True).stdout
    python = next(line for line in asked.splitlines() if "/bin/python" in line)
    defines = {"_topdir": f"{folder}/work", "version": version, "package_release": "2", "python": python}
    defines["cyclonedx"] = str(folder / "work" / "tools/bin/cyclonedx-py")
    buildroot = next((folder / "work/BUILDROOT").iterdir())
    command = ["rpmbuild", "-bb", "--quiet", "--short-circuit", "--noclean", f"--buildroot={buildroot}"]
    options = [word for key, value in defines.items() for word in ("--define", f"{key} {value}")]
    compression = ["--define", "_binary_payload w1.gzdio"]
    subprocess.run([*command, *options, *compression, ROOT / "rpm/auditord.spec"], capture_output=True, check=True)
    return next((folder / "work/RPMS").rglob(f"{name}-{version}-2*.rpm"))


def rpm(root: ScratchRoot, *words: str) -> str:
    """With a database of its own; Debian's rpm says on every call that dpkg is to be preferred."""
    done = root.run("rpm", "--dbpath", "/var/lib/rpm-test", "--nodeps", *words)
    return "".join(line for line in (done.stdout + done.stderr).splitlines(keepends=True) if "rpm: " not in line)


def status(root: ScratchRoot) -> Any:
    """The contents of the files, as the service's user sees them; no daemon runs."""
    return json.loads(root.run("auditord", "status", "--output", "json", user="auditord", expect=3).stdout)


def asked_of_systemd(root: ScratchRoot) -> list[str]:
    """The calls of systemctl since the last time."""
    return root.run("sh", "-c", "cat /run/systemctl.log; rm /run/systemctl.log").stdout.splitlines()


def facts(root: ScratchRoot, *paths: str) -> list[str]:
    return root.run("stat", "-c", "%a %U:%G %n", *paths).stdout.splitlines()


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="a root of one's own needs root")
@pytest.mark.skipif(shutil.which("rpmbuild") is None, reason="needs rpmbuild (tests/services/rpm-install)")
def test_the_package_is_the_same_each_time_and_lives_its_whole_life(tmp_path: Path) -> None:
    packages, folder, again = (tmp_path / name for name in ("packages", "root", "again"))
    packages.mkdir()
    folder.mkdir()
    first = built(packages)
    options = with_what_is_fetched(packages / "work", again / "work")
    assert built(again, *options, umask=0o077).read_bytes() == first.read_bytes()
    with scratch_root(folder, packages) as root:
        if root is None:
            pytest.skip("this kernel or container allows no overlay over /")
        second = next_release(packages, first)
        root.write("/usr/bin/systemctl", SYSTEMCTL, "755")
        root.run("mkdir", "-p", "/run/systemd/system")

        the_bill_of_materials_names_the_libraries(first)

        rpm(root, "-i", f"/mnt/{first.name}")
        installed_and_not_started(root)
        works_as_the_services_user(root)
        the_unit_is_sound(root)

        records_wait(root)
        rpm(root, "-U", f"/mnt/{second.relative_to(packages)}")
        assert asked_of_systemd(root) == ["daemon-reload", "daemon-reload", "try-restart auditord.service"]
        nothing_is_lost(root)
        the_new_daemon_takes_over(root)

        rpm(root, "-e", "auditord")
        assert asked_of_systemd(root) == ["--no-reload disable --now auditord.service", "daemon-reload"]
        only_the_sites_own_is_left(root)


def the_bill_of_materials_names_the_libraries(package: Path) -> None:
    bill = json.loads(package.with_suffix(".cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "auditord"
    assert {"aiohttp", "msgspec", "pip"} <= {each["name"] for each in bill["components"]}


def test_what_packages_hold_is_what_the_project_needs() -> None:
    """Every dependency is locked, at a version that pyproject.toml allows, with hashes."""
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    text = (ROOT / "rpm/requirements.txt").read_text()
    locked = {name: Version(version) for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)}
    wanted = [Requirement(each) for each in needs]
    assert [str(each) for each in wanted if locked[each.name] not in each.specifier] == []
    assert len(re.findall(r"^[\w.-]+==.* \\\n +--hash=sha256:", text, re.MULTILINE)) == len(locked)


def test_wheels_are_taken_from_a_folder_that_is_there(tmp_path: Path) -> None:
    command: list[str | Path] = [ROOT / "rpm/build", "--wheels", tmp_path / "missing", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (1, f"build: {tmp_path}/missing is no folder\n")


def installed_and_not_started(root: ScratchRoot) -> None:
    assert asked_of_systemd(root) == ["daemon-reload", "preset auditord.service"]
    assert rpm(root, "-V", "auditord") == ""
    asked = root.run("rpm", "--dbpath", "/var/lib/rpm-test", "-q", "--configfiles", "auditord")
    assert "/etc/" not in asked.stdout
    root.run("test", "!", "-e", CONFIGURATION)
    assert root.run("tail", "-n", "1", "/usr/share/auditord/auditord.yml").stdout.startswith("#")
    assert "\npsycopg 3." in root.run("sh", "-c", "cat /usr/share/licenses/auditord*/copyright").stdout
    assert facts(root, "/etc/auditord/conf.d", "/etc/auditord/credentials", STATE, "/var/spool/auditord-epilog") == [
        "750 root:auditord /etc/auditord/conf.d",
        "700 root:root /etc/auditord/credentials",
        f"750 auditord:auditord {STATE}",
        "2770 root:auditord /var/spool/auditord-epilog",
    ]
    assert root.run("getent", "passwd", "auditord").stdout.endswith(":/var/lib/auditord:/usr/sbin/nologin\n")
    left = root.run("grep", "-rlI", "-e", "BUILDROOT", "-e", "/tmp/", "/usr/lib/auditord/bin", expect=1).stdout  # noqa: S108 a pattern
    assert left == ""


def works_as_the_services_user(root: ScratchRoot) -> None:
    versions = root.run("auditord", "--version", user="auditord").stdout
    assert re.match(rf"auditord {re.escape(auditord.__version__)}\nPython 3\.\d+\.\d+\naiohttp \d", versions)
    assert "The demo succeeded." in root.run("auditord", "demo", "--check", user="auditord").stdout
    root.run("auditord-epilog", user="auditord", environment={"SLURM_JOB_ID": "42"})
    root.run("sh", "-c", "test -f /var/spool/auditord-epilog/42.*.job && rm /var/spool/auditord-epilog/*")
    completed = root.run("bash", "-c", COMPLETE).stdout.split()
    assert {"run", "status", "waldur"} <= set(completed)
    assert root.run("sh", "-c", "zcat -f /usr/share/man/man1/auditord.1*").stdout.startswith(".TH AUDITORD 1")
    assert root.run("sh", "-c", "zcat -f /usr/share/man/man5/auditord.yml.5*").stdout.startswith(".TH AUDITORD.YML 5")


def the_unit_is_sound(root: ScratchRoot) -> None:
    assert root.run("systemd-analyze", "verify", "--man=no", "auditord.service").stderr == ""
    root.run("systemd-analyze", "security", "--offline=true", "--threshold=20", "auditord.service")
    root.write("/run/sandbox.py", SANDBOX.read_text())
    boxed = ("python3", "/run/sandbox.py", "/usr/lib/systemd/system/auditord.service")
    assert "succeeded" in root.run(*boxed, "auditord", "demo", "--check", user="auditord").stdout


def records_wait(root: ScratchRoot) -> None:
    root.write("/etc/auditord/conf.d/site.yml", json.dumps(SITE))
    root.write(CONFIGURATION, "# changed here\n")
    root.write("/var/spool/auditord-files/june.csv", JOBS, "660")
    root.run("chown", "auditord:", "/var/spool/auditord-files/june.csv")
    for _ in range(20):  # within the grace of each call the near store gets its records; the far one never does
        root.run("auditord", "collect", "files", user="auditord")
        if set(status(root)["queues"]) == {"far"}:
            break
    nothing_is_lost(root)


def nothing_is_lost(root: ScratchRoot) -> None:
    found = status(root)
    assert found["queues"]["far"]["entries"] == len(IDS)
    records = root.run("auditord", "records", "--output", "ndjson", user="auditord").stdout
    assert sorted(json.loads(line)["record_id"] for line in records.splitlines()) == IDS
    assert root.run("tail", "-n", "1", CONFIGURATION).stdout == "# changed here\n"


def the_new_daemon_takes_over(root: ScratchRoot) -> None:
    """The daemon of the new release serves what the old one kept, and goes on with its queue."""
    command = root.command("auditord", "run", user="auditord")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={"PATH": PATH}) as daemon:
        assert daemon.stderr is not None
        try:
            assert any("is ready: unix:/tmp/api.sock" in line for line in daemon.stderr)
            found = json.loads(root.run("auditord", "status", "--output", "json", user="auditord").stdout)
            assert (found["running"], found["records"], found["queues"]["far"]["entries"]) == (True, 3, 3)
            assert set(root.run("python3", "-c", LOOK_AT_THE_PAGE, user="auditord").stdout.split()) == {"200"}
        finally:
            daemon.terminate()
        daemon.stderr.read()
    assert daemon.returncode == 0


def only_the_sites_own_is_left(root: ScratchRoot) -> None:
    gone = ["/usr/lib/auditord", "/usr/bin/auditord", "/usr/bin/auditord-epilog"]
    root.run("sh", "-c", 'for each; do test ! -e "$each" || exit 1; done', "sh", *gone)
    assert root.run("tail", "-n", "1", CONFIGURATION).stdout == "# changed here\n"
    root.run("test", "-f", "/etc/auditord/conf.d/site.yml")
    assert facts(root, f"{STATE}/spool.db", f"{STATE}/records.db") == [
        f"640 auditord:auditord {STATE}/spool.db",
        f"640 auditord:auditord {STATE}/records.db",
    ]
    counts = "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute(sys.argv[2]).fetchone())"
    for file, table in (("spool.db", "queue"), ("records.db", "records")):
        done = root.run("python3", "-c", counts, f"{STATE}/{file}", f"SELECT count(*) FROM {table}")  # noqa: S608 ours
        assert done.stdout == "3\n"
