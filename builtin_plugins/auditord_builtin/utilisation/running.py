"""A run: what is due is written and mailed, in this order; what a killed run left is gone on with."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from auditord_builtin.utilisation.books import Books, Shelf
from auditord_builtin.utilisation.config import Csv, UserMail, UtilisationConfig
from auditord_builtin.utilisation.delivering import Delivery, Outcome, Parcel
from auditord_builtin.utilisation.files import write_whole
from auditord_builtin.utilisation.metrics import REPORTED
from auditord_builtin.utilisation.periods import Period
from auditord_builtin.utilisation.report import Report, ask, note_on_silence, report_on, silent_sites
from auditord_builtin.utilisation.tables import as_csv
from auditord_builtin.utilisation.users import parcels_to_users
from auditord_hookspecs import AuditordError, PluginContext


class NotDelivered(AuditordError):
    """Some mails were not taken; the others were."""


async def run_utilisation(config: UtilisationConfig, context: PluginContext) -> None:
    """Report what is due: all files first, so that a mail server that is away costs none, then the mails.

    Raises:
        AuditordError: a file could not be written, or somebody did not get a mail; the next run goes on.
    """
    if config.csv is None and config.mail is None:
        context.log.info("neither csv nor mail is configured: there is nothing to do by the clock")
        return
    work = _Work(config, context, Books(context))
    reports = await work.write()
    faults = [fault for report in reports for fault in await work.mail(report)]
    if config.mail is not None and config.mail.users is not None:
        faults += await work.mail_to_users(config.mail.users)
    if faults:
        raise NotDelivered("; ".join(faults))


def csv_path(options: Csv, instance: str, period: Period) -> Path:
    """Where the figures of a period are written to."""
    return options.folder / options.name.replace("{instance}", instance).replace("{period}", period.name)


@dataclass(frozen=True)
class _Work:
    """One run.

    Args:
        config: what to do.
        context: of the plugin.
        books: what has been done.
    """

    config: UtilisationConfig
    context: PluginContext
    books: Books

    async def write(self) -> Sequence[Report]:
        """Make the reports that are due and write their files."""
        mail = self.config.mail
        if self.config.csv is None and (mail is None or not mail.recipients):
            return []
        reports: list[Report] = []
        for period in self.books.pending(Shelf.REPORTS, self.config.period, self.config.settle):
            if self.books.is_waiting(Shelf.REPORTS, period):
                continue
            usages = await ask(self.config, self.context.records, period)
            silent = await silent_sites(usages, self.config, self.context.records, period)
            if silent and self._may_wait(period, silent):
                break  # the later ones wait, too
            notes = [note_on_silence(silent)] if silent else []
            reports.append(report_on(usages, self.config, period, notes=notes))
            await self._write(reports[-1])
        return reports

    async def mail(self, report: Report) -> Sequence[str]:
        """Send a report to its recipients; returns who got none."""
        recipients = () if self.config.mail is None else self.config.mail.recipients
        parcels = [Parcel(recipient, recipient, report) for recipient in recipients]
        outcome = await self._deliver(Shelf.REPORTS, report.period, parcels)
        if not outcome.busy and not self.context.dry_run:
            REPORTED.labels(self.context.instance).set(report.period.stop.timestamp())
        return [*outcome.refused, *outcome.busy]

    async def mail_to_users(self, options: UserMail) -> Sequence[str]:
        """Send users the reports on their own jobs in the last month or week; what is older is of no use to them.

        A user whom the server refuses is no fault: people leave.
        """
        faults: list[str] = []
        for period in self.books.pending(Shelf.USERS, options.period, self.config.settle)[-1:]:
            await self.books.forget_before(Shelf.USERS, period)
            if not self.books.is_waiting(Shelf.USERS, period):
                usages = await ask(self.config, self.context.records, period)
                silent = await silent_sites(usages, self.config, self.context.records, period)
                if silent and self._may_wait(period, silent):
                    return faults
                parcels = parcels_to_users(usages, self.config, options, period, self.context.log)
                outcome = await self._deliver(Shelf.USERS, period, parcels)
                faults += outcome.busy
                for reason in outcome.refused:
                    self.context.log.warning("%s", reason)
        return faults

    def _may_wait(self, period: Period, silent: Sequence[str]) -> bool:
        """Whether a report is held back, since records of some sites may be missing."""
        until = period.stop + self.config.settle + self.config.wait_for_sites
        if self.context.now() >= until:
            return False
        text = "the report on %s waits, at most until %s: no later job is known of %s"
        self.context.log.warning(text, period.name, until.isoformat(), ", ".join(silent))
        return True

    async def _write(self, report: Report) -> None:
        if self.config.csv is None or self.books.is_written(Shelf.REPORTS, report.period):
            return
        path = csv_path(self.config.csv, self.context.instance, report.period)
        if self.context.dry_run:
            self.context.show(f"would write {path} ({len(report.rows) + 1} rows)")
            return
        text = as_csv(report, escape_formulas=self.config.csv.escape_formulas)
        await anyio.to_thread.run_sync(write_whole, path, text)
        await self.books.note_written(Shelf.REPORTS, report.period)
        self.context.log.info("wrote %s", path)

    async def _deliver(self, shelf: Shelf, period: Period, parcels: Sequence[Parcel]) -> Outcome:
        outcome = Outcome()
        if self.config.mail is not None:
            outcome = await Delivery(self.config.mail, self.context, self.books).deliver(shelf, period, parcels)
        if not outcome.busy and not self.context.dry_run:
            await self.books.note_done(shelf, period, [parcel.key for parcel in parcels])
        return outcome
