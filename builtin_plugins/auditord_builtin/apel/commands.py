"""``auditord apel``: publish now, publish a period again, show the published messages."""

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import click

from auditord_builtin.apel.accelerators import accelerator_messages
from auditord_builtin.apel.config import ApelConfig, MessageType
from auditord_builtin.apel.jobs import individual_jobs
from auditord_builtin.apel.messages import JobRow, Message, Problem, render, render_jobs, sync_message
from auditord_builtin.apel.publishing import publish, republish
from auditord_builtin.apel.sending import open_publisher
from auditord_builtin.apel.state import months_at_apel, read_state
from auditord_builtin.apel.summaries import summaries
from auditord_hookspecs import PluginContext, Records, Window
from auditord_hookspecs.commands import CommandContext, pass_context, run_instance
from auditord_hookspecs.months import Month
from auditord_hookspecs.terminal import ReadBy, check_period, output_option, write_json

KIND: Final = "apel"

_JOBS_PER_BATCH: Final = 1_000
_MOST_PROBLEMS: Final = 1_000
"""The most problems of a site that are shown as text. JSON has all of them."""
_LINE: Final = "{:<24} {:<7} {:>10} {:>10} {:>12} {:>8}  {}"


def _moment(text: str) -> datetime:
    """Parse a day or an instant, in UTC unless it has a zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither a day nor an instant: write 2026-02-01 or 2026-02-01T12:00:00") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


MONTH: Final = ReadBy("YYYY-MM", Month.parse)
MOMENT: Final = ReadBy("YYYY-MM-DD[THH:MM:SS]", _moment)

_instance: Final = click.option("--instance", "name", help="The instance to use, if several are configured.")
_dry_run: Final = click.option("--dry-run", is_flag=True, help="Show each message as it would be signed; send none.")
_sites: Final = click.option("--site", "sites", multiple=True, help="A site by its name in GOCDB; may be repeated.")


@click.group("apel")
def apel_command() -> None:
    """Report usage to EGI's accounting, APEL."""


@apel_command.command("publish")
@_instance
@_dry_run
@pass_context
def publish_command(context: CommandContext, name: str | None, *, dry_run: bool) -> None:
    """Check every month since publish_since, and report all changes."""

    async def act(config: ApelConfig, plugin_context: PluginContext) -> None:
        async with open_publisher(config, plugin_context) as publisher:
            await publish(config, plugin_context, publisher, all_months=True)

    run_instance(context, KIND, name, act, dry_run=dry_run)


@apel_command.command("republish")
@click.option("--month", type=MONTH, help="The month to report again.")
@click.option("--from", "start", type=MOMENT, help="Instead of --month: the start of the period.")
@click.option("--to", "stop", type=MOMENT, help="The end of the period (not included); default: now.")
@click.option("--force", is_flag=True, help="Also report a month that begins before publish_since, with all its jobs.")
@_sites
@_instance
@_dry_run
@pass_context
def republish_command(
    context: CommandContext,
    *,
    name: str | None,
    month: Month | None,
    start: datetime | None,
    stop: datetime | None,
    sites: Sequence[str],
    force: bool,
    dry_run: bool,
) -> None:
    """Report a period again, changed or not.

    Summaries cover whole months of UTC, so a period is widened to whole months. Individual jobs are sent for exactly
    this period.
    """
    if (month is None) == (start is None) or (month is not None and stop is not None):
        raise click.UsageError("give either --month, or --from and optionally --to")
    now = context.now()
    period = month.window if month is not None else Window(start or now, stop or now)
    check_period(period.start, period.stop)

    async def act(config: ApelConfig, plugin_context: PluginContext) -> None:
        async with open_publisher(config, plugin_context) as publisher:
            await republish(config, plugin_context, publisher, period=period, sites=sites, force=force)

    run_instance(context, KIND, name, act, dry_run=dry_run)


@apel_command.command("show")
@click.option("--month", type=MONTH, help="The messages of this month as they would be now.")
@_sites
@_instance
@output_option
@pass_context
def show_command(
    context: CommandContext, *, name: str | None, month: Month | None, sites: Sequence[str], output: str
) -> None:
    """Show reported and stored jobs by site and month, or with --month the messages and problems of that month."""

    async def act(config: ApelConfig, plugin_context: PluginContext) -> None:
        chosen = list(sites or config.site.sites_to_report)
        if unknown := [site for site in chosen if site not in config.site.sites_to_report]:
            raise click.UsageError(f"{', '.join(unknown)} is not in sites_to_report")
        if month is None and output == "json":
            write_json(list(months_at_apel(read_state(plugin_context.state), chosen)))
        elif month is None:
            for line in overview(plugin_context, chosen):
                plugin_context.show(line)
        else:
            await _show_messages(config, plugin_context, chosen, month, output)

    run_instance(context, KIND, name, act, dry_run=True)


async def _show_messages(
    config: ApelConfig, context: PluginContext, sites: Sequence[str], month: Month, output: str
) -> None:
    documents: list[dict[str, str]] = []
    for site in sites:
        place, problems = {"site": site, "month": str(month)}, list[Problem]()
        async for each in preview(config, context.records, site, month):
            if isinstance(each, Problem):
                problems.append(each)
            elif output == "json":
                documents.append({**place, "text": each.text})
            else:
                context.show(each.text.removesuffix("\n"))
        if output == "json":
            documents += [{**place, "problem": str(each)} for each in problems]
        else:
            for problem in problems[:_MOST_PROBLEMS]:
                context.show(f"# {problem}")
            if len(problems) > _MOST_PROBLEMS:
                context.show(f"# and {len(problems) - _MOST_PROBLEMS} more")
    if output == "json":
        write_json(documents)


def overview(context: PluginContext, sites: Sequence[str]) -> Iterator[str]:
    """Yield a line for each site and month, then the reasons why jobs are not reported."""
    state = read_state(context.state)
    if not any(site in state.sites for site in sites):
        yield "nothing has been reported yet"
        return
    months = list(months_at_apel(state, sites))
    yield _LINE.format("site", "month", "stored", "reported", "acknowledged", "waiting", "last acknowledged")
    for each in months:
        moment = "" if each.last_acknowledged is None else f"{each.last_acknowledged:%Y-%m-%d %H:%M:%S}Z"
        counts = (each.stored, each.reported, each.acknowledged, each.waiting)
        yield _LINE.format(each.site, each.month, *counts, moment).rstrip()
    yield from (f"! {problem}" for each in months for problem in each.problems)  # each names its site and month


async def preview(config: ApelConfig, records: Records, site: str, month: Month) -> AsyncIterator[Message | Problem]:
    """Yield the messages of a site and month as they would be now, and the problems."""
    most = config.messaging.max_message_size
    found: list[Message | Problem] = []
    if config.message_type is MessageType.SUMMARIES:
        answer = await summaries(config, records, site, month)
        found += [*sync_message(answer.counts, most), *render(answer.rows, most)]
        found += answer.problems
    else:
        rows: list[JobRow] = []
        async for job in individual_jobs(config, records, month.window, (site,)):
            if isinstance(job, Problem):
                yield job
                continue
            rows.append(job)
            if len(rows) == _JOBS_PER_BATCH:
                for message in render_jobs(rows, most):
                    yield message
                rows.clear()
        for message in render_jobs(rows, most):
            yield message
    messages, problems = await accelerator_messages(config, records, site, month, most)
    found += messages
    found += problems
    for each in found:
        yield each
