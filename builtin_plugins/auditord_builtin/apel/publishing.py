"""A run of the plugin, and reports by hand: which months, which sites, and what becomes of a fault."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from auditord_builtin.apel import metrics
from auditord_builtin.apel.books import Ledger, reported_as_jobs, reported_as_summary
from auditord_builtin.apel.config import ApelConfig, MessageType
from auditord_builtin.apel.due import Due, due_months, first_month, skipped_month, whole_months
from auditord_builtin.apel.job_reporting import JobReporter, begin_of
from auditord_builtin.apel.months import Month
from auditord_builtin.apel.reporting import NotReported, Reporter
from auditord_builtin.apel.sending import Publisher, open_publisher, say
from auditord_builtin.apel.transport import BrokerUnavailable
from auditord_hookspecs import AuditordError, PluginContext, Window

_RECENT: Final = timedelta(days=1)


async def run_apel(config: ApelConfig, context: PluginContext) -> None:
    """One scheduled run.

    Raises:
        AuditordError: nothing could be reported, or not everything; what is missing is tried again by the next run.
    """
    async with open_publisher(config, context) as publisher:
        await publish(config, context, publisher)


async def publish(
    config: ApelConfig, context: PluginContext, publisher: Publisher, *, all_months: bool = False
) -> None:
    """Report all that is due.

    Args:
        config: of the instance.
        context: of the run.
        publisher: where messages go.
        all_months: look at every month since ``publish_since``, even if that was done today.

    Raises:
        AuditordError: it is not known from when on jobs are to be reported, or not everything could be reported.
    """
    ledger = Ledger(context)
    since = await _settle_since(config, ledger)
    run = _Run(config, context, ledger, publisher)
    if config.message_type is MessageType.INDIVIDUAL_JOBS:
        await run.each_site(config.site.sites_to_report, lambda site: run.jobs(site, since, all_days=all_months))
    else:
        _say_what_is_skipped(context, since)
        await run.each_site(config.site.sites_to_report, lambda site: run.months(site, since, all_months=all_months))
    run.conclude()


async def republish(
    config: ApelConfig,
    context: PluginContext,
    publisher: Publisher,
    *,
    period: Window,
    sites: Sequence[str] = (),
    force: bool = False,
) -> None:
    """Report a period again, changed or not: summaries by whole months, individual jobs exactly.

    Args:
        config: of the instance.
        context: of the run.
        publisher: where messages go.
        period: of stop times.
        sites: by their names in GOCDB; none: all.
        force: also months that begin before ``publish_since``, all of their jobs.

    Raises:
        AuditordError: the period or a site is not one that may be reported, or not everything could be sent.
    """
    ledger = Ledger(context)
    run = _Run(config, context, ledger, publisher)
    chosen = _known_sites(config, sites)
    since = config.site.publish_since or ledger.books.since
    if config.message_type is MessageType.INDIVIDUAL_JOBS:
        _refuse_early(period.start, since, force=False)
        await run.each_site(chosen, lambda site: run.jobs_again(site, period))
    else:
        months = whole_months(period.start, min(period.stop, Month.of(context.now()).next.start))
        _say_what_is_widened(context, period, months)
        _refuse_early(months[0].start, since, force=force)
        await run.each_site(chosen, lambda site: run.months_again(site, months))
    run.conclude()


class _Run:
    """What goes wrong with one site or month is kept until the others had their turn."""

    def __init__(self, config: ApelConfig, context: PluginContext, ledger: Ledger, publisher: Publisher) -> None:
        self._context = context
        self._message_type = config.message_type
        self._ledger = ledger
        self._reporter = Reporter(config, context, ledger, publisher)
        self._jobs = JobReporter(config, context, ledger, publisher)
        self._faults: list[str] = []

    async def each_site(self, sites: Iterable[str], act: Callable[[str], Awaitable[None]]) -> None:
        """Let every site have its turn, whatever becomes of the others."""
        for site in sites:
            try:
                await act(site)
            except Exception as error:  # noqa: BLE001 one site's fault must not stop another; the run fails at its end
                self._note(site, site, error)

    async def months(self, site: str, since: datetime, *, all_months: bool) -> None:
        """Report the months of a site that are due; if that was all of them, and went well, it is written down."""
        now = self._context.now()
        self._refuse_both_kinds(site, first_month(since).start)
        dues = due_months(self._ledger.site(site), since, now, all_months=all_months)
        done = await self._each_month(site, dues)
        if done and first_month(since) in {due.month for due in dues}:
            await self._ledger.keep_look(site, now.date())

    async def months_again(self, site: str, months: Sequence[Month]) -> None:
        """Report months of a site, changed or not."""
        self._refuse_both_kinds(site, months[0].start)
        await self._each_month(site, [Due(month, always=True) for month in months])

    async def jobs(self, site: str, since: datetime, *, all_days: bool) -> None:
        """Send the new jobs of a site; all days since the beginning are looked at once a day, else the last ones."""
        now = self._context.now()
        self._refuse_both_kinds(site, since)
        full = all_days or self._ledger.site(site).looked != now.date()
        start = since if full else max(since, begin_of((now - _RECENT).date()))
        due = await self._jobs.due_days(site, Window(start, max(start, now)))
        reports = [
            await self._apart(site, f"{site} {day}", self._jobs.report(site, day, Window(since, now), figures))
            for day, figures in due.items()
        ]
        if full and all(reports):
            await self._ledger.keep_look(site, now.date())

    async def jobs_again(self, site: str, period: Window) -> None:
        """Send the jobs of a site that ended in exactly this period."""
        self._refuse_both_kinds(site, period.start)
        await self._jobs.send_again(site, period)

    def conclude(self) -> None:
        """End the run.

        Raises:
            NotReported: something could not be reported.
        """
        if not self._context.dry_run:
            metrics.show_books(self._context.instance, self._ledger.books)
        if self._faults:
            raise NotReported(f"not everything was reported, the next run tries again: {'; '.join(self._faults)}")

    def _refuse_both_kinds(self, site: str, begin: datetime) -> None:
        """APEL adds up summaries and individual jobs of the same time.

        Raises:
            NotReported: what is to be reported now was reported as the other kind.
        """
        book, first = self._ledger.site(site), begin.astimezone(UTC).date()
        jobs = self._message_type is MessageType.INDIVIDUAL_JOBS
        last = reported_as_summary(book, first) if jobs else reported_as_jobs(book, first)
        if last is not None:
            then, other = ("summaries", "individual_jobs") if jobs else ("individual_jobs", "summaries")
            raise NotReported(
                f"{site}: until {last} it was reported as {then}, and APEL would add up both: change to {other} from a "
                "later month on (publish_since), or leave message_type as it was"
            )

    async def _each_month(self, site: str, dues: Sequence[Due]) -> bool:
        """The newest first, since an old one that cannot be sent must not be in its way."""
        reports = [
            await self._apart(site, f"{site} {due.month}", self._reporter.report(site, due)) for due in reversed(dues)
        ]
        return all(reports)

    async def _apart(self, site: str, what: str, act: Awaitable[None]) -> bool:
        """Whether it went well; a broker that cannot be reached is no fault of this month alone.

        Raises:
            BrokerUnavailable: the rest of the site need not be tried.
        """
        try:
            await act
        except BrokerUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 a month must not stop another; the run fails at its end
            self._note(site, what, error)
            return False
        return True

    def _note(self, site: str, what: str, error: Exception) -> None:
        told = isinstance(error, AuditordError)
        self._context.log.error("%s was not reported: %s", what, error, exc_info=None if told else error)
        metrics.count_failure(self._context, site)
        self._faults.append(f"{what}: {error if told else repr(error)}")


async def _settle_since(config: ApelConfig, ledger: Ledger) -> datetime:
    """From when on jobs are reported; what the option said last is kept, for the day on which it is gone."""
    since = config.site.publish_since or ledger.books.since
    if since is None:
        raise NotReported(
            "site.publish_since is not set, and nothing was ever published: say from when on jobs are to be reported. "
            "If another program has reported to APEL until now, take the first day of the month after its last one"
        )
    if since != ledger.books.since:
        await ledger.keep_since(since)
    return since


def _known_sites(config: ApelConfig, sites: Sequence[str]) -> Sequence[str]:
    known = config.site.sites_to_report
    if unknown := [site for site in sites if site not in known]:
        raise NotReported(f"{', '.join(unknown)}: not in sites_to_report, which has {', '.join(known)}")
    return list(sites or known)


def _refuse_early(start: datetime, since: datetime | None, *, force: bool) -> None:
    if force or (since is not None and start >= since):
        return
    begins = "is not set" if since is None else f"is {since.isoformat()}"
    raise NotReported(
        f"site.publish_since {begins}, and this would replace what was reported of the time before, from "
        f"{start.isoformat()} on"
    )


def _say_what_is_skipped(context: PluginContext, since: datetime) -> None:
    month = skipped_month(since, context.now())
    if month is not None:
        say(
            context,
            f"{month} begins before publish_since ({since.isoformat()}) and is not reported: half of it would replace "
            f"the whole. If all its jobs are in the store: auditord apel republish --month {month} --force",
        )


def _say_what_is_widened(context: PluginContext, period: Window, months: Sequence[Month]) -> None:
    if (period.start, period.stop) != (months[0].start, months[-1].next.start):
        named = f"{months[0]} to {months[-1]}" if len(months) > 1 else str(months[0])
        say(context, f"Summaries are of whole months of UTC, since a part would replace the whole: reporting {named}")
