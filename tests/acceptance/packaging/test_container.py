"""The container's files, as far as they can be held to account without a container engine."""

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from pydantic import SecretStr

from auditord.config.loading import load_with_sources
from auditord.hooks import load_hooks
from auditord.testing.daemon import running_daemon

ROOT: Final = Path(__file__).parents[3]
CONTAINER: Final = ROOT / "etc/container"
LINES: Final = (CONTAINER / "Containerfile").read_text().replace("\\\n", " ").splitlines()
INSTRUCTIONS: Final = [line.split(maxsplit=1) for line in LINES if line and not line.startswith("#")]
COMPOSE: Final[Any] = yaml.safe_load((CONTAINER / "compose.yml").read_text())
OURS: Final = ("migrate", "auditord")


def arguments(instruction: str) -> list[str]:
    return [rest for name, rest in INSTRUCTIONS if name == instruction]


def copied_from_the_tree() -> list[list[str]]:
    """Sources and target of each COPY, without options."""
    words = [rest.split() for rest in arguments("COPY") if "--from=" not in rest]
    return [[word for word in each if not word.startswith("--")] for each in words]


def test_what_is_copied_is_there_and_suffices_to_build(tmp_path: Path) -> None:
    for *sources, target in copied_from_the_tree():
        for source in sources:
            if not target.startswith("/"):
                copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
                (tmp_path / source).parent.mkdir(exist_ok=True)
                copy(ROOT / source, tmp_path / source)
            else:
                assert (ROOT / source).stat().st_mode & 0o111
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", "dist"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").iterdir()
    assert (
        "No module named"
        not in subprocess.run(
            [sys.executable, "-c", "import auditord, auditord_builtin, auditord_hookspecs"],
            env={"PYTHONPATH": str(wheel)},
            check=True,
            capture_output=True,
            text=True,
        ).stderr
    )


def test_it_runs_as_nobody_in_particular_and_is_watched() -> None:
    assert arguments("USER") == ["10001:10001"]
    assert re.fullmatch(r'--interval=\S+ .* CMD \["healthcheck"\]', arguments("HEALTHCHECK")[0])
    assert (arguments("ENTRYPOINT"), arguments("CMD")) == (['["entrypoint"]'], ['["run"]'])
    assert "STATE_DIRECTORY=/var/lib/auditord" in arguments("ENV")[-1]
    assert arguments("VOLUME") == ["/var/lib/auditord"]


@pytest.mark.parametrize(
    ("given", "run"),
    [
        (["run"], "run"),
        (["migrate"], "database migrate"),
        (["migrate", "--sql"], "database migrate --sql"),
        (["records", "migrate"], "records migrate"),
        ([], ""),
    ],
)
def test_the_first_word_is_a_command(tmp_path: Path, given: list[str], run: str) -> None:
    program = tmp_path / "auditord"
    program.write_text('#!/bin/sh\necho "$*"\n')
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(
        [CONTAINER / "entrypoint", *given], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{run}\n"


def healthcheck(state_dir: Path) -> int:
    environment = {**os.environ, "STATE_DIRECTORY": str(state_dir)}
    command = [sys.executable, "-IS", str(CONTAINER / "healthcheck")]
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode


def test_a_daemon_is_healthy_and_none_is_not(tmp_path: Path) -> None:
    with running_daemon(tmp_path, {}) as daemon:
        assert healthcheck(daemon.state_dir) == 0
        state_dir = daemon.state_dir
    assert healthcheck(state_dir) == 1


def test_a_daemon_that_can_keep_nothing_is_not_healthy(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "control.sock"))
        listener.listen()

        def refuse() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1_000)
                connection.sendall(b"HTTP/1.1 500 Internal Server Error\r\n\r\n")

        threading.Thread(target=refuse, daemon=True).start()
        assert healthcheck(tmp_path) == 1


@pytest.mark.parametrize("name", OURS)
def test_the_services_can_do_little(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["volumes"] == ["state:/var/lib/auditord"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    context = (CONTAINER / service["build"]["context"]).resolve()
    assert (context / service["build"]["dockerfile"]).samefile(CONTAINER / "Containerfile")


def test_the_order_of_a_start_is_database_tables_daemon() -> None:
    services = COMPOSE["services"]
    assert services["migrate"]["depends_on"] == {"database": {"condition": "service_healthy"}}
    assert services["migrate"]["command"] == ["migrate"]
    assert services["auditord"]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}


def test_the_environment_is_a_configuration() -> None:
    environment = COMPOSE["services"]["auditord"]["environment"] | {"STATE_DIRECTORY": "/var/lib/auditord"}
    references = list[str]()

    def resolve(reference: str) -> SecretStr | None:
        references.append(reference)
        return SecretStr("sesame")

    configuration = load_with_sources([], load_hooks([]).kinds, environment, resolve).configuration
    assert configuration.store.url == "postgresql://auditord@database/auditord"
    assert references == ["file:/run/secrets/database_password"]
    assert (str(configuration.api.listen[0]), configuration.api.allow_insecure) == ("0.0.0.0:8000", True)
    database = COMPOSE["services"]["database"]["environment"]
    assert (database["POSTGRES_USER"], database["POSTGRES_DB"]) == ("auditord", "auditord")
