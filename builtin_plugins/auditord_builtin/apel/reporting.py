"""Report the summaries of a site: find the months that are due, send their messages, save what was acknowledged."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial

import msgspec

from auditord_builtin.apel import metrics
from auditord_builtin.apel.config import ApelConfig
from auditord_builtin.apel.messages import Message, Summaries, SummaryRow, render, sync_message
from auditord_builtin.apel.questions import site_groups
from auditord_builtin.apel.sending import MessageTooLarge, Publisher, label, say
from auditord_builtin.apel.state import MonthState, Outbox, SavedState, pack, unpack
from auditord_builtin.apel.summaries import accelerator_messages, summaries
from auditord_builtin.apel.validation import validate
from auditord_hookspecs import AggregateQuery, AuditordError, PluginContext, Window
from auditord_hookspecs.months import Month, first_month, months_from, whole_months
from auditord_hookspecs.query import stopped_within
from auditord_hookspecs.wording import counted

LISTED = 20
"""The number of problems of a month that are kept and logged."""


class NotReported(AuditordError):
    """Something could not be reported; the text says what, why, and what to do.

    Remedy:
        do what the text says; the state is saved, and the next run reports the rest.
    """


@dataclass(frozen=True, slots=True)
class Part:
    """A month or day of a site to report.

    Args:
        name: site and time, for messages.
        report: brings APEL up to date about it; raises AuditordError if it could not.
    """

    name: str
    report: Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Reporter(ABC):
    """One run of one kind of reports."""

    config: ApelConfig
    context: PluginContext
    saved: SavedState
    publisher: Publisher

    @abstractmethod
    def begin(self, since: datetime) -> datetime:
        """Return the instant from which on jobs are reported, where ``publish_since`` is this one."""

    @abstractmethod
    async def due(self, site: str, since: datetime, *, full: bool) -> Sequence[Part]:
        """Return the parts to report now, in their order; ``full``: look at all since the beginning."""

    @abstractmethod
    def widened(self, period: Window) -> Window:
        """Return the period that is reported instead of a part of it."""

    @abstractmethod
    def again(self, site: str, period: Window) -> Sequence[Part]:
        """Return the parts of a period that was widened, changed or not."""

    @abstractmethod
    def refuse_other_kind(self, site: str, begin: datetime) -> None:
        """Return if nothing of the time since ``begin`` was reported as the other kind: APEL would add up both.

        Raises:
            NotReported: something was.
        """

    async def publish(self, message: Message) -> str | tuple[Message, Message]:
        """Publish a message and return its id at the broker; or its halves, if it is too large.

        Raises:
            NotReported: one record alone is too large.
            AuditordError: it was not taken.
        """
        try:
            identity = await self.publisher.publish(message, label(self.context.now(), self.saved.reported.sent))
        except MessageTooLarge as error:
            if message.records == 1:
                raise NotReported(f"{message.site} {message.month}: one record alone is too large: {error}") from error
            return message.halves()
        if not self.context.dry_run:
            metrics.PUBLISHED.labels(self.context.instance, message.site).inc()
        return identity

    def show_problems(self, subject: str, problems: Sequence[object]) -> None:
        """Name what is wrong: all of it in a dry run, else the first problems."""
        if self.context.dry_run:
            for problem in problems:
                self.context.show(f"! {problem}")
            return
        for problem in problems[:LISTED]:
            self.context.log.warning("%s", problem)
        if len(problems) > LISTED:
            self.context.log.warning("%s: %s in all", subject, counted(len(problems), "problem"))


def other_kind(site: str, last: object, then: str, other: str) -> NotReported:
    """Return the error for a time that was reported as another kind."""
    return NotReported(
        f"{site}: until {last} it was reported as {then}, and APEL would add up both: change to {other} from a "
        "later month on (publish_since), or leave message_type as it was"
    )


@dataclass(frozen=True, slots=True)
class Found:
    """The report that the store's records make of a month of a site.

    Args:
        summary: the rows to report, and what cannot be.
        accelerators: messages in a format of their own, without keys that could be withdrawn.
        problems: in words.
        stored: how many jobs there are.
    """

    summary: Summaries
    accelerators: Sequence[Message]
    problems: tuple[str, ...]
    stored: int

    @property
    def digest(self) -> str:
        """A digest of all that is sent, and of nothing else."""
        held, messages = sorted(row.key for row in self.summary.held), [message.text for message in self.accelerators]
        missing = [(each.submit_host, each.jobs) for each in self.summary.unreported]
        # Without missing jobs it is the same as that of older versions, or each month would be sent again.
        content = [self.summary.rows, held, messages, *([missing] if missing else [])]
        return hashlib.sha256(msgspec.json.encode(content)).hexdigest()


class SummaryReporter(Reporter):
    """Reports months: the current and the previous one always, all others if they changed."""

    def begin(self, since: datetime) -> datetime:
        """Return the first month that lies wholly behind ``publish_since``."""
        return first_month(since).start

    async def due(self, site: str, since: datetime, *, full: bool) -> Sequence[Part]:
        """Return the newest first, since an old one that cannot be sent must not be in its way."""
        current = Month.of(self.context.now())
        recent = {current, current.previous}
        months = {*months_from(first_month(since), current)}
        waiting = {Month.parse(text) for text, each in self.saved.site(site).months.items() if each.outbox is not None}
        due = (months if full else months & recent) | waiting
        return [self._part(site, month, always=month in recent) for month in sorted(due, reverse=True)]

    def widened(self, period: Window) -> Window:
        """Whole months of UTC."""
        months = whole_months(period.start, min(period.stop, Month.of(self.context.now()).next.start))
        widened = Window(months[0].start, months[-1].next.start)
        if period != widened:
            named = f"{months[0]} to {months[-1]}" if len(months) > 1 else str(months[0])
            text = f"Summaries are of whole months of UTC, since a part would replace the whole: reporting {named}"
            say(self.context, text)
        return widened

    def again(self, site: str, period: Window) -> Sequence[Part]:
        """Return all months of the period."""
        months = whole_months(period.start, period.stop)
        return [self._part(site, month, always=True) for month in reversed(months)]

    def refuse_other_kind(self, site: str, begin: datetime) -> None:
        """See :class:`Reporter`."""
        days = [date.fromisoformat(text) for text, day in self.saved.site(site).days.items() if day.jobs]
        if since := [day for day in days if day >= begin.astimezone(UTC).date()]:
            raise other_kind(site, max(since), "individual_jobs", "summaries")

    def _part(self, site: str, month: Month, *, always: bool) -> Part:
        return Part(f"{site} {month}", partial(self._report, site, month, always=always))

    async def _report(self, site: str, month: Month, *, always: bool) -> None:
        """Bring APEL up to date about one month; ``always``: even if nothing has changed since the last report.

        Raises:
            AuditordError: it could not be made, or not all of it could be sent; what waits is sent by the next run.
        """
        before = self.saved.month(site, month)
        found = await self._look(site, month, before)
        problems, jobs = found.problems[:LISTED], sum(row.jobs for row in found.summary.rows)
        state = msgspec.structs.replace(before, stored=found.stored, reportable=jobs, problems=problems)
        if self.context.dry_run or problems != before.problems:
            self.show_problems(f"{site} {month}", found.problems)
        reported = before.digest if before.outbox is None else before.outbox.digest
        if always or reported != found.digest:
            state = self._plan(site, month, state, found)
        if state != before:
            await self.saved.save_month(site, month, state)
        await self._send(site, month)

    async def _look(self, site: str, month: Month, state: MonthState) -> Found:
        """Ask the store.

        Raises:
            NotReported: it has nothing any more of a month that was reported.
        """
        config, records = self.config, self.context.records
        summary = await summaries(config, records, site, month)
        size = config.messaging.max_message_size
        accelerators, faults = await accelerator_messages(config, records, site, month, size)
        problems = tuple(map(str, (*summary.problems, *faults)))
        stored = sum(group.records for group in await site_groups(config, records, site, month.window))
        any_job = AggregateQuery(stopped_within(month.window))
        if not summary.rows and state.there.size and not (await records.aggregate(any_job)).groups:
            raise NotReported(
                f"{site} {month}: the store has no job of this month any more, of any site, and APEL has {state.jobs}: "
                "nothing is withdrawn. If these jobs are gone for good reason, ask APEL to delete the month"
            )
        return Found(summary, accelerators, problems, stored)

    def _plan(self, site: str, month: Month, state: MonthState, found: Found) -> MonthState:
        """Put the whole report of a month into its outbox, instead of what waited there."""
        there = {row.key: row for row in unpack(state.there, SummaryRow)}
        rows, missing = found.summary.rows, found.summary.held
        kept = {row.key for row in (*rows, *missing)}
        gone = [row for key, row in there.items() if key not in kept]
        held = {row.key: there[row.key] for row in missing if row.key in there}
        will_be = {row.key: row.withdrawn() for row in rows} | held
        messages = self._messages(site, month, gone, found)
        if gone and messages:
            records = counted(len(gone), "record at APEL is", "records at APEL are")
            say(self.context, f"{site} {month}: {records} of no job any more: sent with zeros")
        outbox = Outbox(
            digest=found.digest,
            jobs=state.reportable,
            rows=pack([*will_be.values()]),
            messages=tuple([pack([message]) for message in messages]),
        )
        planned = msgspec.structs.replace(state, there=pack([*(there | will_be).values()]), outbox=outbox)
        if not messages and self.context.dry_run:
            self.context.show(f"{site} {month}: there is nothing to report")
        return planned if messages else self._closed(planned, outbox)

    def _messages(self, site: str, month: Month, gone: Sequence[SummaryRow], found: Found) -> Sequence[Message]:
        """Zeros go first, so that a key that is another to us and the same to APEL ends with its amounts.

        Raises:
            NotReported: APEL would refuse one of them.
        """
        size = self.config.messaging.max_message_size
        sync = sync_message([*gone, *found.summary.counts], size)
        messages = [*render(gone, size), *sync, *render(found.summary.rows, size), *found.accelerators]
        for message in messages:
            if faults := validate(message.text, self.context.now()):
                raise NotReported(f"{site} {month}: APEL would refuse the report: {'; '.join(map(str, faults[:5]))}")
        return messages

    async def _send(self, site: str, month: Month) -> None:
        """Send what waits, each message saved as sent before the next one goes out."""
        while (outbox := (state := self.saved.month(site, month)).outbox) is not None:
            sent = await self.publish(unpack(outbox.messages[0], Message)[0])
            if isinstance(sent, str):
                ids, messages = (*outbox.ids, sent), outbox.messages[1:]
            else:
                ids, messages = outbox.ids, (*[pack([half]) for half in sent], *outbox.messages[1:])
            rest = msgspec.structs.replace(outbox, messages=messages, ids=ids)
            done = msgspec.structs.replace(state, outbox=rest) if messages else self._closed(state, rest)
            await self.saved.save_month(site, month, done, sent=len(ids) - len(outbox.ids))

    def _closed(self, state: MonthState, outbox: Outbox) -> MonthState:
        """Return the month once nothing waits any more."""
        return msgspec.structs.replace(
            state,
            there=outbox.rows,
            digest=outbox.digest,
            jobs=outbox.jobs,
            ids=outbox.ids,
            acknowledged=self.context.now() if outbox.ids else state.acknowledged,
            outbox=None,
        )
