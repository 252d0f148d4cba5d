"""Summaries: what the store says of a month of a site goes out whenever it is not what was last acknowledged.

The order of things is what makes a crash harmless: first the state says what will be at APEL and what is to be sent,
then each message goes out, and each message id is written down before the next one. A message may be sent twice, which
is harmless, since APEL replaces by key; it is never taken for sent when it was not.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from auditord_builtin.apel import metrics
from auditord_builtin.apel.accelerators import accelerator_messages
from auditord_builtin.apel.books import Ledger, MonthBook, Outbox, Packed, pack, unpack_message, unpack_rows
from auditord_builtin.apel.config import ApelConfig
from auditord_builtin.apel.due import Due
from auditord_builtin.apel.messages import Message, SummaryRow
from auditord_builtin.apel.messages.summaries import render, sync_message
from auditord_builtin.apel.months import Month
from auditord_builtin.apel.questions import conditions, site_of
from auditord_builtin.apel.sending import Publisher, label, say
from auditord_builtin.apel.summing import summaries
from auditord_builtin.apel.transport import MessageTooLarge
from auditord_builtin.apel.validation import validate
from auditord_hookspecs import AggregateQuery, AuditordError, MetaValue, PluginContext
from auditord_hookspecs.query import AllOf, Comparison, TimeCompares, TimeField

LISTED = 20
"""How many problems of a month are kept and logged."""


class NotReported(AuditordError):
    """Something could not be reported; the text says what, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Reporter:
    """One run.

    Args:
        config: of the instance.
        context: of the run.
        ledger: the state.
        publisher: where messages go.
    """

    config: ApelConfig
    context: PluginContext
    ledger: Ledger
    publisher: Publisher

    async def report(self, site: str, due: Due) -> None:
        """Bring APEL up to date about one month of one site.

        Raises:
            AuditordError: it could not be made, or not all of it could be sent; what waits is sent by the next run.
        """
        book = self.ledger.month(site, due.month)
        found = await self._look(site, due.month, book)
        known = msgspec.structs.replace(
            book, stored=found.stored, reportable=found.jobs, problems=found.problems[:LISTED]
        )
        self._tell(site, due.month, book, found)
        said = book.digest if book.outbox is None else book.outbox.digest
        if due.always or said != found.digest:
            known = self._plan(site, due.month, known, found)
        if known != book:
            await self.ledger.keep_month(site, due.month, known)
        await self._empty(site, due.month)

    async def _look(self, site: str, month: Month, book: MonthBook) -> "Found":
        """What the store says.

        Raises:
            NotReported: it says nothing any more about a month that was reported.
        """
        answer = await summaries(self.config, self.context.records, site, month)
        size = self.config.messaging.max_message_size
        accelerators, faults = await accelerator_messages(self.config, self.context.records, site, month, size)
        problems = tuple(map(str, (*answer.problems, *faults)))
        found = Found(answer.rows, answer.held, accelerators, problems, await self._stored(site, month))
        if not found.rows and book.there.size and not await self._any(month):
            raise NotReported(
                f"{site} {month}: the store has no job of this month any more, of any site, and APEL has {book.jobs}: "
                "nothing is withdrawn. If these jobs are gone for good reason, ask APEL to delete the month"
            )
        return found

    async def _stored(self, site: str, month: Month) -> int:
        """How many jobs the store has, reportable or not."""
        by = (MetaValue(*self.config.site.site_meta_field),)
        jobs = 0
        for where in conditions(self.config, (site,), month.window):
            answer = await self.context.records.aggregate(AggregateQuery(where=where, by=by))
            groups = [group for group in answer.groups if site_of(self.config, group.key[0]) == site]
            jobs += sum(group.records for group in groups)
        return jobs

    async def _any(self, month: Month) -> bool:
        """Whether the store has any job of a month."""
        start = TimeCompares(TimeField.STOP, Comparison.GTE, month.start)
        stop = TimeCompares(TimeField.STOP, Comparison.LT, month.next.start)
        answer = await self.context.records.aggregate(AggregateQuery(where=AllOf((start, stop))))
        return bool(answer.groups)

    def _tell(self, site: str, month: Month, book: MonthBook, found: "Found") -> None:
        """Name what is wrong: in a dry run always, else when it is new."""
        if self.context.dry_run:
            for problem in found.problems:
                self.context.show(f"! {problem}")
        elif found.problems[:LISTED] != book.problems:
            for problem in found.problems[:LISTED]:
                self.context.log.warning("%s", problem)
            if len(found.problems) > LISTED:
                self.context.log.warning("%s %s: %d problems in all", site, month, len(found.problems))

    def _plan(self, site: str, month: Month, book: MonthBook, found: "Found") -> MonthBook:
        """Put all that has to be said of a month into its outbox, instead of what waited there."""
        there = {row.key: row for row in unpack_rows(book.there)}
        kept = {row.key for row in (*found.rows, *found.held)}
        gone = [row for key, row in there.items() if key not in kept]
        will_be = {row.key: row.withdrawn() for row in found.rows} | {
            row.key: there[row.key] for row in found.held if row.key in there
        }
        messages = self._messages(site, month, gone, found)
        if gone and messages:
            text = f"{site} {month}: {len(gone)} records at APEL are of no job any more, and are sent with zeros"
            say(self.context, text)
        outbox = Outbox(
            digest=found.digest,
            jobs=found.jobs,
            rows=pack([*will_be.values()]),
            messages=tuple([pack([message]) for message in messages]),
        )
        planned = msgspec.structs.replace(book, there=pack([*(there | will_be).values()]), outbox=outbox)
        if not messages and self.context.dry_run:
            self.context.show(f"{site} {month}: there is nothing to report")
        return planned if messages else self._closed(planned, outbox)

    def _messages(self, site: str, month: Month, gone: Sequence[SummaryRow], found: "Found") -> Sequence[Message]:
        """Zeros go first, so that a key that is another to us and the same to APEL ends with its figures.

        Raises:
            NotReported: APEL would refuse one of them.
        """
        size = self.config.messaging.max_message_size
        summary = [*render(gone, size), *sync_message([*gone, *found.rows], size), *render(found.rows, size)]
        messages = [*summary, *found.accelerators]
        for message in messages:
            if faults := validate(message.text, self.context.now()):
                raise NotReported(f"{site} {month}: APEL would refuse the report: {'; '.join(map(str, faults[:5]))}")
        return messages

    async def _empty(self, site: str, month: Month) -> None:
        """Send what waits, each message written down before the next one goes out."""
        while (outbox := (book := self.ledger.month(site, month)).outbox) is not None:
            message = unpack_message(outbox.messages[0])
            try:
                name = label(self.context.now(), self.ledger.books.sent)
                identity = await self.publisher.publish(message, name)
            except MessageTooLarge as error:
                split = (*halved(message, error), *outbox.messages[1:])
                smaller = msgspec.structs.replace(outbox, messages=split)
                await self.ledger.keep_month(site, month, msgspec.structs.replace(book, outbox=smaller))
                continue
            await self.ledger.keep_month(site, month, self._acknowledged(book, outbox, identity), sent=1)
            metrics.count_message(self.context, site)

    def _acknowledged(self, book: MonthBook, outbox: Outbox, identity: str) -> MonthBook:
        rest = msgspec.structs.replace(outbox, messages=outbox.messages[1:], ids=(*outbox.ids, identity))
        return msgspec.structs.replace(book, outbox=rest) if rest.messages else self._closed(book, rest)

    def _closed(self, book: MonthBook, outbox: Outbox) -> MonthBook:
        """The month once nothing waits any more."""
        return msgspec.structs.replace(
            book,
            there=outbox.rows,
            digest=outbox.digest,
            jobs=outbox.jobs,
            ids=outbox.ids,
            acknowledged=self.context.now() if outbox.ids else book.acknowledged,
            outbox=None,
        )


@dataclass(frozen=True, slots=True)
class Found:
    """What the store says of a month of a site.

    Args:
        rows: to report.
        held: rows that APEL would refuse: what it has of them stays as it is.
        accelerators: messages in a format of their own, without keys that could be withdrawn.
        problems: in words.
        stored: how many jobs there are.
    """

    rows: Sequence[SummaryRow]
    held: Sequence[SummaryRow]
    accelerators: Sequence[Message]
    problems: tuple[str, ...]
    stored: int

    @property
    def jobs(self) -> int:
        """How many jobs the rows have."""
        return sum(row.jobs for row in self.rows)

    @property
    def digest(self) -> str:
        """The same for the same rows, and for no others."""
        content = [self.rows, sorted(row.key for row in self.held), [message.text for message in self.accelerators]]
        return hashlib.sha256(msgspec.json.encode(content)).hexdigest()


def halved(message: Message, error: MessageTooLarge) -> tuple[Packed, Packed]:
    """Two smaller messages.

    Raises:
        NotReported: there is only one record in it.
    """
    if message.records == 1:
        raise NotReported(f"{message.site} {message.month}: one record alone is too large: {error}") from error
    first, second = message.halves()
    return pack([first]), pack([second])
