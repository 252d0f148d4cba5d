"""The tutorial for authors, as it stands in the manual: its files in new distributions, whose tests pass."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from markdown_it import MarkdownIt

from auditord.cli import auditord
from auditord.manual import text_of

FENCES = [token for token in MarkdownIt().parse(text_of("writing-plugins")) if token.type == "fence"]
COMMANDS = [line.removeprefix("$ auditord ").split() for each in FENCES for line in each.content.splitlines()]
NEW = [words for words in COMMANDS if words and words[0] == "new-plugin"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three distributions, with the tutorial's files in place of those that were made."""
    made = tmp_path_factory.mktemp("tutorial")
    for words in NEW:
        done = CliRunner().invoke(auditord, [*words, "--into", str(made)])
        assert done.exit_code == 0, done.output
    for fence in FENCES:
        if match := re.fullmatch(r"python (?:(\w+) of )?(.*?(?:auditord|test)_(\w+)(?:/__init__)?\.py)", fence.info):
            function, path, name = match.groups()
            write(made / f"auditord-{name}" / path, fence.content, function)
    return made


def write(path: Path, text: str, function: str | None) -> None:
    """Put a text into a file that is there, or in place of one of its functions."""
    before = path.read_text()
    if function is not None:
        text = re.sub(rf"(?ms)^async def {function}\(.*?\n\n\n", lambda _: f"{text}\n\n", before)
        text = text.replace("    Duration,\n", "").replace(
            "    ComponentUsage,", "    CalendarUnit,\n    ComponentUsage,"
        )
        text = text.replace("import datetime, timedelta", "import datetime, time, timedelta")
        text = re.sub(r"^    period: Duration.*\n", "", text, flags=re.MULTILINE)
    assert text != before
    path.write_text(text)


def assert_done(folder: Path, *command: str | Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tests_of_the_tutorial_pass(folder: Path) -> None:
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "auditord-pbs/pyproject.toml"]
    sources = f"-opythonpath={' '.join(str(each) for each in folder.glob('*/src'))}"
    assert "6 passed" in assert_done(folder, sys.executable, *words, sources, *folder.glob("*/tests"))


def test_what_the_tutorial_makes_is_tidy(folder: Path) -> None:
    ruff = Path(sys.executable).with_name("ruff")
    for made in folder.iterdir():
        assert_done(made, ruff, "check")
        assert_done(made, ruff, "format", "--check")


def test_it_makes_three_kinds() -> None:
    assert [words[1:] for words in NEW] == [
        ["pbs", "--kind", "collector"],
        ["webhook", "--kind", "plugin"],
        ["journal", "--kind", "sender"],
    ]
