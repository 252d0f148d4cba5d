"""A file that ``auditord config import`` cannot take says why."""

from pathlib import Path

import pytest

from auditord.config.importing import import_files
from auditord.errors import ConfigurationError
from auditord.hooks import load_hooks

KINDS = load_hooks([]).kinds
SLURM = "sacct_frequency: 10\nsites: [{name: A}]\n"


def refusal_of(tmp_path: Path, text: str) -> str:
    file = tmp_path / "c.yml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        import_files([file], KINDS)
    return str(caught.value)


@pytest.mark.parametrize("text", ["", "# all of it\n# is a comment\n", "{}\n"])
def test_a_file_that_sets_nothing_is_said_to(tmp_path: Path, text: str) -> None:
    assert "c.yml sets nothing" in refusal_of(tmp_path, text)


def test_the_one_unknown_option_is_named(tmp_path: Path) -> None:
    assert "has an option 'sacct_freqency'" in refusal_of(tmp_path, f"{SLURM}sacct_freqency: 5\n")


def test_a_file_of_something_else_is_told_what_is_known(tmp_path: Path) -> None:
    assert "its slurm collector" in refusal_of(tmp_path, "foo: 1\nbar: 2\n")
