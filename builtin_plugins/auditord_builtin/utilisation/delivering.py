"""Reports on their way to those who get them: each once, and noted right after."""

from collections.abc import Sequence
from dataclasses import dataclass

from auditord_builtin.utilisation.books import MOST_TRIES, Books, Shelf
from auditord_builtin.utilisation.config import Mail
from auditord_builtin.utilisation.letters import letter
from auditord_builtin.utilisation.metrics import MAILS
from auditord_builtin.utilisation.periods import Period
from auditord_builtin.utilisation.posting import Courier, MailFault, RecipientBusy, RecipientRefused, courier_to
from auditord_builtin.utilisation.report import Report
from auditord_builtin.utilisation.tables import as_text
from auditord_hookspecs import PluginContext


@dataclass(frozen=True, slots=True)
class Parcel:
    """A report for somebody.

    Args:
        key: by which the books know them.
        address: where it goes.
        report: what they get.
    """

    key: str
    address: str
    report: Report


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of some deliveries.

    Args:
        refused: those to whom the server takes no mail, with its reason; tried again some days.
        busy: those to whom it takes none now; tried again in the next run.
    """

    refused: Sequence[str] = ()
    busy: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Delivery:
    """Delivers by mail.

    Args:
        mail: how.
        context: of the plugin.
        books: who has got what.
    """

    mail: Mail
    context: PluginContext
    books: Books

    async def deliver(self, shelf: Shelf, period: Period, parcels: Sequence[Parcel]) -> Outcome:
        """Send each parcel to whom it is owed.

        Raises:
            MailFault: the server cannot be used; who is not noted by then is served by the next run.
        """
        by_key = {parcel.key: parcel for parcel in parcels}
        owed = [by_key[key] for key in self.books.owed(shelf, period, list(by_key))]
        if self.context.dry_run:
            self._show(owed)
            return Outcome()
        async with courier_to(self.mail.server) as courier:
            return await self._send(shelf, period, owed, courier)

    async def _send(self, shelf: Shelf, period: Period, owed: Sequence[Parcel], courier: Courier) -> Outcome:
        refused: list[str] = []
        busy: list[str] = []
        for parcel in owed:
            try:
                await self._hand_over(parcel, courier)
            except RecipientRefused as error:
                tries = await self.books.note_refused(shelf, period, parcel.key, str(error))
                refused.append(f"{error} (try {tries} of {MOST_TRIES})")
            except RecipientBusy as error:
                busy.append(str(error))
            else:
                await self.books.note_sent(shelf, period, parcel.key)
                self.context.log.info("sent the report on %s to %s", period.name, parcel.address)
        return Outcome(refused, busy)

    async def _hand_over(self, parcel: Parcel, courier: Courier) -> None:
        message = letter(parcel.report, self.mail, self.context.instance, parcel.address, self.context.now())
        outcome = "sent"
        try:
            await courier.deliver(message)
        except RecipientRefused:
            outcome = "refused"
            raise
        except (RecipientBusy, MailFault):
            outcome = "failed"
            raise
        finally:
            MAILS.labels(self.context.instance, outcome).inc()

    def _show(self, owed: Sequence[Parcel]) -> None:
        for parcel in owed:
            self.context.show(f"would mail to {parcel.address}:")
            self.context.show(as_text(parcel.report, self.mail.most_rows))
