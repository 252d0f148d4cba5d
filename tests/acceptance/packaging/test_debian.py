"""Debian's package under systemd: built twice alike, installed in a booted Debian, and its unit put through its life.

systemd is its first process there (:mod:`tests.booted_debian`), so that ``Type=notify``, the watchdog, credentials and
the sandbox are the real ones; sacct asks a real Slurm beside it.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

import auditord
from auditord.config.yaml_files import parse
from tests.acceptance.packaging.rebuilding import with_what_is_fetched
from tests.booted_debian import ROOTS, BootedDebian, booted_debian

ROOT: Final = Path(__file__).parents[3]
UNIT: Final = "auditord.service"
STATE: Final = "/var/lib/auditord"
CONFIGURATION: Final = "/etc/auditord/auditord.yml"
REFERENCE: Final = "/usr/share/auditord/auditord.yml"
NEXT: Final = "1.0.99"
APT: Final = ("apt-get", "install", "--yes", "--quiet")
"""Without a terminal, as unattended upgrades run it."""

SHORTER: Final = "[Service]\nWatchdogSec=5s\nRestartSec=100ms\n"
"""Settings of the unit that only the test's patience needs."""

PAGE: Final = """
from urllib.request import Request, urlopen
print(urlopen(Request("http://127.0.0.1:8000/", headers={"Accept": "text/html"})).read().decode())
"""

# What init does not ask. Every job goes to a store here, and to one far away that does not answer; its token is a
# credential.
SITE: Final = {
    "shutdown": {"grace": "2s"},
    "collectors": {"slurm": {"interval": "2s", "lag": "0s", "earliest_datetime": "2020-01-01T00:00:00Z"}},
    "senders": {"far": {"kind": "remote", "url": "http://127.0.0.1:9", "token": "credential:secret_far"}},
}

PYTHONS: Final = {"bookworm": "/usr/bin/python3.11", "trixie": "/usr/bin/python3.13"}
SETTINGS_OF_PIP: Final = (Path("/etc/pip.conf"), Path("/etc/ssl/certs/ca-certificates.crt"))
VARIABLES_OF_PIP: Final = {"PIP_INDEX_URL", "PIP_CERT", "PIP_DEFAULT_TIMEOUT", "http_proxy", "https_proxy", "no_proxy"}
RELEASES: Final = os.environ.get("DEBIAN_TEST_RELEASES", "bookworm").split()
"""Those to test with; another one takes as long again, and is tried before a release."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.getuid() != 0, reason="a boot needs root"),
    pytest.mark.skipif(
        not ROOTS["bookworm"].exists() or shutil.which("systemd-nspawn") is None,
        reason="needs a Debian to boot (tests/services/debian-install)",
    ),
]


def built(folder: Path, release: str, *options: str | Path, umask: int = 0o022) -> Path:
    """The package, made by rpm/build with the Python of the release: here, or in the release's own root."""
    always = ("--deb", "--fast", "--python", PYTHONS[release], "--work", folder / "work")
    command: list[str | Path] = [ROOT / "rpm/build", *always, *options, folder]
    if not Path(PYTHONS[release]).exists():
        shared = [f"--bind-ro={path}" for path in (ROOT, *SETTINGS_OF_PIP) if path.exists()]
        shared += [f"--setenv={name}={value}" for name, value in os.environ.items() if name in VARIABLES_OF_PIP]
        inside = ["systemd-nspawn", "--quiet", f"--directory={ROOTS[release]}", "--volatile=overlay", "--register=no"]
        command = [*inside, "--keep-unit", "--console=pipe", *shared, f"--bind={folder.parent}", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, umask=umask)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.split()[-1])


def next_release(package: Path, work: Path) -> Path:
    """Pack the same files as the next version, with another comment among the options."""
    subprocess.run(["dpkg-deb", "--raw-extract", package, work], check=True)
    control, version = work / "DEBIAN/control", auditord.__version__
    control.write_text(control.read_text().replace(f"{version}-1\n", f"{NEXT}-1\n"))
    (module,) = work.glob("usr/lib/auditord/lib/python3.*/site-packages/auditord/__init__.py")
    module.write_text(module.read_text().replace(f'"{version}"', f'"{NEXT}"'))
    shutil.rmtree(module.parent / "__pycache__")
    with (work / REFERENCE.removeprefix("/")).open("a") as options:
        options.write("## A new comment.\n")
    target = package.with_name(package.name.replace(version, NEXT))
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", work, target], check=True)
    return target


def status(debian: BootedDebian) -> Any:
    """The daemon's own word, while it runs."""
    return json.loads(debian.run("auditord", "status", "--output", "json", user="auditord"))


