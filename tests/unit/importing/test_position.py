"""The position of an import, kept in a file."""

from pathlib import Path

import pytest

from auditord.importing.writing import BadPosition, PositionFile, Progressed


def test_it_begins_at_the_beginning_and_goes_on_where_it_was(tmp_path: Path) -> None:
    file = PositionFile.of(tmp_path, "source", "target")
    assert file.read() == Progressed()
    file.write(Progressed("42"))
    file.write(Progressed("43", written=True))
    assert PositionFile.of(tmp_path, "source", "target").read() == Progressed("43", written=True)
    file.forget()
    file.forget()
    assert file.read() == Progressed()
    assert list(tmp_path.iterdir()) == []


def test_every_import_has_its_own(tmp_path: Path) -> None:
    PositionFile.of(tmp_path, "source", "target").write(Progressed("42"))
    assert PositionFile.of(tmp_path, "sourcetarget", "").read() == Progressed()


def test_a_version_that_was_not_finished_does_no_harm(tmp_path: Path) -> None:
    file = PositionFile.of(tmp_path, "source")
    file.write(Progressed("42"))
    file.path.with_name(f".{file.path.name}.draft").write_bytes(b'{"posi')
    assert file.read() == Progressed("42")


def test_what_somebody_else_has_written_is_refused_with_a_remedy(tmp_path: Path) -> None:
    file = PositionFile.of(tmp_path, "source")
    file.path.write_text("nonsense")
    with pytest.raises(BadPosition, match="--restart"):
        file.read()


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadPosition, match="No such file"):
        PositionFile.of(tmp_path / "gone", "source").write(Progressed("1"))
