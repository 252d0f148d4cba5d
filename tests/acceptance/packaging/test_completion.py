"""The completion scripts of the manual: bash completes commands, options and what is below; all three are made."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

BIN: Final = Path(sys.executable).parent
COMPLETE: Final = """\
. "$1"
complete -p auditord > /dev/null || exit 1
COMP_WORDS=(auditord "${@:2}") COMP_CWORD=$(($# - 1))
_auditord_completion auditord
echo "${COMPREPLY[@]}"
"""


def script(shell: str) -> str:
    environment = {"PATH": f"{BIN}:/usr/bin:/bin", "_AUDITORD_COMPLETE": f"{shell}_source"}
    return subprocess.run(["auditord"], env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["collect", "--config", "@", ""], {"slurm-a", "slurm-b"}),
        (["trigger", "--config", "@", "ut"], {"utilisation"}),
        (["conf"], {"config"}),
        (["config", ""], {"check", "show", "import"}),
        (["new-plugin", "--k"], {"--kind"}),
    ],
)
def test_bash_completes(words: list[str], expected: set[str], tmp_path: Path) -> None:
    (tmp_path / "auditord").write_text(script("bash"))
    (tmp_path / "a.yml").write_text("collectors: {slurm-a: {}, slurm-b: {}}\nplugins: {utilisation: {}}\n")
    words = [word.replace("@", str(tmp_path / "a.yml")) for word in words]
    command = ["bash", "-c", COMPLETE, "bash", str(tmp_path / "auditord"), *words]
    done = subprocess.run(command, env={"PATH": f"{BIN}:/usr/bin:/bin"}, capture_output=True, text=True, check=False)
    assert expected <= set(done.stdout.split()), done.stderr


def test_scripts_for_zsh_and_fish_are_made() -> None:
    assert script("zsh").startswith("#compdef auditord")
    assert "complete --no-files --command auditord" in script("fish")
