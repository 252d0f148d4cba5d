"""``auditord import``: records from elsewhere into the record store."""

import gc
from collections.abc import AsyncGenerator, Collection, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click

from auditord.cli.import_report import Findings, print_report, report_document
from auditord.cli.import_sources import open_source, source_options
from auditord.cli.installation import load_installation, run_async, utc_now
from auditord.cli.option_types import INSTANT
from auditord.cli.progress import ImportProgress
from auditord.config.kinds import configured_transform
from auditord.config.model import Configuration
from auditord.config.store_url import is_postgresql, sqlite_path
from auditord.errors import StateInUse
from auditord.importing.comparing import Compared, ComparedStore, RowState, StoreComparison
from auditord.importing.conversion import Conversion
from auditord.importing.position import PositionFile
from auditord.importing.source import Source
from auditord.importing.writing import Writer
from auditord.spool.lock import own
from auditord.store import Provenance, RecordStore
from auditord.store.opening import open_store, open_store_for_reading
from auditord_hookspecs.terminal import output_option, write_json

FOLDER: Final = "imports"
"""In state_dir: how far imports have come."""


@click.group("import")
def import_command() -> None:
    """Take over records from another accounting system."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """An import, as the options describe it.

    Args:
        cores: components that say how many cores a job had.
        replacing: whether what is stored with other content is overwritten.
        restart: whether a position that an earlier attempt has left is forgotten.
    """

    configuration: Configuration
    source: Source
    conversion: Conversion
    cores: tuple[str, ...]
    replacing: bool
    restart: bool


@import_command.command("auditor")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option(
    "--unquote", is_flag=True, help="Percent-decode record ids and meta values, as collectors before 0.7 wrote them."
)
@click.option(
    "--milliseconds", multiple=True, metavar="NAME", help="This component has milliseconds: make seconds of them."
)
@click.option(
    "--milliseconds-until", type=INSTANT, help="… only in records that stopped earlier than this; in all, if not given."
)
@click.option(
    "--cores",
    multiple=True,
    default=("Cores",),
    show_default=True,
    metavar="NAME",
    help="The component that says how many cores a job had, to recognise milliseconds by.",
)
@click.option("--dry-run", is_flag=True, help="Read everything and say what would be imported; change nothing.")
@click.option(
    "--replace",
    is_flag=True,
    help="Correct what is stored of the same runs with other content, which stays in their history, and bring back what"
    " was deleted here.",
)
@click.option("--restart", is_flag=True, help="Forget how far an earlier attempt came, and read from the beginning.")
@click.option(
    "--problems",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write every problem to this file, as NDJSON; the terminal shows the first ones.",
)
@output_option
@source_options
def auditor_command(  # Any: click's values
    *,
    sources: Sequence[str],
    unquote: bool,
    milliseconds: Sequence[str],
    milliseconds_until: datetime | None,
    cores: tuple[str, ...],
    dry_run: bool,
    replace: bool,
    restart: bool,
    problems: Path | None,
    output: str,
    **access: Any,
) -> None:
    """Take over the records of an AUDITOR, which may be running meanwhile and is never changed.

    SOURCE is its database (postgresql://user@host/auditor), its server (http://host:8000), or its archive (Parquet
    files or folders of them).

    What is there already is left as it is. An import that was killed goes on where it was when the same command is
    given again. At the end the source is read once more and compared with what is stored: the exit code is 0 only if
    every record is there.
    """
    if milliseconds_until and not milliseconds:
        raise click.UsageError("--milliseconds-until needs --milliseconds")
    if dry_run and (replace or restart):
        raise click.UsageError("--dry-run changes nothing: leave --replace and --restart out")
    installation = load_installation()
    transform = configured_transform(installation.configuration, installation.hooks.kinds)
    conversion = Conversion(unquote, frozenset(milliseconds), milliseconds_until, transform)
    wanted = _Wanted(
        installation.configuration,
        open_source(sources, **access),
        conversion,
        cores,
        replacing=replace,
        restart=restart,
    )
    with Findings.to(problems, missing_is_news=not dry_run) as findings:
        compared, stored = run_async(_look if dry_run else _import, wanted, findings)
    if output == "json":
        write_json(report_document(compared, stored, findings))
    else:
        print_report(compared, stored, findings, dry_run=dry_run)
    if findings.count or (stored is not None and stored < compared.counts[RowState.SAME]):
        raise SystemExit(1)


async def _look(wanted: _Wanted, findings: Findings) -> tuple[Compared, int | None]:
    configuration = wanted.configuration
    async with _stored(configuration) as store:
        return await _compare(wanted, store, findings), None


async def _import(wanted: _Wanted, findings: Findings) -> tuple[Compared, int | None]:
    configuration = wanted.configuration
    with _owned(configuration):
        what = (wanted.source.name, configuration.store.url, repr(wanted.conversion), str(wanted.replacing))
        file = PositionFile.of(configuration.state_dir / FOLDER, *what)
        if wanted.restart:
            file.forget()
        keys = configuration.metrics.database.counted_keys
        async with open_store(configuration.store, counted_keys=keys) as store:
            if not file.read().written:
                await _write(wanted, store, file)
            compared = await _compare(wanted, store, findings)
            file.forget()
            return compared, (await store.counts()).total


async def _write(wanted: _Wanted, store: RecordStore, file: PositionFile) -> None:
    provenance = Provenance(utc_now(), "task:import", wanted.source.name)
    with ImportProgress("importing") as progress, _without_gc():
        writer = Writer(store, provenance, wanted.conversion, progress.note, wanted.replacing)
        await writer.write_all(wanted.source, file, progress.advanced)


async def _compare(wanted: _Wanted, store: ComparedStore, findings: Findings) -> Compared:
    comparison = StoreComparison(store, wanted.conversion, wanted.cores)
    with ImportProgress("comparing") as progress, _without_gc():
        return await comparison.compare_all(wanted.source, findings.add, progress.advanced)


@contextmanager
def _without_gc() -> Generator[None, None, None]:
    """Rows hold no cycles, but thousands of them at a time would be searched for some again and again."""
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


@contextmanager
def _owned(configuration: Configuration) -> Generator[None, None, None]:
    """Own the state folder: nobody else imports with this configuration, no daemon writes the same SQLite file."""
    if not is_postgresql(configuration.store.url):
        with _explained(configuration), own(configuration.state_dir), own(configuration.state_dir / FOLDER):
            yield
        return
    with own(configuration.state_dir / FOLDER):
        yield


@contextmanager
def _explained(configuration: Configuration) -> Generator[None, None, None]:
    try:
        yield
    except StateInUse as error:
        raise StateInUse(
            f"{error}. A record store in SQLite ({configuration.store.url}) has one writer: import while the daemon is "
            "stopped (its collectors catch up afterwards), or look with --dry-run, which works beside it"
        ) from error


@asynccontextmanager
async def _stored(configuration: Configuration) -> AsyncGenerator[ComparedStore, None]:
    """The store to compare with; one in SQLite that has not been made yet has nothing."""
    url = configuration.store.url
    if not is_postgresql(url) and not sqlite_path(url).exists():
        yield _Nothing()
        return
    async with open_store_for_reading(configuration.store) as store:
        yield store


class _Nothing:
    """Implements :class:`ComparedStore` where there is no store yet."""

    async def documents(self, record_ids: Sequence[str]) -> Mapping[str, bytes]:
        del record_ids
        return {}

    async def deleted(self, record_ids: Sequence[str]) -> Collection[str]:
        del record_ids
        return ()
