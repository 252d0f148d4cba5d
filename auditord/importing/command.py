"""``auditord import``: copy the records of other accounting systems into the store, with a command for each importer.

Problems are shown on the terminal and, with ``--problems``, written to a file for programs.
"""

import gc
import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, get_args, get_origin

import click
import msgspec
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from auditord.cli.frame import GuessingGroup, add_config_option
from auditord.cli.installation import load_installation, readable_disabled_hooks, run_async, utc_now
from auditord.cli.option_types import INSTANT
from auditord.cli.progress import ImportProgress
from auditord.cli.tables import new_table, print_table
from auditord.config.kinds import make_transform
from auditord.config.model import Configuration
from auditord.config.store_url import is_postgresql, sqlite_path
from auditord.contexts.instances import InstanceContext
from auditord.errors import ConfigurationError, StateInUse
from auditord.hooks import survey
from auditord.importing.comparing import Compared, RowProblem, RowState, StoreComparison
from auditord.importing.writing import PositionFile, Writer
from auditord.spool.lock import own
from auditord.store import Provenance
from auditord.store.opening import open_configured_store, open_store_for_reading
from auditord.store.store import RecordStore
from auditord_hookspecs import Importer, ImporterKind, Table, Transform
from auditord_hookspecs.terminal import output_option, say, write_json
from auditord_hookspecs.wording import counted

_SHOWN: Final = 50
_TEXT_BYTES: Final = 300


class Findings:
    """Counts problems, shows the first ones, and writes all of them to the file, if one is given.

    Args:
        missing_is_news: whether a record that the store lacks, or has open, is a problem; not in a dry run.
    """

    def __init__(self, file: BinaryIO | None, *, missing_is_news: bool) -> None:
        self._file = file
        self._expected = set[RowState]() if missing_is_news else {RowState.MISSING, RowState.STILL_OPEN}
        self.count = 0

    @classmethod
    @contextmanager
    def to(cls, path: Path | None, *, missing_is_news: bool) -> Generator["Findings", None, None]:
        """Yield findings that are written to a file at the path, if one is given.

        Raises:
            ConfigurationError: the file cannot be written.
        """
        if path is None:
            yield cls(None, missing_is_news=missing_is_news)
            return
        try:
            file = path.open("wb")
        except OSError as error:
            raise ConfigurationError(f"--problems {path}: {error.strerror}") from error
        with file:
            yield cls(file, missing_is_news=missing_is_news)

    def add(self, problem: RowProblem) -> None:
        """Count, write and show a problem."""
        if problem.finding in self._expected:
            return
        self.count += 1
        if self._file is not None:
            document = {
                "finding": problem.finding.value,
                "where": problem.where,
                "reason": problem.reason,
                "source": problem.source.decode(errors="replace"),
                "stored": None if problem.stored is None else problem.stored.decode(errors="replace"),
            }
            self._file.write(json.dumps(document, ensure_ascii=False).encode(errors="replace") + b"\n")
        if self.count <= _SHOWN:
            say(f"{problem.finding.value}: {problem.where}: {problem.reason}", err=True)
            say(f"  source: {_short(problem.source)}", err=True)
            if problem.stored is not None:
                say(f"  stored: {_short(problem.stored)}", err=True)

    @property
    def unseen(self) -> int:
        """The number of problems that were not shown."""
        return max(self.count - _SHOWN, 0)


def print_report(
    compared: Compared, stored: int | None, findings: Findings, remarks: Sequence[str | Table], *, of: str | None
) -> None:
    """Print the result of an import.

    Args:
        compared: the result of the second reading.
        stored: the number of records in the store; None for a dry run.
        findings: the problems, which were already shown.
        remarks: the importer's remarks.
        of: the system whose records were imported; None for a dry run.
    """
    say(f"{counted(compared.rows, 'row')} in the source")
    for finding, words in (_WOULD if of is None else _IS).items():
        if compared.counts[finding] or finding is RowState.SAME:
            say(f"{compared.counts[finding]:,} {words}")
    if stored is not None:
        say(f"{counted(stored, 'record')} in the store")
        if (twins := compared.counts[RowState.SAME] - stored) > 0:
            say(f"{counted(twins, 'row shares', 'rows share')} the id of another row (after the conversion)", err=True)
    if findings.unseen:
        say(f"{counted(findings.unseen, 'more problem')} not shown; --problems FILE writes all of them", err=True)
    for remark in remarks:
        if isinstance(remark, str):
            say()
            say(remark)
        else:
            table = new_table(*(column.title for column in remark.columns))
            for row in remark.rows:
                table.add_row(*map(str, row))
            print_table(table)
    _print_verdict(findings, of)


