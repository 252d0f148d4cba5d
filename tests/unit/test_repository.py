"""The repository's own rules: what the texts promise is what is there."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Final

import pytest

import auditord
from auditord.database.sql_files import load_scripts
from tests.measurements.picture import LARGEST, PICTURE
from tests.measurements.structure import Structure, docstrings_that_ask

ROOT = Path(__file__).parents[2]


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


def readme_commands() -> list[str]:
    """The first shell line of each fenced block in the section on setting up."""
    section = (ROOT / "README.md").read_text().split("## Two commands", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"```sh\n(.+?)\n```", section)


def test_ci_calls_the_readmes_test_command() -> None:
    run_demo, run_tests = readme_commands()
    assert "auditord demo" in run_demo
    assert "--quiet" not in run_demo, "who tries it for the first time would look at nothing for half a minute"
    assert run_tests in (ROOT / ".ci/run").read_text().splitlines()


PYTEST: Final = """\
#!/bin/sh
case "$*" in *slow*) leg=slow ;; *) leg=first ;; esac
touch begun
echo "the $leg leg"
[ "$FAILING" != "$leg" ]
"""
OLDEST: Final = """\
#!/bin/sh
echo the oldest versions: begun
until [ -e begun ]; do sleep 0.01; done
echo the oldest versions: ended
[ "$FAILING" != oldest ]
"""


@pytest.mark.parametrize(
    ("failing", "last", "code"),
    [
        ("", "the slow leg", 0),
        ("first", "the oldest versions: ended", 1),
        ("oldest", "the oldest versions: ended", 1),
        ("slow", "the slow leg", 1),
    ],
)
def test_ci_fails_with_each_leg_and_shows_the_output_of_the_oldest_versions_after_the_first(
    failing: str, last: str, code: int, tmp_path: Path
) -> None:
    """The stub of the oldest versions waits for the first leg to begin, so the two run at the same time."""
    programs = {
        ".ci/run": (ROOT / ".ci/run").read_text(),
        "bin/id": "#!/bin/sh\necho 1000\n",  # who may not install
        "bin/python3": "#!/bin/sh\nmkdir -p .venv/bin && cp pytest .venv/bin && cp bin/id .venv/bin/pip\n",
        "pytest": PYTEST,
        "tests/oldest-versions": OLDEST,
    }
    for name, text in programs.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "TMPDIR": str(tmp_path), "FAILING": failing}
    done = subprocess.run(
        [tmp_path / ".ci/run"], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    shown = [line for line in done.stdout.splitlines() if line.startswith("the ")]
    expected = ["the first leg", "the oldest versions: begun", "the oldest versions: ended", "the slow leg"]
    assert (shown, done.returncode) == (expected[: expected.index(last) + 1], code), done.stderr


def test_ci_installs_all_that_tests_can_have_installed() -> None:
    installers = {path.name for path in (ROOT / "tests/services").glob("*-install")}
    assert installers
    assert installers == set(
        re.findall(r"^  tests/services/(\S+-install)", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    )


def test_the_readme_is_short_and_shows_a_small_picture() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.encode()) <= 6 * 1024
    (shown,) = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    assert ROOT / shown == PICTURE, "python tests/measurements/picture.py makes it"
    assert PICTURE.read_bytes().startswith(b"\x89PNG")
    assert PICTURE.stat().st_size <= LARGEST


def test_the_changelog_has_an_entry_for_the_version() -> None:
    assert f"## [{auditord.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_no_module_is_longer_than_one_can_read() -> None:
    modules = [path for path in tracked_files() if path.suffix == ".py" and "tests" not in path.relative_to(ROOT).parts]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules}
    assert modules
    assert {name: lines for name, lines in lengths.items() if lines > 600} == {}


def test_docstrings_say_what_things_are_and_few_modules_are_tiny() -> None:
    structure = Structure(ROOT)
    assert structure.docstrings_that_ask == 0, "python tests/measurements/structure.py counts them"
    assert docstrings_that_ask(ROOT) == 0
    assert len(structure.places["modules under 30 lines"]) <= 5


def test_the_migrations_of_each_database_have_numbers_of_their_own() -> None:
    packages = {".".join(path.relative_to(ROOT).parts[:-1]) for path in (ROOT / "auditord").rglob("migrations/0*.sql")}
    assert [len(load_scripts(each)) for each in sorted(packages)] != []


def test_every_folder_of_the_host_is_on_its_map() -> None:
    map_of_folders = (ROOT / "auditord/README.md").read_text().split("## Folders", 1)[1].split("\n## ", 1)[0]
    here = {path.name for path in tracked_files_of("auditord") if not path.name.startswith("__")}
    small = {"duplicates.py", "errors.py"}
    assert {name for name in here if f"`{name}`" not in map_of_folders} - small - {"README.md", "py.typed"} == set()


def tracked_files_of(folder: str) -> set[Path]:
    """The tracked members of a folder: its files and its folders."""
    base = ROOT / folder
    return {base / path.relative_to(base).parts[0] for path in tracked_files() if path.is_relative_to(base)}


def test_the_folders_of_the_packages_are_never_imported() -> None:
    pattern = re.compile(r"^\s*(?:from|import) (?:hookspecs|builtin_plugins)\b", re.MULTILINE)
    assert [path for path in tracked_files() if path.suffix == ".py" and pattern.search(path.read_text())] == []


def test_the_import_contracts_name_all_of_the_host_and_the_client_last() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [each for each in contracts if each["type"] == "layers"]
    assert (layers["containers"], layers["exhaustive"]) == (["auditord"], True)
    assert "client" in layers["layers"][-1].split(" | ")
    (alone,) = [each for each in contracts if each["name"] == "Built-ins know nothing of the host but the client"]
    assert alone["forbidden_modules"] == ["auditord.*"]
    assert all(".client" in each for each in alone["ignore_imports"])


def test_every_package_is_typed() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "packages"
    ]
    assert [name for name in packages if not (ROOT / name / "py.typed").is_file()] == []


def test_text_reaches_a_terminal_by_one_module_alone() -> None:
    """It makes harmless what ids and names bring along."""
    pattern = re.compile(r"click\.s?echo\(|[=( ]click\.echo\b|(?<![\w.`])print\(|sys\.std(?:out|err)\.write")
    # The module itself, versions of what is installed (which imports nothing), and programs that stand for others.
    own = {"terminal.py", "frame.py", "sacct.py", "script.py"}
    modules = [path for path in tracked_files() if path.suffix == ".py" and path.name not in own]
    packages = [path for path in modules if "tests" not in path.relative_to(ROOT).parts]
    code = {path: re.sub(r'"""(?:.|\n)*?"""', "", path.read_text()) for path in packages}
    assert [str(path.relative_to(ROOT)) for path, text in code.items() if pattern.search(text)] == []
