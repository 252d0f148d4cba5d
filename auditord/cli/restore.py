"""``auditord restore``: verify a backup and put it back."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import click

from auditord.backup.lake_tags import LakeTags
from auditord.backup.notes import last_backups
from auditord.backup.reach import SourceReach, query_sources
from auditord.backup.restoring import Behind, Restoration, Restored, start_over
from auditord.cli.installation import Installation, load_installation, run_async, utc_now
from auditord.cli.progress import StepBar
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


@click.command("restore")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False), required=False)
@click.option(
    "--force", is_flag=True, help="Rename the current store and spool.db (nothing is deleted), and restore both."
)
@click.option("--without-backup", is_flag=True, help="Create the missing one of both, and collect everything again.")
@output_option
def restore_command(*, folder: Path | None, force: bool, without_backup: bool, output: str) -> None:
    """Restore the record store, spool.db or both from the backup FOLDER, or the newest complete backup in it.

    Without FOLDER, restores the last backup of this state folder.

    First verifies checksums, versions and the digest of all records. The daemon must not run meanwhile. After an
    interrupted restore the daemon refuses to start until the same command has completed.

    Keeps an existing part, and restores a missing one. If the record store is then older than spool.db, collectors
    return to the backup's checkpoints and collect the missing jobs again. With --without-backup they read their sources
    from the beginning: records that clients posted, and jobs that a source no longer has, are lost; the command names
    these.
    """
    if without_backup and (force or folder is not None):
        raise click.UsageError("--without-backup goes with neither FOLDER nor --force")
    installation, bar = load_installation(), StepBar()
    configuration = installation.configuration
    place = None if without_backup else (folder or _find_noted(configuration.state_dir)).absolute()

    async def restore() -> Restored:
        if place is None:
            return await start_over(configuration, installation.hooks.kinds, utc_now)
        return await Restoration.verify(place, configuration, utc_now, bar).restore(force=force)

    with own(configuration.state_dir), bar.shown:
        done = run_async(restore)
    manifest = done.manifest
    checkpoints: Mapping[str, datetime] = {} if manifest is None else manifest.spool.checkpoints
    names = sorted(name for name, config in configuration.collectors.items() if config.enabled)
    since = {name: checkpoints.get(name) for name in names}
    if output == "text":
        _print(done)
        if since:
            say_lines(_AGAIN)
        for name, begin in since.items():
            reach = "from the beginning" if begin is None else f"since {format_time(begin)}"
            say(f"  auditord collect {name}      # {reach}")
    with own(configuration.state_dir):
        sources = run_async(_query_sources, installation)
    warnings = [warning for each in sources if (warning := each.warning(since.get(each.name))) is not None]
    if manifest is not None and done.behind is not Behind.SPOOL:
        lost = run_async(LakeTags(configuration).warn_of_loss, manifest)
        warnings += [] if lost is None else [lost]
    if output == "json":
        document = {
            "backup": None if done.backup is None else str(done.backup),
            "made_at": None if manifest is None else manifest.made_at,
            "records": None if manifest is None else manifest.store.records,
            "behind": None if done.behind is None else done.behind.name.lower(),
            "put_aside": done.aside,
            "tokens": done.has_tokens,
        }
        write_json({**document, "collect_since": since, "warnings": warnings})
    for warning in warnings:
        say(f"warning    {warning}", err=True)


async def _query_sources(installation: Installation) -> Sequence[SourceReach]:
    configuration = installation.configuration
    async with Spool.opened(configuration.state_dir, utc_now) as spool:
        return await query_sources(configuration, installation.hooks.kinds, spool, utc_now)


def _find_noted(state_dir: Path) -> Path:
    noted = [*last_backups(state_dir).values()]
    if not noted:
        raise click.UsageError(
            f"name the FOLDER: no backup is noted in {state_dir}. If there is no backup at all, use --without-backup"
        )
    return Path(noted[-1].folder)


def _print(done: Restored) -> None:
    manifest, behind = done.manifest, done.behind
    if manifest is None:
        if behind is Behind.STORE:
            say("created    without a backup: the record store was missing or too old")
            say("What clients posted is lost, as are corrections, closings and deletions.")
            say("Plugins know no earlier report.")
        else:
            say("created    without a backup: the spool was missing or too old")
            say("The entries of spool.db are lost: posts while the store was unavailable, and quarantine.")
        return
    made_at = format_time(manifest.made_at)
    if behind is None:
        say(f"restored   {counted(manifest.store.records, 'record')} and the spool from {done.backup}, as of {made_at}")
    else:
        say(f"restored   from {done.backup}, as of {made_at}: {behind.value} was missing or older")
    for moved in done.aside:
        say(f"put aside  {moved}")
    if done.has_tokens:
        say("tokens     restored: revoke again those that were revoked since the backup (auditord token list)")
    if (back := done.set_back) is not None:
        waiting = f"{counted(back.queued, 'entry')} that had not been sent then"
        say(f"Back in the spool: {waiting}, and {back.quarantined} in quarantine.")
    if behind is Behind.SPOOL:
        say(f"The entries of spool.db since {made_at} are lost: posts while the store was unavailable, and quarantine.")
    else:
        say(f"What clients posted between {made_at} and the loss of the store is lost.")
        say_lines(_BACK)
