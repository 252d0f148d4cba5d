"""Count the mutants that no test notices: `python tests/mutation/run.py [--folder FOLDER] [AREA...]`.

mutmut changes a copy of the tree, never the tree itself. The mutants of an area are drawn at random from all that
mutmut can make of its modules, with the seed in areas.toml: the same tree gives the same mutants. `mutmut show NAME`,
called in the folder of the area, prints one of them.

A survivor is tried again with every test of its area in a new process: mutmut's workers have imported the modules
before the mutant is in force, so that what runs at import is unchanged in them.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("auditord", "hookspecs/auditord_hookspecs", "builtin_plugins/auditord_builtin")
MUTMUT: Final = Path(sys.executable).with_name("mutmut")
PYTEST: Final = ("-p", "no:cacheprovider", "-p", "no:xdist", "-k", "not real_slurm")
SECONDS: Final = 600
"""Time for all tests of an area in a new process; a mutant that takes longer is noticed."""

SURVIVED: Final = {0: "survived", 33: "no test runs it"}
"""The meaning of mutmut's exit codes; all others are failures of tests, or ends of its patience."""

SETTINGS: Final[Mapping[str, object]] = {
    "source_paths": [Path(each).name for each in PACKAGES],
    # Programs that run without our packages on their path.
    "do_not_mutate": ["auditord_builtin/slurm/demo/sacct.py", "auditord_builtin/slurm/epilog/script.py"],
    "pytest_add_cli_args": PYTEST,
    # Workers that are forked from a process that has run the tests would begin with its metrics and caches.
    "process_isolation": "forkserver",
    "timeout_constant": 10.0,
    "timeout_multiplier": 3.0,
    "track_dependencies": False,
    "use_git_change_detection": False,
}


@dataclass(frozen=True, slots=True)
class Area:
    """A part of the tree.

    Args:
        name: of its folder.
        modules: patterns of paths, below the folder that holds the packages.
        tests: files and folders that have to notice a mutant in it.
        mutants: number to draw.
    """

    name: str
    modules: list[str]
    tests: list[str]
    mutants: int


def copy_tree(folder: Path) -> None:
    """Copy what git knows; packages go to the top as well, since mutmut takes a module's name from its path."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.rstrip("\0").split("\0"):
        for target in {name, name.removeprefix("hookspecs/").removeprefix("builtin_plugins/")}:
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / target)


def write_settings(folder: Path, area: Area) -> None:
    """Write mutmut's settings to setup.cfg, which it reads in the folder that it is called in."""
    others = sorted({path.name for path in folder.iterdir()} - {Path(each).name for each in PACKAGES})
    own = {"only_mutate": area.modules, "pytest_add_cli_args_test_selection": area.tests, "also_copy": others}
    text = "[mutmut]\n"
    for name, value in {**SETTINGS, **own}.items():
        lines = [f"\n    {each}" for each in value] if isinstance(value, list | tuple) else [str(value)]
        text += f"{name} = {''.join(lines)}\n"
    (folder / "setup.cfg").write_text(text)


def mutmut(folder: Path, *arguments: str) -> None:
    """Call mutmut; what it prints goes to mutmut.log."""
    with (folder / "mutmut.log").open("a") as log:
        subprocess.run([MUTMUT, *arguments], cwd=folder, stdout=log, stderr=log, check=False)


def results(folder: Path) -> dict[str, int | None]:
    """The exit code of each mutant's tests; None if they did not run."""
    found: dict[str, int | None] = {}
    for path in sorted((folder / "mutants").rglob("*.meta")):
        stored: Mapping[str, Any] = json.loads(path.read_text())
        found |= stored["exit_code_by_key"]
    return found


def draw(names: Iterable[str], number: int, seed: int) -> list[str]:
    """Draw some of the names."""
    ordered = sorted(names)
    return random.Random(seed).sample(ordered, min(number, len(ordered)))  # noqa: S311 # a sample, no secret


def is_noticed(folder: Path, area: Area, name: str) -> bool:
    """Run all tests of an area in a new process, in which a mutant is in force from the first import on."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--rootdir=.", *PYTEST, *area.tests]
    environment = {**os.environ, "MUTANT_UNDER_TEST": name}
    try:
        done = subprocess.run(
            command, cwd=folder / "mutants", env=environment, capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def verdicts(folder: Path, area: Area, drawn: Iterable[str]) -> dict[str, str]:
    """Each mutant with what became of it."""
    codes = results(folder)
    if untried := [name for name in drawn if codes[name] is None]:
        raise SystemExit(f"{len(untried)} mutants were not tried; {folder / 'mutmut.log'} says why")
    found = {name: SURVIVED.get(codes[name] or 0, "killed") for name in drawn}
    return {
        name: "killed" if verdict != "killed" and is_noticed(folder, area, name) else verdict
        for name, verdict in found.items()
    }


def try_area(folder: Path, area: Area, seed: int, jobs: int) -> Mapping[str, str]:
    """Draw an area's mutants and try them."""
    shutil.rmtree(folder, ignore_errors=True)
    copy_tree(folder)
    write_settings(folder, area)
    mutmut(folder, "run", "--max-children", str(jobs), "none of them")  # makes all, and finds out what each test runs
    drawn = draw(results(folder), area.mutants, seed)
    mutmut(folder, "run", "--max-children", str(jobs), *drawn)
    return verdicts(folder, area, drawn)


def write_report(area: Area, found: Mapping[str, str]) -> None:
    """Print the figures of an area and the names of its survivors."""
    counts = ", ".join(f"{number} {verdict}" for verdict, number in sorted(Counter(found.values()).items()))
    lines = [f"{area.name}: {len(found)} made, {counts}"]
    lines += [f"  {name}: {verdict}" for name, verdict in sorted(found.items()) if verdict != "killed"]
    sys.stdout.write("\n".join([*lines, ""]))
    sys.stdout.flush()


def main() -> None:
    """Try the areas one after another."""
    settings = tomllib.loads(Path(__file__).with_name("areas.toml").read_text())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(gettempdir()) / "auditord-mutants", help="of the copies")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"one of {', '.join(settings['areas'])}; else all")
    options = parser.parse_args()
    for name in options.areas or settings["areas"]:
        area = Area(name=name, **settings["areas"][name])
        write_report(area, try_area(options.folder / name, area, settings["seed"], options.jobs))


if __name__ == "__main__":
    main()
