"""Individual jobs: each is sent once, when it is new; none is sent again because its month is.

Which jobs were acknowledged is kept exactly, as eight bytes of each job's content, for the newest ones. For older days
only the sums of the store are kept: if they change, the jobs of that day are sent again, which replaces them by key.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

import msgspec

from auditord_builtin.apel import metrics
from auditord_builtin.apel.books import DayBook, Ledger
from auditord_builtin.apel.config import ApelConfig
from auditord_builtin.apel.fields import ComponentField, ScoreField
from auditord_builtin.apel.jobs import individual_jobs
from auditord_builtin.apel.messages import JobRow, Message, Problem
from auditord_builtin.apel.messages.jobs import render_jobs
from auditord_builtin.apel.questions import conditions, site_of
from auditord_builtin.apel.sending import Publisher, label
from auditord_builtin.apel.transport import MessageTooLarge
from auditord_hookspecs import (
    AggregateQuery,
    CalendarPeriod,
    CalendarUnit,
    ComponentUsage,
    Dimension,
    Group,
    MetaValue,
    PluginContext,
    ScoreValue,
    Window,
)

MARKED: Final = 100_000
"""How many jobs are remembered one by one, about a megabyte of state."""

PER_MESSAGE: Final = 1_000
LISTED: Final = 20
_MARK_BYTES: Final = 8
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Figures:
    """What the store's sums say of the jobs of one site and day.

    Args:
        jobs: how many there are.
        digest: of all sums.
    """

    jobs: int
    digest: str


@dataclass(frozen=True, slots=True)
class JobReporter:
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

    async def due_days(self, site: str, window: Window) -> Mapping[date, Figures]:
        """The days of which the store says something else than when their jobs were last sent.

        Those as well of which jobs were left out with other options than today's.
        """
        found = await self._figures(site, window)
        known = self.ledger.site(site).days
        books = {day: known.get(str(day), DayBook()) for day in found}
        today = {None, settings_digest(self.config)}
        return {
            day: each
            for day, each in found.items()
            if books[day].figures != each.digest or books[day].settings not in today
        }

    async def report(self, site: str, day: date, window: Window, figures: Figures) -> None:
        """Send the jobs of a site that ended on a day, within the window, and are not acknowledged as they are.

        Raises:
            AuditordError: not all of them could be sent.
        """
        book = self.ledger.site(site).days.get(str(day), DayBook())
        if book.marks is None:
            self.context.log.info("%s %s: something has changed, its jobs are sent again", site, day)
            book = DayBook()
        of_day = Window(max(window.start, begin_of(day)), min(window.stop, begin_of(day) + _DAY))
        rows, problems = await self._rows(site, of_day)
        begun = msgspec.structs.replace(book, figures=None, stored=figures.jobs, reportable=len(rows))
        await self._keep(site, day, begun)
        known, marks = _marks(book.marks), {mark(row) for row in rows}
        await self._send(site, [row for row in rows if mark(row) not in known])
        settings = settings_digest(self.config) if problems else None
        done = msgspec.structs.replace(begun, figures=figures.digest, settings=settings)
        await self._keep(site, day, msgspec.structs.replace(done, marks=_joined(marks), jobs=len(marks)))

    async def _keep(self, site: str, day: date, book: DayBook) -> None:
        await self.ledger.keep_days(site, forgetting({**self.ledger.site(site).days, str(day): book}))

    async def send_again(self, site: str, window: Window) -> None:
        """Send the jobs of a site that ended in exactly this period, acknowledged or not."""
        rows, _ = await self._rows(site, window)
        await self._send(site, rows)

    async def _rows(self, site: str, window: Window) -> tuple[Sequence[JobRow], Sequence[Problem]]:
        """A day at most is in memory; messages are sent when the store's answer is read to its end."""
        rows: list[JobRow] = []
        problems: list[Problem] = []
        async for item in individual_jobs(self.config, self.context.records, window, (site,)):
            if isinstance(item, Problem):
                problems.append(item)
            else:
                rows.append(item)
        self._tell(site, problems)
        return rows, problems

    async def _send(self, site: str, rows: Sequence[JobRow]) -> None:
        size = self.config.messaging.max_message_size
        marks = {row.record_id: (_day_of(row), mark(row)) for row in rows}
        for first in range(0, len(rows), PER_MESSAGE):
            waiting = [*render_jobs(rows[first : first + PER_MESSAGE], size)]
            while waiting:
                message = waiting.pop(0)
                try:
                    name = label(self.context.now(), self.ledger.books.sent)
                    await self.publisher.publish(message, name)
                except MessageTooLarge:
                    if message.records == 1:
                        raise
                    waiting[:0] = message.halves()
                else:
                    await self._acknowledge(site, message, marks)

    async def _acknowledge(self, site: str, message: Message, marks: Mapping[str, tuple[date, bytes]]) -> None:
        days = dict(self.ledger.site(site).days)
        for day in {marks[record_id][0] for record_id in message.record_ids}:
            new = {mark for when, mark in map(marks.__getitem__, message.record_ids) if when == day}
            days[str(day)] = _marked(days.get(str(day), DayBook()), new)
        await self.ledger.keep_days(site, forgetting(days), sent=1)
        metrics.count_message(self.context, site)

    async def _figures(self, site: str, window: Window) -> Mapping[date, Figures]:
        scores = _scores(self.config)
        by: tuple[Dimension, ...] = (
            MetaValue(*self.config.site.site_meta_field),
            CalendarPeriod(CalendarUnit.DAY),
            *scores,
        )
        usage = tuple([ComponentUsage(name) for name in _components(self.config)])
        groups: dict[date, list[Group]] = {}
        for where in conditions(self.config, (site,), window):
            answer = await self.context.records.aggregate(AggregateQuery(where=where, by=by, usage=usage))
            for group in answer.groups:
                if site_of(self.config, group.key[0]) == site and isinstance(group.key[1], date):
                    groups.setdefault(group.key[1], []).append(group)
        return {day: _figures_of(each, scores) for day, each in sorted(groups.items())}

    def _tell(self, site: str, problems: Sequence[Problem]) -> None:
        for problem in problems if self.context.dry_run else problems[:LISTED]:
            if self.context.dry_run:
                self.context.show(f"! {problem}")
            else:
                self.context.log.warning("%s", problem)
        if len(problems) > LISTED and not self.context.dry_run:
            self.context.log.warning("%s: %d jobs cannot be reported", site, len(problems))