def report_document(
    compared: Compared, stored: int | None, findings: Findings, remarks: Sequence[str | Table]
) -> Mapping[str, Any]:  # Any: JSON
    """Return the report for programs; ``stored`` is null for a dry run."""
    return {
        "rows": compared.rows,
        **{finding.name.lower(): count for finding, count in compared.counts.items()},
        "stored": stored,
        "problems": findings.count,
        "remarks": [
            remark if isinstance(remark, str) else {"columns": remark.columns, "rows": remark.rows}
            for remark in remarks
        ],
    }


_IS: Final = {
    RowState.SAME: "are in the store, with equal times and content hashes",
    RowState.MISSING: "are missing in the store",
    RowState.DELETED: "were deleted from the store, and are left out",
    RowState.STILL_OPEN: "are open in the store and closed in the source",
    RowState.DIFFERENT: "differ from the stored record",
    RowState.OTHER_RUN: "have an id that belongs to another run in the store",
    RowState.OTHER_RUNTIME: "have another runtime in the source than from start to stop; the latter counts",
    RowState.UNREADABLE: "are not valid records",
}

_WOULD: Final = _IS | {
    RowState.SAME: "are already in the store",
    RowState.MISSING: "would be imported",
    RowState.DELETED: "were deleted from the store, and would be left out",
    RowState.STILL_OPEN: "would close a record that is open in the store",
}


def _print_verdict(findings: Findings, of: str | None) -> None:
    if findings.count:
        rows = counted(findings.count, "row of the source is", "rows of the source are")
        say(f"{rows} missing in the store or different there", err=True)
    if findings.count and of is not None:
        say(
            f"Run the same command again to import the records that {of} has received meanwhile. With --replace it "
            "also corrects stored records of the same runs whose content differs, and restores deleted ones.",
            err=True,
        )
    elif of is not None:
        say("The import is complete.")


def _short(text: bytes) -> str:
    shown = text[:_TEXT_BYTES].decode(errors="replace")
    return shown if len(text) <= _TEXT_BYTES else shown + "…"


FOLDER: Final = "imports"
"""The folder in state_dir with the positions of imports."""

_IMPORTERS: Final = "auditord.importers"

_HELP: Final = """\
Import the records of an {title}.

{help}

Stored records are left unchanged. A killed import resumes where it stopped when the same command is given again. At
the end the source is read once more and compared with the stored records: the exit code is 0 only if every record is
there.
"""


class _ImporterGroup(GuessingGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_importers(ctx))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        kind = _importers(ctx).get(cmd_name)
        return None if kind is None else _command_of(kind)


@click.group("import", cls=_ImporterGroup)
def import_command() -> None:
    """Import records from another accounting system."""


def _importers(ctx: click.Context) -> Mapping[str, ImporterKind[Any]]:
    if _IMPORTERS not in ctx.meta:
        with ctx.scope(cleanup=False):  # --config may have been given already
            disabled, _ = readable_disabled_hooks()
        found = survey(disabled)
        for fault in found.faults:
            say(f"auditord: {fault}", err=True)
        ctx.meta[_IMPORTERS] = found.hooks.kinds.importers
    kinds: Mapping[str, ImporterKind[Any]] = ctx.meta[_IMPORTERS]
    return kinds


def _command_of(kind: ImporterKind[Any]) -> click.Command:
    @click.command(kind.name, help=_HELP.format(title=kind.title, help=kind.help))
    @click.option("--dry-run", is_flag=True, help="Read everything and report what an import would do; change nothing.")
    @click.option(
        "--replace",
        is_flag=True,
        help="Correct stored records of the same runs whose content differs (the history keeps the old versions), and"
        " restore records that were deleted here.",
    )
    @click.option(
        "--restart", is_flag=True, help="Read from the beginning, not from the position of an earlier attempt."
    )
    @click.option(
        "--problems",
        type=click.Path(dir_okay=False, writable=True, path_type=Path),
        help="Write every problem to this file, as NDJSON; the terminal shows the first ones.",
    )
    @output_option
    def command(  # Any: click's values
        *, dry_run: bool, replace: bool, restart: bool, problems: Path | None, output: str, **options: Any
    ) -> None:
        if dry_run and (replace or restart):
            raise click.UsageError("--dry-run changes nothing: leave --replace and --restart out")
        wanted = _prepare(kind, options, replacing=replace, restart=restart)
        with Findings.to(problems, missing_is_news=not dry_run) as findings:
            compared, stored = run_async(_look if dry_run else _import, wanted, findings)
        remarks = wanted.importer.remarks()
        if output == "json":
            write_json(report_document(compared, stored, findings, remarks))
        else:
            print_report(compared, stored, findings, remarks, of=None if dry_run else wanted.title)
        if findings.count or (stored is not None and stored < compared.counts[RowState.SAME]):
            raise SystemExit(1)

    command.params[:0] = [_parameter(name, field) for name, field in kind.config.model_fields.items()]
    add_config_option(command)
    return command


