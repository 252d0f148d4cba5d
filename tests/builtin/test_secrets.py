import logging
import os
from pathlib import Path

import pytest

from auditord_builtin.secrets import auditord_resolve_secret, resolve


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_bytes(b"sesame\n")
    path.chmod(0o600)
    return path


def value(reference: str, **environ: str) -> str | None:
    secret = resolve(reference, environ)
    return None if secret is None else secret.get_secret_value()


def test_a_file_holds_a_secret(secret_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert value(f"file:{secret_file}") == "sesame"
    assert not caplog.records


@pytest.mark.parametrize(
    ("content", "secret"), [(b"a\r\n", "a"), (b" a \n\n", " a \n"), ("ä".encode(), "ä"), (b"a:b", "a:b")]
)
def test_only_the_last_line_end_is_not_part_of_it(secret_file: Path, content: bytes, secret: str) -> None:
    secret_file.write_bytes(content)
    assert value(f"file:{secret_file}") == secret


@pytest.mark.parametrize(("mode", "readers"), [(0o640, "its group"), (0o604, "every user")])
def test_a_file_that_others_can_read_is_warned_about(
    secret_file: Path, caplog: pytest.LogCaptureFixture, mode: int, readers: str
) -> None:
    secret_file.chmod(mode)
    assert value(f"file:{secret_file}") == "sesame"
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(secret_file) in record.getMessage()
    assert readers in record.getMessage()
    assert "sesame" not in record.getMessage()


@pytest.mark.parametrize(
    ("content", "reason"), [(b"", "empty"), (b"\n", "empty"), (b"\xffsesame", "UTF-8"), (b"x" * 70_000, "too large")]
)
def test_a_file_that_holds_no_secret_is_refused(secret_file: Path, content: bytes, reason: str) -> None:
    secret_file.write_bytes(content)
    with pytest.raises(ValueError, match=reason) as caught:
        value(f"file:{secret_file}")
    assert str(secret_file) in str(caught.value)
    assert "sesame" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{tmp_path}/none: No such file"):
        value(f"file:{tmp_path}/none")
    with pytest.raises(ValueError, match=f"{tmp_path}: Is a directory"):
        value(f"file:{tmp_path}")


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_named(secret_file: Path) -> None:
    secret_file.chmod(0)
    with pytest.raises(ValueError, match="token: Permission denied"):
        value(f"file:{secret_file}")


def test_the_environment_holds_a_secret() -> None:
    assert value("env:KEY", KEY="sesame") == "sesame"
    with pytest.raises(ValueError, match="KEY is not set"):
        value("env:KEY")
    with pytest.raises(ValueError, match="KEY is empty"):
        value("env:KEY", KEY="")


def test_systemd_holds_a_secret(secret_file: Path) -> None:
    assert value("credential:token", CREDENTIALS_DIRECTORY=str(secret_file.parent)) == "sesame"
    with pytest.raises(ValueError, match="LoadCredential=token"):
        value("credential:token")
    with pytest.raises(ValueError, match="without a path"):
        value("credential:../token", CREDENTIALS_DIRECTORY="/run")


@pytest.mark.parametrize("path", ["relative", "", "~/x"])
def test_a_relative_path_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="absolute"):
        value(f"file:{path}")


@pytest.mark.parametrize("text", ["", "sesame", "vault:x", "https://file:x", "FILE:/x", "file"])
def test_other_texts_are_no_references(text: str) -> None:
    assert value(text) is None


def test_the_hook_reads_the_processs_own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOOR_KEY", "sesame")
    secret = auditord_resolve_secret("env:DOOR_KEY")
    assert secret is not None
    assert secret.get_secret_value() == "sesame"
