"""The folder of an instance below the state folder is out of everybody's reach."""

from pathlib import Path

import pytest

from auditord.contexts.instances import own_folder
from auditord_hookspecs import AuditordError


def test_it_is_made_and_closed_to_others(tmp_path: Path) -> None:
    folder = own_folder(tmp_path, "files")
    assert folder == tmp_path / "instances/files"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    assert own_folder(tmp_path, "files").stat().st_mode & 0o777 == 0o700


def test_it_is_reported_when_it_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "instances").touch()
    with pytest.raises(AuditordError, match="must belong to the daemon's user"):
        own_folder(tmp_path, "files")
