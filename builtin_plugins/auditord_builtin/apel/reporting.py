"""Report a site's summaries: find the months that are due, send their messages, save the acknowledged ones."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial

import msgspec
from typing_extensions import override

from auditord_builtin.apel import metrics
from auditord_builtin.apel.accelerators import accelerator_messages
from auditord_builtin.apel.config import ApelConfig
from auditord_builtin.apel.messages import (
    LeftOutJobs,
    Message,
    Summaries,
    SummaryRow,
    clean,
    render,
    sync_message,
)
from auditord_builtin.apel.questions import site_groups
from auditord_builtin.apel.sending import MessageTooLarge, Publisher, label, say
from auditord_builtin.apel.state import MonthState, Outbox, SavedState, pack, unpack
from auditord_builtin.apel.summaries import summaries
from auditord_builtin.apel.validation import validate
from auditord_hookspecs import AggregateQuery, AuditordError, PluginContext, Window
from auditord_hookspecs.months import Month, first_month, months_from, whole_months
from auditord_hookspecs.query import match_stopped
from auditord_hookspecs.wording import counted, format_list

LISTED = 20
"""The maximum number of a month's problems that are saved and logged."""


class NotReported(AuditordError):
    """Something could not be reported. The message says what, why, and what to do.

    Remedy:
        do what the message says; the state is saved, and the next run reports the rest.
    """


class Part(msgspec.Struct, frozen=True):
    """A month or day of a site to report.

    Args:
        name: the site and the month or day, for log messages.
        report: a function that brings APEL up to date, or raises AuditordError.
    """

    name: str
    report: Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Reporter(ABC):
    """A run of one kind of report: summaries or individual jobs."""

    config: ApelConfig
    context: PluginContext
    saved: SavedState
    publisher: Publisher

    @abstractmethod
    def begin(self, since: datetime) -> datetime:
        """Return the start of the time that is reported, given ``publish_since``."""

    @abstractmethod
    async def due(self, site: str, since: datetime, *, full: bool) -> Sequence[Part]:
        """Return the parts to report now, in order. ``full``: check everything since the beginning."""

    @abstractmethod
    def widen(self, period: Window) -> Window:
        """Return the period to report for a requested one."""

    @abstractmethod
    def again(self, site: str, period: Window) -> Sequence[Part]:
        """Return all parts of a widened period, changed or not."""

    @abstractmethod
    def refuse_other_kind(self, site: str, begin: datetime) -> None:
        """Raise NotReported if jobs since ``begin`` were reported as the other kind: APEL would add up both."""

    async def publish(self, message: Message) -> str | tuple[Message, Message]:
        """Publish a message, and return its id at the broker, or its halves if it is too large.

        Raises:
            NotReported: a single record is too large.
            AuditordError: the broker did not accept it.
        """
        try:
            identity = await self.publisher.publish(message, label(self.context.now(), self.saved.reported.sent))
        except MessageTooLarge as error:
            if message.records == 1:
                raise NotReported(f"{message.site} {message.month}: a single record is too large: {error}") from error
            return message.halves()
        if not self.context.dry_run:
            metrics.PUBLISHED.labels(self.context.instance, message.site).inc()
        return identity

    def show_problems(self, subject: str, problems: Sequence[object]) -> None:
        """Show all problems in a dry run, else log the first ones."""
        if self.context.dry_run:
            for problem in problems:
                self.context.show(f"! {problem}")
            return
        for problem in problems[:LISTED]:
            self.context.log.warning("%s", problem)
        if len(problems) > LISTED:
            self.context.log.warning("%s: %s in all", subject, counted(len(problems), "problem"))


def other_kind(site: str, last: object, then: str, other: str) -> NotReported:
    """Return the error for a period that was already reported as the other kind."""
    return NotReported(
        f"{site}: until {last} it was reported as {then}, and APEL would add up both: change to {other} from a "
        "later month on (publish_since), or keep the previous message_type"
    )


