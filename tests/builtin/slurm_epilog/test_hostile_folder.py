"""A hostile user of the folder of notes can make the daemon read nothing but notes, and remove nothing else."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from auditord_builtin.slurm.epilog.notes import read_folder, remove
from tests.other_user import as_nobody, give_to_nobody, needs_root

pytestmark = [needs_root, pytest.mark.timeout(60)]

NOW: Final = datetime(2099, 1, 1, tzinfo=UTC)


def test_links_and_fifos_are_no_notes(tmp_path: Path) -> None:
    folder, secret = give_to_nobody(tmp_path / "notes"), tmp_path / "secret"
    secret.write_text("SECRET=1\0\0")
    os.link(secret, folder / "hard.job")
    as_nobody(folder, f"ln -s {secret} 1.0123456789abcdef.job; mkfifo 2.0123456789abcdef.job; mkdir sub")
    found = read_folder(folder, NOW)
    assert (found.notes, found.unreadable, found.others) == ([], [], 3)


def test_only_names_in_the_folder_itself_are_removed(tmp_path: Path) -> None:
    folder, other = give_to_nobody(tmp_path / "notes"), tmp_path / "1.0123456789abcdef.job"
    other.touch()
    as_nobody(folder, f"ln -s {other} 1.0123456789abcdef.job")
    remove(folder, ["1.0123456789abcdef.job"])
    assert other.exists()
    assert list(folder.iterdir()) == []


def test_an_impossible_date_concerns_one_note_only(tmp_path: Path) -> None:
    folder = give_to_nobody(tmp_path / "notes")
    as_nobody(folder, "printf 'A=1\\0\\0' > 1.0123456789abcdef.job; printf 'A=1\\0\\0' > 2.0123456789abcdef.job")
    as_nobody(folder, "touch -d @99999999999999 1.0123456789abcdef.job")
    found = read_folder(folder, NOW)
    assert [note.job_id for note in found.notes] == ["2"]
    assert [each.name for each in found.unreadable] == ["1.0123456789abcdef.job"]
