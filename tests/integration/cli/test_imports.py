"""Commands that only look start fast. Imports are most of their time, so what each may import is listed here."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import anyio
import pytest

from auditord.spool import Spool
from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord.testing import make_record

NOW: Final = datetime.now(UTC)

RUN: Final = """
import sys
from auditord.cli import main
try:
    main()
except SystemExit as ended:
    assert ended.code in (None, 0, 3), ended.code
print(*sys.modules, file=sys.stderr)
"""

LIBRARIES: Final = {"anyio", "click", "msgspec", "typing_extensions", "uvloop", "yaml"}
"""All that may come from elsewhere: no rich, no aiohttp, no psycopg, and no pydantic with the models of options."""

LOOKING: Final = {"cli", "config", "database", "errors"}
STORE: Final = LOOKING | {"duplicates", "store"}
OURS: Final = {
    "records": STORE | {"reporting"},  # its table has the labels that reports have
    "top": STORE | {"reporting"},
    "quarantine list": LOOKING | {"spool", "web"},
    "status": STORE | {"backup", "spool"},
}
"""Parts of the daemon."""

READING: Final = {"entries", "errors", "records", "roles", "terminal", "vocabulary", "wire", "wording"}
OF_STORE: Final = READING | {"aggregates", "query", "spreadsheets", "zones"}
CONTRACT: Final = {
    "records": OF_STORE,
    "top": OF_STORE,
    "quarantine list": READING | {"batches", "folders"},
    "status": READING | {"aggregates", "batches", "folders", "query", "zones"},
}
"""Parts of the contract."""

SLOW: Final = {"email.parser", "http.client", "urllib.request", "xml"}


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("host")
    (folder / "state").mkdir()
    file = folder / "auditord.json"
    files = {"kind": "files", "folder": str(folder / "dropped")}
    file.write_text(json.dumps({"state_dir": str(folder / "state"), "collectors": {"files": files}}))

    async def fill() -> None:
        async with Spool.opened(folder / "state", lambda: NOW):
            pass
        async with open_store(f"sqlite://{folder}/state/records.db", counted_keys=()) as store:
            await store.add(make_record("job-1", start=NOW), Provenance(NOW), Duplicates.SAME_RUN)

    anyio.run(fill)
    return file


@pytest.mark.parametrize("command", OURS)
def test_a_command_that_looks_imports_little(configuration: Path, command: str) -> None:
    arguments = [sys.executable, "-c", RUN, "--config", str(configuration), *command.split()]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=60)
    modules = set(done.stderr.splitlines()[-1].split())
    tops = {name.partition(".")[0] for name in modules}
    assert {name for name in tops if _is_foreign(name)} <= LIBRARIES
    assert {name.split(".")[1] for name in modules if name.startswith("auditord.")} <= OURS[command]
    assert {name for name in modules if name.startswith("auditord.web.")} <= {
        "auditord.web.api", "auditord.web.api.shapes",
        "auditord.web.problem_shapes",
    }  # fmt: skip
    contract = {name.split(".")[1] for name in modules if name.startswith("auditord_hookspecs.")}
    assert contract <= CONTRACT[command]
    assert not modules & SLOW


def test_top_says_the_same_with_the_models_of_options_and_without(configuration: Path) -> None:
    command, arguments = [sys.executable, "-m", "auditord", "--config"], ("top", "sites", "--output", "json")
    with_models = configuration.with_name("with-models.json")
    with_models.write_text(json.dumps({**json.loads(configuration.read_text()), "ui": {}}))
    plain, modelled = (
        subprocess.run([*command, str(file), *arguments], capture_output=True, check=True, timeout=60)
        for file in (configuration, with_models)
    )
    assert plain.stdout == modelled.stdout
    assert b"core-hours" in plain.stdout


FIRST_LINE: Final = """
import sys
from auditord.cli import main

class Screen:
    def write(self, text):
        if not text:
            return
        print(text.strip(), file=sys.stderr)
        print(*sys.modules, file=sys.stderr)
        raise SystemExit

    def flush(self):
        pass

sys.stdout = Screen()
main()
"""


def test_the_demo_says_something_before_it_imports_the_daemon() -> None:
    arguments = [sys.executable, "-c", FIRST_LINE, "demo"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=60)
    line, modules = done.stderr.splitlines()
    assert "starting a daemon in a temporary folder" in line
    assert {name.split(".")[1] for name in modules.split() if name.startswith("auditord.")} <= {"cli", "config"}
    assert "aiohttp" not in modules.split()


def _is_foreign(name: str) -> bool:
    of_python = name in sys.stdlib_module_names or name.startswith(("_", "cython_runtime"))
    return not of_python and name not in {"auditord", "auditord_hookspecs"}
