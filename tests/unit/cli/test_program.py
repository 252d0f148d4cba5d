"""The program: commands that are printed run where they are typed; one whose reader has gone ends quietly."""

import socket
import sys
from contextlib import closing
from errno import ENOSPC
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from auditord import cli
from auditord.cli import demo_run
from auditord.cli.demo_run import _what_to_try  # pyright: ignore[reportPrivateUsage]
from auditord.cli.installation import program
from auditord.config.merging import CONTROL_FILE
from auditord.errors import PERMISSION_REMEDY, DaemonError, OutputClosed
from auditord.testing import EPOCH


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "bin/auditord"
    path.parent.mkdir()
    path.touch(0o755)
    monkeypatch.setattr(sys, "argv", [str(path)])
    monkeypatch.setenv("PATH", "/nowhere")
    return path


def test_a_program_that_no_shell_finds_is_named_by_its_path(installed: Path) -> None:
    assert program() == str(installed)


def test_a_program_in_the_path_is_named_by_its_name(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(installed.parent))
    assert program() == "auditord"


def test_another_one_in_the_path_is_not_meant(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/auditord").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    assert program() == str(installed)


def test_a_module_is_called_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/auditord/__main__.py"])
    assert program() == f"{sys.executable} -m auditord"


def test_a_user_ssh_hint_hears_how_to_reach_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    assert "ssh" not in _what_to_try("http://127.0.0.1:8000", Path("demo.yml"))
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.1 50000 192.0.2.2 22")
    assert "ssh -L 8000:127.0.0.1:8000 " in _what_to_try("http://127.0.0.1:8000", Path("demo.yml"))


def test_every_made_up_record_has_an_account_and_a_partition() -> None:
    records = list(demo_run.make_up_records(EPOCH))
    assert len(records) > 1_000
    labels = [record.meta or {} for record in records]
    assert {each["partition"] for each in labels} == {("cpu",), ("gpu",)}
    assert all(each["account"] == each["group_id"] for each in labels)


def test_the_demo_says_that_its_folder_is_deleted_once_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []
    printed: list[tuple[str, bool]] = []

    def set_up(folder: Path, port: int, *, made_up: bool) -> None:
        assert (port, made_up) == (0, True)
        folders.append(folder)

    def run_async(*_: object) -> None:
        assert folders[0].is_dir()

    def say_lines(text: str) -> None:
        printed.append((text.strip(), folders[0].exists()))

    for name, replacement in (("set_up", set_up), ("run_async", run_async), ("say_lines", say_lines)):
        monkeypatch.setattr(demo_run, name, replacement)
    demo_run.run_demo(0, check=False)
    assert printed == [("The demo is over; its temporary folder is deleted.", False)]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (DaemonError("it ended"), "auditord: it ended\n"),
        (OutputClosed("nobody reads"), ""),
        (
            PermissionError(13, "Permission denied", "/var/lib/auditord/spool.db"),
            f"auditord: /var/lib/auditord/spool.db: permission denied: {PERMISSION_REMEDY}\n",
        ),
        (
            OSError(ENOSPC, "No space left on device"),
            "auditord: the output: the disk is full: free some space, then run the command again\n",
        ),
    ],
)
def test_faults_are_one_line_and_a_reader_that_has_gone_hears_nothing(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def command() -> None:
        raise error

    monkeypatch.setattr(cli, "auditord", command)
    monkeypatch.setattr(sys, "argv", ["auditord"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert (ended.value.code, capsys.readouterr().err) == (1, said)


def test_a_variable_names_the_configuration_where_no_option_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = [tmp_path / "a.yml", tmp_path / "b.yml"]
    for path, folder in zip([*named, tmp_path / "c.yml"], ("a", "b", "c"), strict=True):
        path.write_text(f"state_dir: /srv/{folder}\n")
    monkeypatch.setenv("AUDITORD_CONFIG", ":".join(map(str, named)))
    assert "state in /srv/b" in CliRunner().invoke(cli.auditord, ["config", "check"]).output
    done = CliRunner().invoke(cli.auditord, ["config", "check", "--config", str(tmp_path / "c.yml")])
    assert "state in /srv/c" in done.output


def test_a_configuration_of_others_names_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, read_bytes = tmp_path / "auditord.yml", Path.read_bytes
    file.touch(0o000)

    def read(path: Path) -> bytes:
        if path == file:
            raise PermissionError(13, "Permission denied", str(path))
        return read_bytes(path)

    def may(path: str | Path, _: int) -> bool:
        return str(path) != str(file)

    monkeypatch.setattr(Path, "read_bytes", read)  # tests may be root's
    monkeypatch.setattr("click.types.os.access", may)
    for words, variable in ((["--config", str(file)], None), ([], str(file))):
        done = CliRunner().invoke(cli.auditord, ["status", *words], env={"AUDITORD_CONFIG": variable})
        assert str(done.exception).endswith(f"{file}: Permission denied: {PERMISSION_REMEDY}"), done.output


def allow_all_but_the_socket(path: str | Path, _: int) -> bool:
    return Path(path).name != CONTROL_FILE


def test_a_daemon_of_others_is_not_taken_for_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "auditord.yml").write_text(f"state_dir: {tmp_path}\n")
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(tmp_path / CONTROL_FILE))
        monkeypatch.setattr("auditord.cli.daemons.os.access", allow_all_but_the_socket)  # tests may be root's
        for words in (["status"], ["config", "diff"], ["collect", "a"]):
            done = CliRunner().invoke(cli.auditord, [*words, "--config", str(tmp_path / "auditord.yml")])
            assert isinstance(done.exception, PermissionError)
            assert done.exception.filename == str(tmp_path / CONTROL_FILE)
