"""``auditord audit``: compare the inventory of a collector's source with the record store for a period."""

from datetime import datetime, timedelta
from typing import Final

import click

from auditord.actions import RunRequest
from auditord.audit.values import FAULTS, STATES, AuditReport, AuditRequest
from auditord.cli.amending import principal_name
from auditord.cli.collect import Watcher
from auditord.cli.daemons import actions, log_to_terminal, url_option
from auditord.cli.installation import complete_instances, in_event_loop, load_installation, utc_now
from auditord.cli.option_types import PERIOD_INSTANT
from auditord.cli.tables import new_table, print_table
from auditord.config.kinds import list_audited
from auditord_hookspecs import AuditordError, Window
from auditord_hookspecs.terminal import check_period, output_option, say, write_json

FAULTS_LEFT: Final = 3
"""The exit code of an audit that succeeded and found faults."""

_DAYS: Final = timedelta(days=7)
_SHOWN: Final = 20


@click.command("audit")
@click.argument("instance", required=False, shell_complete=complete_instances("collectors"))
@click.option(
    "--from",
    "start",
    type=PERIOD_INSTANT,
    help="Compare runs that ended at or after this time; default: seven days before --to.",
)
@click.option(
    "--to",
    "stop",
    type=PERIOD_INSTANT,
    help="Compare runs that ended before this time; default: the beginning of today (UTC).",
)
@click.option("--repair", is_flag=True, help="Collect missing records, and missing stop times of open records.")
@click.option(
    "--replace",
    metavar="REASON",
    help="Replace records that differ; the history keeps the old versions with this reason.",
)
@click.option("--by", help="Your name in the history; default: your user name.")
@output_option
@url_option
@in_event_loop
async def audit_command(
    *,
    instance: str | None,
    start: datetime | None,
    stop: datetime | None,
    repair: bool,
    replace: str | None,
    by: str | None,
    output: str,
    url: str | None,
) -> None:
    """Compare the source of the collector INSTANCE with the record store for a period.

    Without INSTANCE, audits all enabled collectors whose kind supports it. Changes nothing without --repair or
    --replace. Exit code 0: no discrepancies remain; 1: an audit failed or is incomplete; 3: records are missing,
    quarantined, differ or are extra, or lack a stop time.
    """
    log_to_terminal()
    end = stop or utc_now().replace(hour=0, minute=0, second=0, microsecond=0)
    begin = start or end - _DAYS
    check_period(begin, end)
    window = Window(begin, end)
    if instance is not None:
        names = [instance]
    elif url is not None:
        raise click.UsageError("--url needs the name of an INSTANCE")
    else:
        installation = load_installation()
        names = list_audited(installation.configuration, installation.hooks.kinds)
        if not names:
            raise AuditordError("no enabled collector is of a kind that supports audits")
    who = principal_name(by)
    reports: list[AuditReport] = []
    for name in names:
        watcher = Watcher(name)
        with watcher.bar:
            async with actions(url, RunRequest(name, section="collectors")) as owner:
                reports.append(await owner.audit(AuditRequest(name, window, repair, replace, who), watcher))
    if output == "json":
        write_json(reports)
    else:
        for report in reports:
            _print(report)
    if any(report.error is not None for report in reports):
        raise SystemExit(1)
    if not all(report.complete for report in reports):
        raise SystemExit(FAULTS_LEFT)


def _print(report: AuditReport) -> None:
    shown = [state for state in STATES if report.total(state)]
    table = new_table("day", "site", *shown)
    for day in report.days:
        table.add_row(day.day or "?", day.site, *(str(day.counts.get(state, 0)) for state in shown))
    print_table(table)
    for each in report.discrepancies[:_SHOWN]:
        say(f"{each.state}: {' '.join(filter(None, (each.record_id, each.day, each.site, each.detail)))}")
    more = len(report.discrepancies) + report.unlisted - _SHOWN
    if more > 0:
        say(f"… and {more} more (--output json lists a thousand)")

    faults = (
        ", ".join(f"{report.total(state)} {state}" for state in FAULTS if report.total(state)) or "no discrepancies"
    )
    skipped = ", ".join(f"{count} {reason}" for reason, count in sorted(report.skipped.items()) if count)
    parts = [
        f"{report.task}, {report.start} to {report.stop}: {report.total('stored')} stored, {faults}",
        *(
            [f"{report.quarantined_beside} more in quarantine, of other or unknown periods"]
            if report.quarantined_beside
            else []
        ),
        *([f"{report.repaired} collected now"] if report.repaired else []),
        *([f"{report.replaced} replaced"] if report.replaced else []),
        *([f"no record on purpose: {skipped}"] if skipped else []),
        *([f"the source has no data from before {report.horizon}"] if report.total("forgotten") else []),
        *([] if report.extras_sought else ["did not look for extra records, which the source does not have"]),
        *([f"failed: {report.error}"] if report.error is not None else []),
    ]
    say("; ".join(parts), err=True)