@pytest.mark.parametrize("release", RELEASES)
def test_the_package_is_the_same_each_time_and_lives_its_whole_life_under_systemd(tmp_path: Path, release: str) -> None:
    packages, again, folder = (tmp_path / name for name in ("packages", "again", "root"))
    for each in (packages, again, folder):
        each.mkdir()
    first = built(packages, release)
    options = with_what_is_fetched(packages / "work", again / "work")
    assert built(again, release, *options, umask=0o077).read_bytes() == first.read_bytes()
    second = next_release(first, tmp_path / "next")
    shutil.copy(ROOT / "tests/services/slurm-up", packages)
    shutil.copy(ROOT / "tests/services/slurm-cluster", packages)
    with booted_debian(folder, packages, ROOTS[release]) as debian:
        if debian is None:
            pytest.skip("this kernel or container allows no boot of a system of one's own")
        debian.run(*APT, f"/mnt/{first.name}")
        installed_and_not_started(debian)
        jobs = jobs_of_a_real_slurm(debian)
        starts_when_it_is_ready_and_collects(debian, jobs)
        is_restarted_when_it_hangs(debian)
        is_restarted_when_it_is_killed(debian)
        goes_on_after_an_upgrade(debian, second, jobs)
        stops_within_its_grace(debian)
        leaves_what_is_the_sites_own(debian, jobs)
        can_be_installed_and_set_up_again(debian, second)


def installed_and_not_started(debian: BootedDebian) -> None:
    assert debian.run("systemctl", "is-enabled", UNIT, check=False) == "disabled\n"
    assert debian.properties(UNIT, "ActiveState") == {"ActiveState": "inactive"}
    folders_are_the_services(debian)
    debian.run("test", "!", "-e", CONFIGURATION)
    assert debian.run("cat", "/var/lib/dpkg/info/auditord.conffiles", check=False).endswith(
        "No such file or directory\n"
    )
    assert parse(debian.run("cat", REFERENCE), REFERENCE).values == {}
    assert debian.run("dpkg", "--verify", "auditord") == ""
    programs = debian.run("find", "/usr/lib/auditord/bin", "-type", "f", "-printf", "%f\n").split()
    assert sorted(each for each in programs if not each.startswith("pip")) == ["auditord", "auditord-epilog"]
    the_copyright_names_what_is_bundled(debian)
    debian.run("systemd-analyze", "security", "--threshold=20", UNIT)


def folders_are_the_services(debian: BootedDebian) -> None:
    folders = ["/etc/auditord", "/etc/auditord/conf.d", "/etc/auditord/credentials", STATE]
    assert debian.run("stat", "-c", "%a %U:%G %n", *folders).splitlines() == [
        "750 root:auditord /etc/auditord",
        "750 root:auditord /etc/auditord/conf.d",
        "700 root:root /etc/auditord/credentials",
        f"750 auditord:auditord {STATE}",
    ]


def the_copyright_names_what_is_bundled(debian: BootedDebian) -> None:
    text = debian.run("cat", "/usr/share/doc/auditord/copyright")
    listed = json.loads(debian.run("/usr/lib/auditord/bin/pip", "list", "--format=json"))
    for each in listed:
        if each["name"] != "auditord":
            found = re.search(rf"^{each['name']} {each['version']}\b.*\n  Licence: \w.*\n", text, re.MULTILINE)
            assert found is not None, each
    named = re.findall(r"^  Text: (.+)$", text, re.MULTILINE)
    assert len(named) > len(listed) / 2
    debian.run("test", "-s", named[0])
    debian.run("ls", *named)


def jobs_of_a_real_slurm(debian: BootedDebian) -> int:
    """Run some jobs to their end; returns how many sacct knows."""
    # Slurm looks names up only where the host has an address of its own.
    debian.run("ip", "address", "add", "192.0.2.1/32", "dev", "lo")
    debian.run("env", "SLURM_TEST_CLUSTER=booted", "bash", "/mnt/slurm-up")
    for user, account in (("alice", "physics"), ("carol", "biology")):
        array = ["sbatch", "--wait", "--array=1-3", "--account", account, "--output=/dev/null", "--wrap", "true"]
        debian.run("env", "-C", "/tmp", *array, user=user)  # noqa: S108 inside the booted system
    states = ("sacct", "-anPX", "--starttime=2020-01-01", "--format=state")
    debian.wait(["COMPLETED"] * 6, lambda: debian.run(*states).split())  # slurmctld tells slurmdbd a little later
    return 6


