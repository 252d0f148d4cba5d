"""Reports on their way to recipients: each once, and noted right after; and which users get one on their own jobs."""

import logging
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from auditord_builtin.utilisation.config import Level, Mail, UserMail, UtilisationConfig
from auditord_builtin.utilisation.mail import (
    MailFault,
    MailServer,
    RecipientBusy,
    RecipientRefused,
    mail_server,
    message_of,
)
from auditord_builtin.utilisation.periods import Period
from auditord_builtin.utilisation.question import Usages, Who
from auditord_builtin.utilisation.report import Report, report_on
from auditord_builtin.utilisation.state import MAILS, MOST_TRIES, ReportedState, Series
from auditord_builtin.utilisation.tables import as_text
from auditord_builtin.utilisation.usage import HOUR, Usage
from auditord_hookspecs import PluginContext

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._+-]{0,62}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Addressed:
    """A report for one recipient, whose name in the state is the key."""

    key: str
    address: str
    report: Report


@dataclass(frozen=True, slots=True)
class Undelivered:
    """Recipients without a mail: refused (tried again some days), or busy (tried again in the next run)."""

    refused: Sequence[str] = ()
    busy: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Delivery:
    """Delivers by mail; the state knows who has got which report."""

    mail: Mail
    context: PluginContext
    state: ReportedState

    async def deliver(self, series: Series, period: Period, reports: Sequence[Addressed]) -> Undelivered:
        """Send each report to which its recipient is entitled now.

        Raises:
            MailFault: the server cannot be used; recipients that are not noted by then are served by the next run.
        """
        by_key = {each.key: each for each in reports}
        owed = [by_key[key] for key in self.state.owed(series, period, list(by_key))]
        if self.context.dry_run:
            for each in owed:
                self.context.show(f"would mail to {each.address}:")
                self.context.show(as_text(each.report, self.mail.most_rows))
            return Undelivered()
        async with mail_server(self.mail.server) as server:
            return await self._send_all(series, period, owed, server)

    async def _send_all(
        self, series: Series, period: Period, owed: Sequence[Addressed], server: MailServer
    ) -> Undelivered:
        refused: list[str] = []
        busy: list[str] = []
        for each in owed:
            try:
                await self._send(each, server)
            except RecipientRefused as error:
                tries = await self.state.note_refused(series, period, each.key, str(error))
                refused.append(f"{error} (try {tries} of {MOST_TRIES})")
            except RecipientBusy as error:
                busy.append(str(error))
            else:
                await self.state.note_sent(series, period, each.key)
                self.context.log.info("sent the report on %s to %s", period.name, each.address)
        return Undelivered(refused, busy)

    async def _send(self, addressed: Addressed, server: MailServer) -> None:
        instance, now = self.context.instance, self.context.now()
        message = message_of(addressed.report, self.mail, instance, addressed.address, now)
        outcome = "sent"
        try:
            await server.send(message)
        except (RecipientRefused, RecipientBusy, MailFault) as error:
            outcome = "refused" if isinstance(error, RecipientRefused) else "failed"
            raise
        finally:
            MAILS.labels(instance, outcome).inc()


def reports_to_users(
    usages: Usages,
    config: UtilisationConfig,
    options: UserMail,
    period: Period,
    log: "logging.LoggerAdapter[logging.Logger]",
) -> Sequence[Addressed]:
    """A report for each user who has an address and used enough, about their own jobs alone."""
    own: defaultdict[str, dict[Who, Usage]] = defaultdict(dict)
    for who, usage in usages.items():
        if who.user is not None:
            own[who.user][who] = usage
    levels = config.model_copy(update={"levels": (Level.SITE, Level.GROUP, Level.GROUP_TOTAL)})
    reports: list[Addressed] = []
    for user, theirs in sorted(own.items()):
        held = sum(usage.core_time for usage in theirs.values())
        address = address_of(user, options)
        if address is None:
            log.info("the user %r has no mail address", user)
        elif held >= options.least_core_hours * HOUR:
            title = f"{config.title}: your jobs"
            reports.append(Addressed(user, address, report_on(theirs, levels, period, title=title)))
    return reports


def address_of(user: str, options: UserMail) -> str | None:
    """The address of a user; None for names that cannot be part of one."""
    if user in options.addresses:
        return options.addresses[user]
    if options.address is None or not _NAME.fullmatch(user):
        return None
    return options.address.replace("{user}", user)
