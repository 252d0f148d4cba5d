"""The plugin kind ``apel``: its runs, which report one site after the other, and its check for doctor."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from auditord_builtin.apel import metrics
from auditord_builtin.apel.config import ApelConfig, MessageType, needs, needs_labels, remarks
from auditord_builtin.apel.importing import detect, import_client_file, import_config
from auditord_builtin.apel.jobs import JobReporter
from auditord_builtin.apel.questions import site_groups
from auditord_builtin.apel.reporting import NotReported, Part, Reporter, SummaryReporter
from auditord_builtin.apel.sending import (
    BrokerUnavailable,
    CertificateUnusable,
    Publisher,
    load_credentials,
    open_broker,
    open_publisher,
    say,
)
from auditord_builtin.apel.state import SavedState, show_state
from auditord_hookspecs import AuditordError, Context, ImportedConfig, PluginContext, PluginKind, Window
from auditord_hookspecs.checks import Finding, Severity, check_certificate
from auditord_hookspecs.config_import import Document
from auditord_hookspecs.months import Month


async def run_apel(config: ApelConfig, context: PluginContext) -> None:
    """Run the plugin once.

    Raises:
        AuditordError: some or all jobs could not be reported. The next run tries again.
    """
    async with open_publisher(config, context) as publisher:
        await publish(config, context, publisher)


async def publish(
    config: ApelConfig, context: PluginContext, publisher: Publisher, *, all_months: bool = False
) -> None:
    """Report everything that is due. With ``all_months``, check every month, even if that was already done today.

    Raises:
        AuditordError: ``publish_since`` was never set, or some jobs could not be reported.
    """
    run = _Run(config, context, publisher)
    since = config.site.publish_since or run.saved.reported.since
    if since is None:
        raise NotReported(
            "site.publish_since is not set, and nothing has been published yet: set it to the time from which jobs are "
            "to be reported. If another program has reported to APEL until now, use the first day of the month after "
            "its last report"
        )
    if since != run.saved.reported.since:
        await run.saved.save(since=since)  # the option may be removed later
    month = Month.of(since)
    if config.message_type is MessageType.SUMMARIES and month.start < since and month <= Month.of(context.now()):
        text = (
            f"{month} begins before publish_since ({since.isoformat()}) and is not reported: a part would replace "
            f"the whole. If all its jobs are in the store: auditord apel republish --month {month} --force"
        )
        say(context, text)
    await run.report_sites(config.site.sites_to_report, lambda site: run.due(site, since, all_months=all_months))
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
    """Report the jobs that ended in a period again, changed or not. Summaries are widened to whole months.

    ``sites`` are names in GOCDB; empty means all. ``force`` includes months that begin before ``publish_since``.

    Raises:
        AuditordError: the period or a site may not be reported, or some messages could not be sent.
    """
    run = _Run(config, context, publisher)
    known = config.site.sites_to_report
    if unknown := [site for site in sites if site not in known]:
        raise NotReported(f"{', '.join(unknown)}: not in sites_to_report, which has {', '.join(known)}")
    if period.stop <= period.start:
        raise NotReported("the period ends before it begins")
    if period.start > context.now():
        raise NotReported(f"the period begins at {period.start.isoformat()}, in the future")
    widened = run.reporter.widen(period)
    if not (force and config.message_type is MessageType.SUMMARIES):
        since = config.site.publish_since or run.saved.reported.since
        if since is None or widened.start < since:
            begins = "is not set" if since is None else f"is {since.isoformat()}"
            raise NotReported(
                f"site.publish_since {begins}, and this would replace earlier reports from"
                f" {widened.start.isoformat()} on"
            )
    await run.report_sites(sites or known, lambda site: run.again(site, widened))
    run.conclude()


class _Run:
    """One run. Errors of a site or month are raised at the end, after all others have been reported."""

    def __init__(self, config: ApelConfig, context: PluginContext, publisher: Publisher) -> None:
        self._config = config
        self._context = context
        self.saved = SavedState(context)
        kind = JobReporter if config.message_type is MessageType.INDIVIDUAL_JOBS else SummaryReporter
        self.reporter: Reporter = kind(config, context, self.saved, publisher)
        self._faults: list[str] = []

    async def report_sites(self, sites: Iterable[str], act: Callable[[str], Awaitable[None]]) -> None:
        """Report every site, even if another site fails."""
        for site in sites:
            try:
                await act(site)
            except Exception as error:  # noqa: BLE001 one site's fault must not stop another; the run fails at its end
                self._note(site, site, error)

    async def due(self, site: str, since: datetime, *, all_months: bool) -> None:
        """Report the due parts of a site. If all parts were checked and reported, save the day of the check."""
        now, begin = self._context.now(), self.reporter.begin(since)
        self.reporter.refuse_other_kind(site, begin)
        await self._refuse_unknown_ids(site, begin)
        # != rather than <: a clock that was ahead must not delay the next check.
        full = all_months or self.saved.site(site).looked != now.date()
        done = await self._report_parts(site, await self.reporter.due(site, since, full=full))
        if done and full and begin <= now:
            await self.saved.save_site(site, looked=now.date())

    async def again(self, site: str, period: Window) -> None:
        """Report a period of a site, changed or not."""
        self.reporter.refuse_other_kind(site, period.start)
        await self._refuse_unknown_ids(site, self.saved.reported.since or period.start)
        await self._report_parts(site, self.reporter.again(site, period))

    def conclude(self) -> None:
        """Set the gauges, and raise NotReported if something could not be reported."""
        if not self._context.dry_run:
            show_state(self._context.instance, self.saved.reported)
        if self._faults:
            raise NotReported(f"not everything was reported; the next run tries again: {'; '.join(self._faults)}")

    async def _refuse_unknown_ids(self, site: str, begin: datetime) -> None:
        """Save the options that tell the site's jobs from others.

        Raises:
            NotReported: they have changed so that no stored job is the site's, but APEL has jobs of it. Without this,
                a misspelt id would withdraw them all.
        """
        options, state = self._config.site, self.saved.site(site)
        told_by = (options.sites_to_report[site], options.site_meta_field)
        if told_by == state.told_by:
            return
        is_reported = any(month.there.size for month in state.months.values())
        period = Window(begin, max(begin, self._context.now()))
        if is_reported and not await site_groups(self._config, self._context.records, site, period):
            ids, keys = (", ".join(each) for each in told_by)
            raise NotReported(
                f"{site}: since {begin.isoformat()} the store has no jobs with {ids} in {keys}, but APEL has jobs of "
                "this site: nothing is withdrawn. Check sites_to_report and site_meta_field, which have changed"
            )
        await self.saved.save_site(site, told_by=told_by)

    async def _report_parts(self, site: str, parts: Sequence[Part]) -> bool:
        """Report each part, even if another part fails, and return True if all succeeded.

        Raises:
            BrokerUnavailable: the site's other parts would fail as well.
        """
        faults = len(self._faults)
        for part in parts:
            try:
                await part.report()
            except BrokerUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 a month must not stop another; the run fails at its end
                self._note(site, part.name, error)
        return len(self._faults) == faults

    def _note(self, site: str, part: str, error: Exception) -> None:
        expected = isinstance(error, AuditordError)
        self._context.log.error("%s was not reported: %s", part, error, exc_info=None if expected else error)
        if not self._context.dry_run:
            metrics.FAILURES.labels(self._context.instance, site).inc()
        self._faults.append(f"{part}: {error if expected else repr(error)}")


INTERVAL: Final = timedelta(hours=6)
"""A report a day is enough. With a shorter interval, a run that did not reach the broker is retried sooner."""


async def check(config: ApelConfig, context: Context) -> AsyncGenerator[Finding, None]:
    """Check the certificate and its key, and that the broker issues a token for it.

    A configured token cannot be checked without publishing a message; the finding says so.
    """
    messaging = config.messaging
    yield check_certificate(messaging.client_cert, context.now())
    try:
        load_credentials(messaging.client_cert, messaging.client_key)
    except CertificateUnusable as error:
        yield Finding(Severity.FAILURE, "credentials", str(error), "see the message")
        return
    if messaging.token is not None:
        text = f"messaging.token is set, and only publishing a message shows whether {messaging.host} accepts it"
        yield Finding(Severity.OK, "broker", text)
        return
    try:
        async with open_broker(messaging, context.http, retries=0) as broker:
            await broker.authenticate()
    except BrokerUnavailable as error:
        remedy = "check messaging.host, and whether this host may connect to it; the messages are sent later"
        yield Finding(Severity.FAILURE, "broker", str(error), remedy)
    except AuditordError as error:
        remedy = "the certificate's subject must be the Host DN of the site's gLite-APEL service in GOCDB"
        yield Finding(Severity.FAILURE, "broker", str(error), remedy)
    else:
        yield Finding(Severity.OK, "broker", f"{messaging.host} accepts our certificate")


def import_file(document: Document, others: Sequence[Document]) -> ImportedConfig | None:
    """Translate a file of AUDITOR's plugin, or of an APEL client, given its other files."""
    return import_client_file(document, others) or import_config(document)


APEL = PluginKind(
    name="apel",
    config=ApelConfig,
    run=run_apel,
    interval=INTERVAL,
    import_config=import_file,
    check=check,
    detect=detect,
    needs=needs,
    needs_labels=needs_labels,
    remarks=remarks,
    effect=lambda config: f"sends {config.message_type.value.replace('_', ' ')} to APEL",
)