def starts_when_it_is_ready_and_collects(debian: BootedDebian, jobs: int) -> None:
    debian.run("sh", "-c", "umask 077; auditord init --yes")
    assert debian.run("stat", "-c", "%a %U:%G", CONFIGURATION) == "640 root:auditord\n"
    debian.write("/etc/auditord/credentials/far", "sesame", "600")
    debian.write("/etc/auditord/conf.d/site.yml", json.dumps(SITE))
    debian.write(f"/etc/systemd/system/{UNIT}.d/test.conf", SHORTER)
    debian.run("systemctl", "daemon-reload")
    debian.run("systemctl", "enable", "--now", UNIT)  # returns when the daemon has said that it is ready
    assert status(debian)["running"] is True
    found = debian.properties(UNIT, "Type", "ActiveState", "SubState", "NRestarts")
    assert found == {"Type": "notify", "ActiveState": "active", "SubState": "running", "NRestarts": "0"}
    debian.until(UNIT, StatusText=f"{jobs} entries queued, 0 in quarantine")  # for the sender that reaches nobody
    everything_is_there(debian, jobs)
    assert "<h1" in debian.run("python3", "-c", PAGE)
    debian.run("systemctl", "reload", UNIT)
    assert "reloaded: nothing differs" in debian.run("journalctl", "--unit", UNIT)
    assert "sesame" not in debian.run("journalctl", "--unit", UNIT)


def everything_is_there(debian: BootedDebian, jobs: int) -> None:
    found = status(debian)
    assert (found["records"], found["queues"]["far"]["entries"]) == (jobs, jobs)


def is_restarted_when_it_hangs(debian: BootedDebian) -> None:
    debian.run("systemctl", "kill", "--signal=STOP", UNIT)
    debian.until(UNIT, NRestarts="1", ActiveState="active", SubState="running")
    assert "Watchdog timeout" in debian.run("journalctl", "--unit", UNIT)


def is_restarted_when_it_is_killed(debian: BootedDebian) -> None:
    debian.run("systemctl", "kill", "--signal=KILL", UNIT)
    debian.until(UNIT, NRestarts="2", ActiveState="active", SubState="running")


def goes_on_after_an_upgrade(debian: BootedDebian, second: Path, jobs: int) -> None:
    everything_is_there(debian, jobs)
    before, written = debian.properties(UNIT, "MainPID"), debian.run("cat", CONFIGURATION)
    debian.run(*APT, f"/mnt/{second.name}")
    debian.until(UNIT, ActiveState="active", SubState="running")
    assert debian.properties(UNIT, "MainPID") != before
    assert status(debian)["version"] == NEXT
    assert debian.run("cat", CONFIGURATION) == written
    assert debian.run("stat", "-c", "%a %U:%G", CONFIGURATION) == "640 root:auditord\n"
    assert debian.run("tail", "-n", "1", REFERENCE) == "## A new comment.\n"
    everything_is_there(debian, jobs)


def stops_within_its_grace(debian: BootedDebian) -> None:
    debian.run("systemctl", "stop", UNIT)
    assert debian.properties(UNIT, "Result", "ExecMainStatus") == {"Result": "success", "ExecMainStatus": "0"}
    assert "entries for far stay queued" in debian.run("journalctl", "--unit", UNIT)
    debian.run("systemctl", "start", UNIT)


def leaves_what_is_the_sites_own(debian: BootedDebian, jobs: int) -> None:
    debian.run("dpkg", "--remove", "auditord")
    assert debian.properties(UNIT, "LoadState", "ActiveState") == {"LoadState": "not-found", "ActiveState": "inactive"}
    debian.run("test", "-f", CONFIGURATION)
    said = debian.run("dpkg", "--purge", "auditord")
    assert f"records and queue are kept in {STATE}" in said
    debian.run("test", "-f", "/etc/auditord/conf.d/site.yml")
    counts = "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute(sys.argv[2]).fetchone())"
    for file, table in (("spool.db", "queue"), ("records.db", "records")):
        asked = debian.run("python3", "-c", counts, f"{STATE}/{file}", f"SELECT count(*) FROM {table}")  # noqa: S608 ours
        assert asked == f"{jobs}\n"


def can_be_installed_and_set_up_again(debian: BootedDebian, package: Path) -> None:
    """After the purge of a site's own files, too, which only the site removes."""
    debian.run("rm", "-r", "/etc/auditord/conf.d/site.yml")
    debian.run(*APT, f"/mnt/{package.name}")
    folders_are_the_services(debian)
    assert f"wrote {CONFIGURATION}" in debian.run("auditord", "init", "--yes")
    debian.run("runuser", "-u", "auditord", "--", "auditord", "config", "check")
    debian.run("systemctl", "enable", "--now", UNIT)
    assert status(debian)["running"] is True
    debian.run(*("systemctl", "stop", UNIT))
    # A removal deletes the empty folders, which the next installation makes for the service's user again.
    debian.run("sh", "-c", f"rm {CONFIGURATION} /etc/auditord/credentials/far")
    debian.run("dpkg", "--remove", "auditord")
    debian.run("test", "!", "-e", "/etc/auditord")
    debian.run(*APT, f"/mnt/{package.name}")
    folders_are_the_services(debian)
