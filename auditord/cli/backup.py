"""``auditord backup``: copy record store and spool as of one moment, with or without a running daemon."""

import json
from pathlib import Path

import click
import msgspec

from auditord.backup.creation import BackupOptions, make_backup
from auditord.backup.notes import BY_COMMAND, note_backup
from auditord.cli.frame import config_paths
from auditord.cli.installation import load_installation, run_async, utc_now
from auditord.cli.progress import StepBar
from auditord.config.merging import DEFAULT_FILE
from auditord.config.sizes import parse_size
from auditord.lake.opening import ConfiguredLake
from auditord_hookspecs.terminal import output_option, say, say_lines, write
from auditord_hookspecs.wire import format_time
from auditord_hookspecs.wording import counted


def _size(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    try:
        size: int | None = parse_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if size is not None and size <= 0:
        raise click.BadParameter("it must be more than 0")
    return size


@click.command("backup")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    help="Remove backups in FOLDER except the newest N, and the last one of each of the newest N days.",
)
@click.option("--rate", metavar="SIZE", callback=_size, help="Read at most this much per second, such as 50MB.")
@click.option("--dump", is_flag=True, help="Also dump a record store in PostgreSQL with pg_dump.")
@output_option
def backup_command(*, folder: Path, keep: int | None, rate: int | None, dump: bool, output: str) -> None:
    """Make a consistent backup in a new folder below FOLDER while the daemon runs.

    Copies all pages of SQLite files and verifies the copy. Includes a record store in PostgreSQL only with --dump. A
    folder without manifest.json is an unfinished backup.
    """
    options = BackupOptions(folder.absolute(), keep, rate, dump)
    configuration, bar = load_installation().configuration, StepBar()
    with bar.shown:
        made = run_async(make_backup, configuration, options, utc_now, bar)
        note_backup(configuration.state_dir, BY_COMMAND, made)
    files = ", ".join(map(str, config_paths() or [DEFAULT_FILE.parent]))
    outside = [  # a new host would need these, too
        f"{files}: the configuration, with all files that it names (credentials, the key of pseudonyms, TLS keys)"
    ]
    if configuration.lake.is_there:
        outside.append(f"{ConfiguredLake(configuration).warehouse}: the lake, and its catalog")
    manifest = made.manifest
    if output == "json":
        document = {"folder": str(made.folder), "discarded": list(map(str, made.discarded)), "outside": outside}
        write(json.dumps({**document, **msgspec.to_builtins(manifest)}, indent=2) + "\n")
        return
    say(f"backup     {made.folder}, as of {format_time(manifest.made_at)}")
    waiting = counted(sum(manifest.spool.queued.values()), "entry queued", "entries queued")
    say(f"records    {manifest.store.records}; digest {manifest.store.digest}")
    say(f"spool      {waiting}, {manifest.spool.quarantined} in quarantine")
    for name, file in manifest.files.items():
        say(f"file       {name}: {file.size} bytes")
    for discarded in made.discarded:
        say(f"removed    {discarded}")
    for each in outside:
        say(f"not in it  {each}")
    if made.advice:
        say_lines(made.advice)
