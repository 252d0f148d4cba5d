"""The unit, the user and the folders, as systemd's own programs see them."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
import yaml

from auditord.config.lake import LakeSection
from auditord.manual import text_of

ETC: Final = Path(__file__).parents[3] / "etc"
MIB: Final = 1 << 20
UNIT: Final = ETC / "auditord.service"

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that is here; the test of the RPM verifies it as it is."""
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/usr/bin/auditord ", "/bin/true "))
    return copy


def test_systemd_has_nothing_to_say_about_the_unit(unit: Path) -> None:
    done = run("systemd-analyze", "verify", "--man=no", unit)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_misspelt_setting_would_be_noticed(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("ProtectClock=", "ProtectClocks="))
    assert "ProtectClocks" in run("systemd-analyze", "verify", "--man=no", unit).stderr


def test_it_is_exposed_to_little(unit: Path) -> None:
    done = run("systemd-analyze", "security", "--offline=true", "--no-pager", unit)
    found = re.search(r"Overall exposure level for auditord.service: (\d+\.\d)", done.stdout)
    assert found is not None, done.stderr
    assert float(found[1]) <= 2.0


def settings() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def test_each_exception_is_explained_and_nothing_is_switched_off() -> None:
    values = settings()
    assert [
        key for key, value in values.items() if key.startswith(("Protect", "Private", "Restrict")) and "no" in value
    ] == []
    exceptions = UNIT.read_text().split("# --- Exceptions, and why", 1)[1].split("[Install]")[0]
    lines = exceptions.splitlines()[1:]
    for number, line in enumerate(lines):
        if line and not line.startswith("#"):
            assert lines[number - 1].startswith("# ")
    for why in ("sacct and scontrol", "munge", "auditord-epilog", "PrivateNetwork="):
        assert why in exceptions


def test_the_limits_of_memory_are_those_of_the_manual_and_the_examples() -> None:
    values, memory = settings(), LakeSection().memory
    (high,), (most,) = (values[name] for name in ("MemoryHigh", "MemoryMax"))
    assert (high, most) == (f"{(512 * MIB + memory) // MIB}M", "2G")
    assert values["OOMPolicy"] == ["continue"]
    compose = yaml.safe_load((ETC / "container/compose.yml").read_text())
    assert compose["services"]["auditord"]["mem_limit"] == "2g"
    (daemon,) = (
        each
        for each in yaml.safe_load_all((ETC / "kubernetes/auditord.yml").read_text())
        if each["kind"] == "StatefulSet"
    )
    (container,) = daemon["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"memory": "2Gi"}
    assert "--memory 2g" in (ETC / "container/Containerfile").read_text()
    assert "--memory 2g" in text_of("install")
    assert "limit the memory to 2 GiB" in text_of("sizing")


def test_the_user_is_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    done = run("systemd-sysusers", f"--root={tmp_path}", ETC / "auditord.sysusers")
    assert done.returncode == 0, done.stderr
    (line,) = (tmp_path / "etc/passwd").read_text().splitlines()
    name, _, uid, _, _, home, shell = line.split(":")
    assert (name, home, shell) == ("auditord", "/var/lib/auditord", "/usr/sbin/nologin")
    assert 0 < int(uid) < 1_000
    assert (tmp_path / "etc/group").read_text().startswith("auditord:")


@pytest.mark.parametrize(("file", "owner"), [("auditord.tmpfiles", 0), ("auditord-slurm.tmpfiles", 64_030)])
def test_the_folders_that_others_write_to_are_made(tmp_path: Path, file: str, owner: int) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nslurm:x:64030:64030::/:/bin/sh\n")
    (tmp_path / "etc/group").write_text("root:x:0:\nauditord:x:995:\n")
    done = run("systemd-tmpfiles", f"--root={tmp_path}", "--create", ETC / file)
    assert (done.returncode, done.stderr) == (0, "")
    for name, user in (("auditord-epilog", owner), ("auditord-files", 0)):
        folder = (tmp_path / "var/spool" / name).stat()
        assert (oct(folder.st_mode), folder.st_uid, folder.st_gid) == ("0o42770", user, 995)


def test_the_folders_that_the_unit_may_write_to_are_those_that_are_made() -> None:
    made = re.findall(r"^d (\S+)", (ETC / "auditord.tmpfiles").read_text(), re.MULTILINE)
    assert settings()["ReadWritePaths"] == [" ".join(f"-{folder}" for folder in made)]
