"""``auditord new-plugin`` refuses names that no kind can have, and changes nothing that is there."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from auditord.cli.new_plugin import new_plugin_command


def new_plugin(folder: Path, name: str, kind: str = "collector") -> Result:
    return CliRunner().invoke(new_plugin_command, [name, "--kind", kind, "--into", str(folder)])


@pytest.mark.parametrize("name", ["", "Pbs", "1pbs", "pbs-", "a--b", "../pbs", "pbs\n", "x" * 31, "pbs pro"])
def test_a_name_that_no_kind_can_have_is_refused(tmp_path: Path, name: str) -> None:
    done = new_plugin(tmp_path, name)
    assert (done.exit_code, "print-pages" in done.output) == (2, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["print-pages", "print_pages", "auditord-print-pages"])
def test_the_distribution_has_the_kind_s_name(tmp_path: Path, name: str) -> None:
    done = new_plugin(tmp_path, name)
    assert (done.exit_code, f"cd {tmp_path}/auditord-print-pages" in done.output) == (0, True)
    text = (tmp_path / "auditord-print-pages/pyproject.toml").read_text()
    assert ('print_pages = "auditord_print_pages"' in text, "$" in text) == (True, False)


def test_what_is_there_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "auditord-pbs").mkdir()
    done = new_plugin(tmp_path, "pbs")
    assert "auditord-pbs already exists: choose another name" in str(done.exception)
    assert list((tmp_path / "auditord-pbs").iterdir()) == []
    assert "cannot be written: " in str(new_plugin(Path("/proc/nowhere"), "pbs").exception)


@pytest.mark.parametrize(
    ("kind", "name", "owner"),
    [
        ("collector", "slurm", "the collector slurm has this name already"),
        ("collector", "slurm-epilog", "the collector slurm_epilog has this name already"),
        ("importer", "auditor", "the importer auditor has this name already"),
        ("panel", "slurm", "the hook module auditord_builtin.slurm (entry point slurm of auditord"),
    ],
)
def test_the_name_of_what_is_installed_is_refused(tmp_path: Path, kind: str, name: str, owner: str) -> None:
    done = new_plugin(tmp_path, name, kind)
    assert (done.exit_code, owner in " ".join(done.output.split())) == (2, True)
    assert list(tmp_path.iterdir()) == []