def _parameter(name: str, field: FieldInfo) -> click.Parameter:
    """Return the option of a field, or an argument if the field has no default."""
    several = get_origin(field.annotation) is tuple
    leaves = _leaves(field.annotation)
    types: Mapping[object, Any] = {datetime: INSTANT, int: int, Path: click.Path(path_type=Path)}  # Any: click's
    kind = next((each for known, each in types.items() if known in leaves), str)
    if field.is_required():
        return click.Argument([name], nargs=-1 if several else 1, required=True, type=kind)
    return click.Option(
        [f"--{name.replace('_', '-')}"],
        help=field.description,
        is_flag=field.annotation is bool,
        multiple=several,
        default=field.default,
        show_default=several and bool(field.default),
        type=None if field.annotation is bool else kind,
    )


def _leaves(annotation: object) -> list[object]:
    """Return the types that an annotation is made of."""
    inner = get_args(annotation)
    return [leaf for each in inner for leaf in _leaves(each)] if inner else [annotation]


class _Wanted(msgspec.Struct, frozen=True):
    """An import, as the options describe it.

    Args:
        transform: applied to every record before it is stored.
        replacing: whether stored records with other content are corrected, and deleted ones restored.
        restart: whether to forget the saved position of an earlier attempt.
    """

    configuration: Configuration
    title: str
    importer: Importer
    transform: Transform | None
    replacing: bool
    restart: bool


def _prepare(
    kind: ImporterKind[Any],
    values: Mapping[str, Any],  # Any: click's values
    *,
    replacing: bool,
    restart: bool,
) -> _Wanted:
    try:
        options = kind.config.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        named = "".join(f"--{str(place).replace('_', '-')}: " for place in first["loc"][:1])
        raise click.UsageError(f"{named}{first['msg'].removeprefix('Value error, ')}") from error
    installation = load_installation()
    configuration = installation.configuration
    importer = kind.open(options, InstanceContext("import", kind.name, utc_now, {}))
    transform = make_transform(configuration, installation.hooks.kinds)
    return _Wanted(configuration, kind.title, importer, transform, replacing, restart)


async def _look(wanted: _Wanted, findings: Findings) -> tuple[Compared, int | None]:
    store = wanted.configuration.store
    if not is_postgresql(store.url) and not sqlite_path(store.url).exists():
        return await _compare(wanted, None, findings), None
    async with open_store_for_reading(store) as opened:
        return await _compare(wanted, opened, findings), None


async def _import(wanted: _Wanted, findings: Findings) -> tuple[Compared, int | None]:
    configuration = wanted.configuration
    with _own(configuration):
        what = (wanted.importer.name, configuration.store.url, str(wanted.replacing))
        file = PositionFile.of(configuration.state_dir / FOLDER, *what)
        if wanted.restart:
            file.forget()
        async with open_configured_store(configuration) as store:
            if not file.read().written:
                provenance = Provenance(utc_now(), "task:import", wanted.importer.name)
                with ImportProgress("importing") as progress, _disable_gc():
                    writer = Writer(store, provenance, wanted.transform, progress.note, wanted.replacing)
                    await writer.write_all(wanted.importer, file, progress.advance)
            compared = await _compare(wanted, store, findings)
            file.forget()
            return compared, (await store.counts()).total


async def _compare(wanted: _Wanted, store: RecordStore | None, findings: Findings) -> Compared:
    with ImportProgress("comparing") as progress, _disable_gc():
        comparison = StoreComparison(store, wanted.transform)
        return await comparison.compare_all(wanted.importer, findings.add, progress.advance)


@contextmanager
def _disable_gc() -> Generator[None, None, None]:
    """Disable garbage collection, which would search thousands of rows again and again, though they have no cycles."""
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


@contextmanager
def _own(configuration: Configuration) -> Generator[None, None, None]:
    """Lock out other imports with this state folder and, for SQLite, the daemon, which would write the same file."""
    with ExitStack() as stack:
        if not is_postgresql(configuration.store.url):
            try:
                stack.enter_context(own(configuration.state_dir))
            except StateInUse as error:
                raise StateInUse(
                    f"{error}. A record store in SQLite ({configuration.store.url}) has one writer: import while the "
                    "daemon is stopped (its collectors catch up afterwards), or use --dry-run, which works while the "
                    "daemon runs"
                ) from error
        stack.enter_context(own(configuration.state_dir / FOLDER))
        yield
