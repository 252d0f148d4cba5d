"""``auditord restore``: verify a backup and put it back."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import click

from auditord.backup.continuation import Behind, Continued, continue_from
from auditord.backup.lake_tags import LakeTags
from auditord.backup.manifest import Manifest
from auditord.backup.notes import last_backups
from auditord.backup.reach import SourceReach, query_sources
from auditord.backup.restoring import Restoration, Restored
from auditord.backup.without_backup import StartedOver, start_over
from auditord.cli.installation import Installation, load_installation, run_async, utc_now
from auditord.cli.progress import StepBar
from auditord.config.model import Configuration
from auditord.spool import Spool, own
from auditord_hookspecs.terminal import output_option, say, say_lines, write_json
from auditord_hookspecs.wire import format_time
from auditord_hookspecs.wording import counted

_AGAIN = """\
Collectors continue from their checkpoints in the backup, or from the beginning: they collect the jobs that ended since
then again, and nothing counts twice.
Plugins wait for the collectors, so that they do not report sums that are too low. The daemon runs the collectors after
its start; to run them before that:"""

_BACK = """\
The backup has the reports that plugins had sent by then: they report later changes to APEL, Waldur and others again.
Repeat all corrections, closings and deletions of records that were made since then."""

Done: TypeAlias = Restored | Continued | StartedOver

_COUNTS = "Back in the spool: {queued} that had not been sent then, and {quarantined} in quarantine."


@click.command("restore")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False), required=False)
@click.option(
    "--continue",
    "continues",
    is_flag=True,
    help="Restore the missing one of store and spool.db, and keep the other.",
)
@click.option(
    "--force", is_flag=True, help="Rename the current store and spool.db (nothing is deleted), and restore both."
)
@click.option(
    "--without-backup", is_flag=True, help="With --continue: create the missing one, and collect everything again."
)
@output_option
def restore_command(*, folder: Path | None, continues: bool, force: bool, without_backup: bool, output: str) -> None:
    """Restore the record store and spool.db from the backup FOLDER, or the newest complete backup in it.

    Without FOLDER, restores the last backup of this state folder.

    First verifies checksums, versions and the digest of all records. The daemon must not run meanwhile. After an
    interrupted restore the daemon refuses to start until the same command has completed.

    With --continue, if the record store is older than spool.db, collectors return to the backup's checkpoints and
    collect the missing jobs again. With --without-backup they read their sources from the beginning: records that
    clients posted, and jobs that a source no longer has, are lost; the command names these.
    """
    if continues and force:
        raise click.UsageError("--continue keeps the current files, --force moves them aside: use only one of them")
    if without_backup and (not continues or folder is not None):
        raise click.UsageError("--without-backup needs --continue, and no FOLDER")
    installation, bar = load_installation(), StepBar()
    configuration = installation.configuration
    place = None if without_backup else (folder or _noted(configuration.state_dir)).absolute()

    async def restore() -> Done:
        if place is None:
            return await start_over(configuration, installation.hooks.kinds, utc_now)
        verified = Restoration.verified(place, configuration.state_dir, configuration.store, utc_now, bar)
        return await continue_from(verified, configuration) if continues else await verified.replace_both(force=force)

    with own(configuration.state_dir), bar.shown:
        done = run_async(restore)
    since = _collect_since(done, configuration)
    if output == "text":
        _print(done)
        _say_what_to_collect(since)
    with own(configuration.state_dir):
        sources = done.sources if isinstance(done, StartedOver) else run_async(_sources, installation)
    warnings = [warning for each in sources if (warning := each.warning(since.get(each.name))) is not None]
    if (manifest := _manifest_of_store(done)) is not None:
        lost = run_async(LakeTags(configuration).lost_with, manifest)
        warnings += [] if lost is None else [lost]
    if output == "json":
        write_json({**_as_json(done), "collect_since": since, "warnings": warnings})
    for warning in warnings:
        say(f"warning    {warning}", err=True)


async def _sources(installation: Installation) -> Sequence[SourceReach]:
    configuration = installation.configuration
    async with Spool.opened(configuration.state_dir, utc_now) as spool:
        return await query_sources(configuration, installation.hooks.kinds, spool, utc_now)


def _noted(state_dir: Path) -> Path:
    noted = [*last_backups(state_dir).values()]
    if not noted:
        raise click.UsageError(
            f"name the FOLDER: no backup is noted in {state_dir}. If there is no backup at all, use --continue "
            "--without-backup"
        )
    return Path(noted[-1].folder)


def _print_continued(done: Continued) -> None:
    made_at = format_time(done.restoration.manifest.made_at)
    say(f"continued  with {done.restoration.backup}, as of {made_at}: {done.behind.value} was the older part")
    if done.set_back is not None:
        say(_COUNTS.format(queued=counted(done.set_back.queued, "entry"), quarantined=done.set_back.quarantined))
    if done.behind is Behind.SPOOL:
        say(f"The entries of spool.db since {made_at} are lost: posts while the store was unavailable, and quarantine.")


def _print_started_over(done: StartedOver) -> None:
    say(f"continued  without a backup: {done.behind.value} was missing or too old")
    if done.behind is Behind.STORE:
        say("What clients posted is lost, as are corrections, closings and deletions. Plugins know no earlier report.")
    else:
        say("The entries of spool.db are lost: posts while the store was unavailable, and quarantine.")


def _print(done: Done) -> None:
    if not isinstance(done, StartedOver) and done.has_tokens:
        say("tokens     restored: revoke again those that were revoked since the backup (auditord token list)")
    match done:
        case StartedOver():
            _print_started_over(done)
        case Continued(restoration, behind):
            _print_continued(done)
            if behind is Behind.STORE:
                _print_lost(restoration.manifest)
        case Restored():
            say(f"restored   {counted(done.manifest.store.records, 'record')} and the spool from {done.backup}")
            for place in done.aside:
                say(f"put aside  {place}")
            _print_lost(done.manifest)


def _manifest_of_store(done: Done) -> Manifest | None:
    """Return the manifest of the backup from which the record store was restored; None if it was kept or recreated."""
    match done:
        case Restored(_, manifest):
            return manifest
        case Continued(restoration, Behind.STORE):
            return restoration.manifest
        case _:
            return None


def _print_lost(manifest: Manifest) -> None:
    say(f"What clients posted between {format_time(manifest.made_at)} and the loss of the store is lost.")
    say_lines(_BACK)


def _as_json(done: Done) -> Mapping[str, Any]:  # Any: JSON
    match done:
        case StartedOver(behind):
            return _document(None, None, behind)
        case Continued(restoration, behind):
            return _document(restoration.backup, restoration.manifest, behind)
        case Restored(backup, manifest, aside):
            return _document(backup, manifest, None, aside)


def _document(
    backup: Path | None, manifest: Manifest | None, behind: Behind | None, aside: Sequence[str] = ()
) -> Mapping[str, Any]:  # Any: JSON
    return {
        "backup": None if backup is None else str(backup),
        "made_at": None if manifest is None else manifest.made_at,
        "records": None if manifest is None else manifest.store.records,
        "behind": None if behind is None else behind.name.lower(),
        "put_aside": aside,
    }


def _collect_since(done: Done, configuration: Configuration) -> Mapping[str, datetime | None]:
    """Return the enabled collectors with their checkpoints in the backup; None if they start from the beginning."""
    checkpoints: Mapping[str, datetime] = {}
    if not isinstance(done, StartedOver):
        manifest = done.restoration.manifest if isinstance(done, Continued) else done.manifest
        checkpoints = manifest.spool.checkpoints
    names = sorted(name for name, config in configuration.collectors.items() if config.enabled)
    return {name: checkpoints.get(name) for name in names}


def _say_what_to_collect(collect_since: Mapping[str, datetime | None]) -> None:
    say_lines(_AGAIN)
    for name, since in collect_since.items():
        reach = "from the beginning" if since is None else f"since {format_time(since)}"
        say(f"  auditord collect {name}      # {reach}")
