"""The plugin kind ``utilisation``: runs that write and mail the reports that are due, and a check for doctor."""

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime, timedelta
from typing import Final

import anyio.to_thread
import msgspec

from auditord_builtin.utilisation.config import UserMail, UtilisationConfig, import_config
from auditord_builtin.utilisation.mail import Addressed, Delivery, Undelivered, greet, reports_to_users
from auditord_builtin.utilisation.periods import Period, period_at
from auditord_builtin.utilisation.report import Report, as_csv, ask, report_on, silent_sites
from auditord_builtin.utilisation.state import ReportedState, Series
from auditord_builtin.utilisation.usage import Usages
from auditord_hookspecs import AuditordError, Context, PluginContext, PluginKind
from auditord_hookspecs.checks import Finding, Severity, check_certificate, check_folder, check_readable
from auditord_hookspecs.folders import SharedFolder
from auditord_hookspecs.wording import counted

_BEFORE_THE_NEXT: Final = timedelta(days=1)
"""A report to users stops waiting for missing records this long before the next one is due."""


class Unwritable(AuditordError):
    """The CSV file cannot be written.

    Remedy:
        let the service's user write to the folder; the next run makes the report.
    """


class NotDelivered(AuditordError):
    """Some mails were not delivered. The others were sent.

    Remedy:
        check the addresses in the message; later runs try them again.
    """


async def run_utilisation(config: UtilisationConfig, context: PluginContext) -> None:
    """Make the due reports: first all files, so that they do not depend on the mail server, then the mails.

    Raises:
        AuditordError: a file could not be written, or a mail could not be delivered. The next run continues.
    """
    if config.csv is None and config.mail is None:
        context.log.info("neither csv nor mail is configured: scheduled runs have nothing to do")
        return
    work = _Work(config, context, ReportedState(context))
    faults = [*await work.mail(await work.write())]
    await work.state.end_waiting(Series.REPORTS, config.period, config.settle)
    if config.mail is not None and config.mail.users is not None:
        faults += await work.mail_to_users(config.mail.users)
        await work.state.end_waiting(Series.USERS, config.mail.users.period, config.settle)
    if faults:
        raise NotDelivered("; ".join(faults))


