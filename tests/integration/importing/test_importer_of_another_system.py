"""An importer that the host has never heard of: a ledger of lines, read by ``auditord import ledger``."""

import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result

from auditord.cli import auditord
from auditord.hooks.hooks import HookEntry, HookModule, find_entries
from auditord.store.opening import open_store_for_reading
from auditord.testing import make_record
from auditord_hookspecs import (
    Column,
    Context,
    ImportedConfig,
    ImporterKind,
    ImportPage,
    ImportRow,
    InvalidRecord,
    Record,
    Section,
    Table,
    hookimpl,
)

Run = Callable[..., Result]


class LedgerOptions(Section):
    file: Path
    skip: int = 0
    until: datetime | None = None
    labels: tuple[str, ...] = ()


class Ledger:
    """One page for each line: an id, and the runtime that the ledger claims."""

    def __init__(self, options: LedgerOptions) -> None:
        self.name = f"the ledger {options.file}"
        self._options = options
        self._read = 0

    async def pages(self, position: str | None) -> AsyncGenerator[ImportPage, None]:
        first, self._read = int(position or self._options.skip), 0
        lines = self._options.file.read_text().splitlines()
        for number, line in enumerate(lines[first:], start=first):
            name, _, claimed = line.partition(" ")
            record = make_record(name) if name != "?" else InvalidRecord("no name")
            row = ImportRow(f"line {number + 1}", line.encode())
            self._read += 1
            yield page(record, str(number + 1), row, int(claimed) if claimed else None)

    def remarks(self) -> Sequence[str | Table]:
        return ["Lines by label:", Table([Column("label"), Column("lines")], [("all", self._read)])]


def page(record: Record | InvalidRecord, position: str, row: ImportRow, runtime: int | None) -> ImportPage:
    return ImportPage([record], position, 0.5, lambda _: row, [runtime])


def open_ledger(options: LedgerOptions, context: Context) -> Ledger:
    assert context.now().tzinfo
    return Ledger(options)


def import_config(document: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> ImportedConfig | None:
    if "ledger" not in document:
        return None
    notes = [f"{len(others)} other files"]
    return ImportedConfig({"api.hosts": [each["host"] for each in others if "host" in each]}, notes=notes)


def import_environment(environ: Mapping[str, str], written: Mapping[str, Any]) -> ImportedConfig:
    port = environ["LEDGER_PORT"]
    if not port.isdigit():
        raise ValueError("LEDGER_PORT: a ledger would refuse it")
    sections = {"api.listen": [f"127.0.0.1:{port}"]} | ({} if "logging" in written else {"logging.level": "debug"})
    return ImportedConfig(sections, {"api.listen": "LEDGER_PORT"}, {"LEDGER_INK": ""}, "Ledger")


@hookimpl
def auditord_importers() -> Iterable[ImporterKind[LedgerOptions]]:
    yield ImporterKind(
        name="ledger",
        title="ledger",
        config=LedgerOptions,
        open=open_ledger,
        import_config=import_config,
        import_environment=import_environment,
    )


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    found = [*find_entries()]
    module = ModuleType("acme_ledger")
    vars(module)["auditord_importers"] = auditord_importers
    found.append(HookEntry(HookModule("ledger", "acme_ledger", "acme", "1"), lambda: module))
    monkeypatch.setattr("auditord.hooks.loading.find_entries", lambda: found)
    config = tmp_path / "auditord.yml"
    config.write_text(json.dumps({"state_dir": str(tmp_path / "state"), "store": {"url": f"sqlite://{tmp_path}/r.db"}}))

    def run(*words: object, **environ: str) -> Result:
        runner = CliRunner(env={"HOME": str(tmp_path), **environ})
        return runner.invoke(auditord, ["--config", str(config), *map(str, words)], prog_name="auditord")

    return run


def stored(tmp_path: Path) -> list[str]:
    async def read() -> list[str]:
        async with open_store_for_reading(f"sqlite://{tmp_path}/r.db") as store:
            return sorted(await store.documents(["a", "b", "c"]))

    return anyio.run(read)


def test_its_records_come_in_and_are_compared(run: Run, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    ledger.write_text("skipped\na 3600\nb\n")
    done = run("import", "ledger", ledger, "--skip", "1")
    assert done.exit_code == 0, done.output
    assert stored(tmp_path) == ["a", "b"]
    assert "2 are in the store" in done.stdout
    assert "\nLines by label:\nlabel  lines\nall    2\nThe import is complete.\n" in done.stdout
    ledger.write_text("a 7\n?\nb\n")
    done = run("import", "ledger", ledger, "--output", "json")
    assert done.exit_code == 1
    assert (
        "another runtime: line 1: a: the source has a runtime of 7 s, but from start to stop it is 3600 s"
        in done.stderr
    )
    assert "unreadable: line 2: no name\n  source: ?" in done.stderr
    found = json.loads(done.stdout)
    assert (found["rows"], found["same"], found["other_runtime"], found["unreadable"]) == (3, 1, 1, 1)
    assert found["remarks"][1]["rows"] == [["all", 3]]


def test_its_options_are_those_of_its_model(run: Run, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    ledger.write_text("a\n")
    assert "ledger" in run("import", "--help").stdout
    assert "--until TIME" in run("import", "ledger", "--help").stdout
    assert run("import", "ledger", ledger, "--labels", "x", "--labels", "y", "--until", "2026-01-01").exit_code == 0
    for wrong in (["--skip", "many"], ["--until", "soon"], ["--dry-run", "--restart"]):
        assert run("import", "ledger", ledger, *wrong).exit_code == 2
    assert run("import", "ledger").exit_code == 2
    assert run("import", "paper", ledger).exit_code == 2


def test_its_servers_file_becomes_ours(run: Run, tmp_path: Path) -> None:
    server, client = tmp_path / "server.yml", tmp_path / "client.yml"
    server.write_text("ledger: {}\n")
    client.write_text("sacct_frequency: 10\n")
    done = run("config", "import", server, client)
    assert "1 other files" in done.stdout, done.output


def test_its_environment_sets_options_below_ours(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("auditord.config.foreign_environment.FOREIGN_PREFIXES", ("LEDGER_",))
    shown = json.loads(run("config", "show", "--output", "json", LEDGER_PORT="81").stdout)["configuration"]
    assert (shown["api"]["listen"], shown["logging"]["level"]) == (["127.0.0.1:81"], "debug")
    assert (
        """LEDGER_PORT: accepted as a variable of Ledger; set AUDITORD_API__LISTEN=["127.0.0.1:81"] instead"""
        in caplog.text
    )
    assert "LEDGER_INK: ignored: Ledger's server has this variable" in caplog.text
    ours = run("config", "show", "--output", "json", LEDGER_PORT="81", AUDITORD_API__LISTEN='["127.0.0.1:82"]')
    assert json.loads(ours.stdout)["configuration"]["api"]["listen"] == ["127.0.0.1:82"]
    assert "a ledger would refuse it" in str(run("config", "show", LEDGER_PORT="x").exception)