class SummaryReporter(Reporter):
    """Reports months: always the current and the previous one, and any other that has changed."""

    def begin(self, since: datetime) -> datetime:
        """Return the beginning of the first month that lies wholly after ``publish_since``."""
        return first_month(since).start

    async def due(self, site: str, since: datetime, *, full: bool) -> Sequence[Part]:
        """Return the months to report, the newest first, so that a failing old month does not block it."""
        current = Month.of(self.context.now())
        recent = {current, current.previous}
        months = {*months_from(first_month(since), current)}
        waiting = {Month.parse(text) for text, each in self.saved.site(site).months.items() if each.outbox is not None}
        due = (months if full else months & recent) | waiting
        return [self._part(site, month, always=month in recent) for month in sorted(due, reverse=True)]

    def widen(self, period: Window) -> Window:
        """Return the period widened to whole UTC months."""
        months = whole_months(period.start, min(period.stop, Month.of(self.context.now()).next.start))
        widened = Window(months[0].start, months[-1].next.start)
        if period != widened:
            named = f"{months[0]} to {months[-1]}" if len(months) > 1 else str(months[0])
            text = f"Summaries cover whole UTC months, since a part would replace the whole: reporting {named}"
            say(self.context, text)
        return widened

    def again(self, site: str, period: Window) -> Sequence[Part]:
        """Return all months of the period, the newest first."""
        months = whole_months(period.start, period.stop)
        return [self._part(site, month, always=True) for month in reversed(months)]

    @override
    def refuse_other_kind(self, site: str, begin: datetime) -> None:
        days = [date.fromisoformat(text) for text, day in self.saved.site(site).days.items() if day.jobs]
        if since := [day for day in days if day >= begin.astimezone(UTC).date()]:
            raise other_kind(site, max(since), "individual_jobs", "summaries")

    def _part(self, site: str, month: Month, *, always: bool) -> Part:
        return Part(f"{site} {month}", partial(self._report, site, month, always=always))

    async def _report(self, site: str, month: Month, *, always: bool) -> None:
        """Report one month if it has changed since the last report, or ``always``.

        Raises:
            NotReported: the month was reported, but now no job of it can be, or the store no longer has jobs of it, at
                any site.
            AuditordError: the report was not sent completely. The next run sends the rest.
        """
        before, config, records = self.saved.month(site, month), self.config, self.context.records
        summary = await summaries(config, records, site, month)
        size = config.messaging.max_message_size
        accelerators, faults = await accelerator_messages(config, records, site, month, size)
        stored = sum(group.records for group in await site_groups(config, records, site, month.window))
        any_job = AggregateQuery(match_stopped(month.window))
        if not summary.rows and before.there.size and summary.left_out:
            reasons = format_list([*dict.fromkeys(each.reason for each in summary.left_out)], LISTED, "; ")
            raise NotReported(
                f"{site} {month}: no job can be reported, but APEL has {before.jobs}: nothing is withdrawn. Did a "
                f"label or benchmark change, in the records or in this plugin's options? {reasons}"
            )
        if not summary.rows and before.there.size and not (await records.aggregate(any_job)).groups:
            raise NotReported(
                f"{site} {month}: the store no longer has jobs of this month, of any site, but APEL has {before.jobs}"
                ": nothing is withdrawn. If these jobs were deleted on purpose, ask APEL to delete the month"
            )
        every = tuple(map(str, (*summary.problems, *faults)))
        problems, jobs = every[:LISTED], sum(row.jobs for row in summary.rows)
        state = msgspec.structs.replace(before, stored=stored, reportable=jobs, problems=problems)
        if self.context.dry_run or problems != before.problems:
            self.show_problems(f"{site} {month}", every)
        # The digest covers exactly the content to send. A change of it would send each month again.
        held = sorted(row.key for row in summary.held)
        missing = [(each.submit_host, each.jobs) for each in summary.unreported]
        content = [summary.rows, held, [message.text for message in accelerators], missing]
        digest = hashlib.sha256(msgspec.json.encode(content)).hexdigest()
        if always or digest != (before.digest if before.outbox is None else before.outbox.digest):
            state = self._plan(site, month, state, summary, accelerators, digest=digest)
        if state != before:
            await self.saved.save_month(site, month, state)
        # Each acknowledgement is saved before the next message is sent.
        while (outbox := (state := self.saved.month(site, month)).outbox) is not None:
            sent = await self.publish(unpack(outbox.messages[0], Message)[0])
            if isinstance(sent, str):
                ids, messages = (*outbox.ids, sent), outbox.messages[1:]
            else:
                ids, messages = outbox.ids, (*[pack([half]) for half in sent], *outbox.messages[1:])
            rest = msgspec.structs.replace(outbox, messages=messages, ids=ids)
            done = msgspec.structs.replace(state, outbox=rest) if messages else self._close(state, rest)
            await self.saved.save_month(site, month, done, sent=len(ids) - len(outbox.ids))

    def _plan(
        self,
        site: str,
        month: Month,
        state: MonthState,
        summary: Summaries,
        accelerators: Sequence[Message],
        *,
        digest: str,
    ) -> MonthState:
        """Put the whole report of a month into its outbox, replacing any waiting messages.

        Messages about accelerators have no keys, so they cannot be withdrawn.
        Withdrawn rows come first: if APEL mistakes two keys for one, the later amounts must win. The sync message also
        has the submit hosts of earlier reports, with zero unless they have jobs now.

        Raises:
            NotReported: APEL would refuse a message.
        """
        at_apel = {row.key: row for row in unpack(state.there, SummaryRow)}
        rows, held = summary.rows, summary.held
        kept = {row.key for row in (*rows, *held)}
        obsolete = [row for key, row in at_apel.items() if key not in kept]
        unchanged = {row.key: at_apel[row.key] for row in held if row.key in at_apel}
        afterwards = {row.key: row.withdrawn() for row in rows} | unchanged
        hosts = {*state.hosts, *[each.submit_host for each in summary.counts]}
        size = self.config.messaging.max_message_size
        known = [LeftOutJobs(clean(site), month, host, 0, "") for host in state.hosts]
        sync = sync_message([*known, *obsolete, *summary.counts], size)
        messages = [*render(obsolete, size), *sync, *render(rows, size), *accelerators]
        for message in messages:
            if faults := validate(message.text, self.context.now()):
                raise NotReported(f"{site} {month}: APEL would refuse the report: {'; '.join(map(str, faults[:5]))}")
        if obsolete and messages:
            records = counted(len(obsolete), "record at APEL no longer has jobs", "records at APEL no longer have jobs")
            say(self.context, f"{site} {month}: {records}: sent with zeros")
        outbox = Outbox(
            digest=digest,
            jobs=state.reportable,
            rows=pack([*afterwards.values()]),
            messages=tuple([pack([message]) for message in messages]),
        )
        there = pack([*(at_apel | afterwards).values()])
        planned = msgspec.structs.replace(state, there=there, hosts=tuple(sorted(hosts)), outbox=outbox)
        if not messages and self.context.dry_run:
            self.context.show(f"{site} {month}: there is nothing to report")
        return planned if messages else self._close(planned, outbox)

    def _close(self, state: MonthState, outbox: Outbox) -> MonthState:
        """Return the state of a month whose messages have all been sent."""
        return msgspec.structs.replace(
            state,
            there=outbox.rows,
            digest=outbox.digest,
            jobs=outbox.jobs,
            ids=outbox.ids,
            acknowledged=self.context.now() if outbox.ids else state.acknowledged,
            outbox=None,
        )