class _Work(msgspec.Struct, frozen=True):
    config: UtilisationConfig
    context: PluginContext
    state: ReportedState

    async def write(self) -> Sequence[Report]:
        """Make the due reports and write their files."""
        mail = self.config.mail
        if self.config.csv is None and (mail is None or not mail.recipients):
            return []
        reports: list[Report] = []
        for period in self.state.pending(Series.REPORTS, self.config.period, self.config.settle):
            if self.state.is_waiting(Series.REPORTS, period):
                continue
            if (settled := await self._settle(Series.REPORTS, period)) is None:
                break  # later periods wait as well
            usages, silent = settled
            notes = [f"No later job of {', '.join(silent)} is known: jobs may be missing here."] if silent else []
            reports.append(report_on(usages, self.config, period, notes=notes))
            await self._write(reports[-1])
        return reports

    async def mail(self, reports: Sequence[Report]) -> Sequence[str]:
        """Send reports to their recipients, and return an error for each recipient who did not get one.

        Reports are done in their order: one that met a busy recipient is due again, and so are all later ones.
        """
        recipients = () if self.config.mail is None else self.config.mail.recipients
        faults: list[str] = []
        in_order = True
        for report in reports:
            addressed = [Addressed(recipient, recipient, report) for recipient in recipients]
            outcome = await self._deliver(Series.REPORTS, report.period, addressed, in_order=in_order)
            in_order = in_order and not outcome.busy
            faults += [*outcome.refused, *outcome.busy]
        return faults

    async def mail_to_users(self, options: UserMail) -> Sequence[str]:
        """Send users reports on their own jobs in the last period. Older periods are of no use to them.

        A refused user is logged but not an error, since people leave. Return the errors for busy recipients.
        """
        faults: list[str] = []
        for period in self.state.pending(Series.USERS, options.period, self.config.settle)[-1:]:
            await self.state.forget_before(Series.USERS, period)
            if not self.state.is_waiting(Series.USERS, period):
                following = period_at(options.period, period.stop)
                if (settled := await self._settle(Series.USERS, period, following.stop + self.config.settle)) is None:
                    return faults
                reports = reports_to_users(settled[0], self.config, options, period, self.context.log)
                outcome = await self._deliver(Series.USERS, period, reports)
                faults += outcome.busy
                for reason in outcome.refused:
                    self.context.log.warning("%s", reason)
        return faults

    async def _settle(
        self, series: Series, period: Period, replaced: datetime | None = None
    ) -> tuple[Usages, Sequence[str]] | None:
        """Return a period's usage and silent sites, or None while the report waits for missing records.

        After an outage, or before the first report, the collectors may only have begun to read old jobs. So the wait
        begins when the plugin first meets the report, or an earlier one that has to wait. It ends before ``replaced``,
        when another report takes its place.
        """
        usages = await ask(self.config, self.context.records, period)
        if self.state.is_new(series) and not usages:
            self.context.log.info("no job of %s is known yet: no report is made", period.name)
            return None
        silent = await silent_sites(usages, self.config, self.context.records, period)
        if self.state.is_reported(series, period):  # and is due again for a refused recipient
            return usages, silent
        due = max(period.stop + self.config.settle, self.state.waiting_since(series))
        until = due + self.config.wait_for_sites
        if replaced is not None:
            until = min(until, replaced - _BEFORE_THE_NEXT)
        if not silent or self.context.now() >= until:
            return usages, silent
        if not self.context.dry_run:
            await self.state.note_waiting(series)
        text = "the report on %s waits, at most until %s: no later job of %s is known"
        self.context.log.warning(text, period.name, until.isoformat(), ", ".join(silent))
        return None

    async def _write(self, report: Report) -> None:
        if self.config.csv is None or self.state.is_written(Series.REPORTS, report.period):
            return
        name = self.config.csv.name.replace("{instance}", self.context.instance)
        path = self.config.csv.folder / name.replace("{period}", report.period.name)
        if self.context.dry_run:
            self.context.show(f"would write {path} ({counted(len(report.rows) + 1, 'row')})")
            return
        text = as_csv(report)

        def write_whole() -> None:
            with SharedFolder.opened(path.parent) as folder:
                folder.write_whole(path.name, text.encode())

        try:
            await anyio.to_thread.run_sync(write_whole)
        except OSError as error:  # the previous file is kept
            raise Unwritable(f"{path} cannot be written: {error.strerror}; is csv.folder right?") from error
        await self.state.note_written(Series.REPORTS, report.period)
        self.context.log.info("wrote %s", path)

    async def _deliver(
        self, series: Series, period: Period, reports: Sequence[Addressed], *, in_order: bool = True
    ) -> Undelivered:
        """Send the reports, and note them as done if no recipient was busy; see :meth:`ReportedState.note_done`."""
        outcome = Undelivered()
        if self.config.mail is not None:
            outcome = await Delivery(self.config.mail, self.context, self.state).deliver(series, period, reports)
        if not outcome.busy and not self.context.dry_run:
            await self.state.note_done(series, period, [each.key for each in reports], in_order=in_order)
        return outcome


async def check(config: UtilisationConfig, context: Context) -> AsyncGenerator[Finding, None]:
    """Check the CSV folder, the file with CO2 values, and the mail server, without sending a mail."""
    if config.csv is not None:
        yield check_folder(config.csv.folder, "create the folder, and let this user write there")
    if config.energy.grid_intensity is not None:
        yield check_readable(config.energy.grid_intensity.file, "put the file there, and let this user read it")
    if config.mail is not None:
        server = config.mail.server
        if server.ca is not None:
            yield check_certificate(server.ca, context.now())
        subject = f"{server.host}:{server.port_number}"
        try:
            await greet(server)
        except AuditordError as error:
            yield Finding(Severity.FAILURE, subject, str(error), "compare mail.server with the mail server's settings")
        else:
            login = ", and accepts the login" if server.user else ""
            yield Finding(Severity.OK, subject, f"the mail server answers{login}")


def _describe_effect(config: UtilisationConfig) -> str:
    effects = [] if config.csv is None else [f"writes to {config.csv.folder}"]
    if config.mail is not None and config.mail.recipients:
        effects.append(f"mails reports to {counted(len(config.mail.recipients), 'address', 'addresses')}")
    if config.mail is not None and config.mail.users is not None:
        effects.append("mails each user with a core hour or more")
    return " and ".join(effects) or "does nothing without csv and mail"


UTILISATION: Final = PluginKind(
    name="utilisation",
    config=UtilisationConfig,
    run=run_utilisation,
    interval=timedelta(hours=1),
    timeout=timedelta(hours=4),
    import_config=lambda document, _others: import_config(document),
    check=check,
    needs=lambda config: filter(None, (config.components.cores, config.components.cpu_time)),
    effect=_describe_effect,
)