def mark(row: JobRow) -> bytes:
    """Eight bytes that stand for this job as it is."""
    content = msgspec.json.encode([row.record_id, sorted(row.fields.items())])
    return hashlib.sha256(content).digest()[:_MARK_BYTES]


def forgetting(days: Mapping[str, DayBook]) -> Mapping[str, DayBook]:
    """Without the marks of the oldest days, if there are too many; a day that is not done keeps them."""
    kept = 0
    changed = dict(days)
    for text in sorted(days, reverse=True):
        day = days[text]
        kept += 0 if day.marks is None else day.jobs
        if kept > MARKED and day.figures is not None and day.marks is not None:
            changed[text] = msgspec.structs.replace(day, marks=None)
    return changed


def _marked(book: DayBook, new: set[bytes]) -> DayBook:
    if book.marks is None:  # sent again by hand
        return book
    marks = _marks(book.marks) | new
    return msgspec.structs.replace(book, marks=_joined(marks), jobs=len(marks))


def _joined(marks: set[bytes]) -> str:
    return base64.b64encode(b"".join(sorted(marks))).decode()


def _marks(text: str | None) -> set[bytes]:
    data = base64.b64decode(text or "")
    return {data[place : place + _MARK_BYTES] for place in range(0, len(data), _MARK_BYTES)}


def settings_digest(config: ApelConfig) -> str:
    """Of the options that decide what a job is to APEL."""
    benchmarks = [benchmark.model_dump_json() for benchmark in config.scores]
    fields = None if config.individual_job_fields is None else config.individual_job_fields.model_dump_json()
    content = msgspec.json.encode([config.job_message, config.site.benchmark_type, benchmarks, fields])
    return hashlib.sha256(content).hexdigest()[:32]


def _components(config: ApelConfig) -> Iterable[str]:
    """The components of which amounts are reported."""
    return dict.fromkeys(field.name for field in _fields(config) if isinstance(field, ComponentField))


def _scores(config: ApelConfig) -> Sequence[ScoreValue]:
    """The scores that are reported."""
    named = [ScoreValue(each.component_name, each.name) for each in _fields(config) if isinstance(each, ScoreField)]
    benchmarks = [ScoreValue(each.component, each.score) for each in config.scores]
    return list(dict.fromkeys(benchmarks + named))


def _fields(config: ApelConfig) -> Sequence[object]:
    if config.individual_job_fields is None:
        return ()
    sections = (config.individual_job_fields.mandatory, config.individual_job_fields.optional)
    return [value for section in sections for _, value in section]


def _figures_of(groups: Sequence[Group], scores: Sequence[ScoreValue]) -> Figures:
    parts = [
        (
            *(group.records, group.runtime, group.first_stop, group.last_stop),
            *([usage.sums.amount for usage in group.usage], _known(scores, group)),
        )
        for group in groups
    ]
    digest = hashlib.sha256(b"".join(sorted(map(msgspec.json.encode, parts)))).hexdigest()[:32]
    return Figures(sum(group.records for group in groups), digest)


def _known(scores: Sequence[ScoreValue], group: Group) -> Sequence[str]:
    """Those that the group has: another benchmark that no job has changes nothing."""
    values = zip(scores, group.key[2:], strict=True)
    return sorted(f"{score.component} {score.score} {value}" for score, value in values if value is not None)


def _day_of(row: JobRow) -> date:
    return datetime.fromtimestamp(int(row.fields["EndTime"]), UTC).date()


def begin_of(day: date) -> datetime:
    """The first instant of a day of UTC."""
    return datetime.combine(day, time(), UTC)
