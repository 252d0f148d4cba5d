"""Work by descriptors: what another user puts in a folder leads nowhere else."""

import os
from pathlib import Path

import pytest

from auditord_hookspecs.folders import PrivateFolder, SharedFolder, UnsafePath, identity, open_regular


def test_a_folder_is_the_same_wherever_its_path_leads_later(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with SharedFolder.opened(tmp_path / "a") as folder:
        (tmp_path / "a").rename(tmp_path / "c")
        (tmp_path / "a").symlink_to("b")
        folder.write_whole("x", b"1")
    assert (tmp_path / "c/x").read_bytes() == b"1"
    assert list((tmp_path / "b").iterdir()) == []


@pytest.mark.parametrize("name", ["n" * 255, "é" * 125 + ".csv", "n." + "s" * 253])
def test_the_longest_names_can_be_written_and_renamed(tmp_path: Path, name: str) -> None:
    with SharedFolder.opened(tmp_path) as folder:
        folder.write_whole(name, b"1")
        with PrivateFolder.opened(tmp_path, "done") as done:
            for number in range(3):
                done.create(str(number)).close()
            names = [done.rename(str(number), name) for number in range(3)]
    assert (tmp_path / name).read_bytes() == b"1"
    assert names[0] == name
    assert sorted(names) == sorted(each.name for each in (tmp_path / "done").iterdir())


@pytest.mark.parametrize("kind", ["link", "dangling link", "fifo", "folder", "hard link", "socket"])
@pytest.mark.timeout(20)
def test_only_regular_files_of_one_name_are_opened(tmp_path: Path, kind: str) -> None:
    (tmp_path / "other").write_text("secret")
    path = tmp_path / "x"
    match kind:
        case "link":
            path.symlink_to("other")
        case "dangling link":
            path.symlink_to("nowhere")
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "hard link":
            path.hardlink_to(tmp_path / "other")
        case _:
            os.mknod(path, 0o140644)
    with SharedFolder.opened(tmp_path) as folder, pytest.raises(UnsafePath, match=f"{path}: "), folder.open_file("x"):
        raise AssertionError


@pytest.mark.timeout(20)
def test_a_configured_path_may_be_a_link_but_no_fifo(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "fifo")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"text"
    with pytest.raises(UnsafePath, match="not a regular file"), open_regular(tmp_path / "fifo"):
        raise AssertionError


def test_a_private_folder_takes_the_next_free_name(tmp_path: Path) -> None:
    with PrivateFolder.opened(tmp_path, "own") as folder:
        for _ in range(3):
            folder.create("new").close()
            folder.rename("new", "a.csv")
        assert sorted(folder.names()) == ["a.1.csv", "a.2.csv", "a.csv"]
        with pytest.raises(FileExistsError):
            folder.create("a.csv")


@pytest.mark.parametrize("mode", [0o770, 0o757])
def test_a_folder_that_others_may_write_is_none_of_ours_unless_they_cannot_reach_it(tmp_path: Path, mode: int) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own").chmod(mode)
    tmp_path.chmod(0o755)
    with (
        pytest.raises(UnsafePath, match=r"other users can write to it: .*chmod go-w"),
        PrivateFolder.opened(tmp_path, "own"),
    ):
        raise AssertionError
    tmp_path.chmod(0o700)
    with PrivateFolder.opened(tmp_path, "own"):
        pass


def test_an_identity_tells_a_changed_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    before = identity((tmp_path / "a").stat())
    (tmp_path / "a").write_text("12")
    assert identity((tmp_path / "a").stat()) != before


def test_a_file_is_written_beside_those_of_others_and_without_what_a_killed_process_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = ".x.0123456789abcdef.part"
    for name in (".x.part", ".y.0123456789abcdef.part", left):
        (tmp_path / name).write_text("theirs")
    with SharedFolder.opened(tmp_path) as folder:
        with monkeypatch.context() as other:
            other.setattr(os, "geteuid", lambda: (tmp_path / left).stat().st_uid + 1)
            folder.write_whole("x", b"1")
        assert sorted(folder.names()) == [left, ".x.part", ".y.0123456789abcdef.part", "x"]
        folder.write_whole("x", b"2")
        assert sorted(folder.names()) == [".x.part", ".y.0123456789abcdef.part", "x"]
    assert (tmp_path / "x").read_bytes() == b"2"


def test_reports_are_readable_as_the_users_umask_says(tmp_path: Path) -> None:
    with SharedFolder.opened(tmp_path) as folder:
        folder.write_whole("x", b"")
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o666 & ~umask
