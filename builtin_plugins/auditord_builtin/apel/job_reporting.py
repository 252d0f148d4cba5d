"""Individual jobs: each is sent once, when it is new; none is sent again because its month is.

Which jobs were acknowledged is kept exactly, as eight bytes of each job's content, for the newest ones. For older days
only the sums of the store are kept: if they change, the jobs of that day are sent again, which replaces them by key.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import Final, NamedTuple

import msgspec

from auditord_builtin.apel.config import ApelConfig
from auditord_builtin.apel.fields import ComponentField, ScoreField
from auditord_builtin.apel.jobs import individual_jobs
from auditord_builtin.apel.messages import Message, render_jobs
from auditord_builtin.apel.questions import site_groups
from auditord_builtin.apel.reporting import Part, Reporter, other_kind
from auditord_builtin.apel.rows import JobRow, Problem
from auditord_builtin.apel.state import DayState
from auditord_hookspecs import CalendarPeriod, CalendarUnit, Group, ScoreValue, Window
from auditord_hookspecs.months import Month

MARKED: Final = 100_000
"""The number of jobs that are remembered one by one, about a megabyte of state."""

PER_MESSAGE: Final = 1_000
_MARK_BYTES: Final = 8
_DAY: Final = timedelta(days=1)


class Totals(NamedTuple):
    """The store's sums of the jobs of one site and day: their number, and a digest of all."""

    jobs: int
    digest: str


class JobReporter(Reporter):
    """Sends the new jobs of days: all days since the beginning are looked at once a day, else the last ones."""

    def begin(self, since: datetime) -> datetime:
        """Jobs are reported from ``publish_since`` on to the second."""
        return since

    async def due(self, site: str, since: datetime, *, full: bool) -> Sequence[Part]:
        """The days of which the store has other sums than when their jobs were last sent.

        Those as well of which jobs were left out with other options than today's.
        """
        now = self.context.now()
        start = since if full else max(since, begin_of((now - _DAY).date()))
        found = await self._totals(site, Window(start, max(start, now)))
        known = {day: self.saved.day(site, day) for day in found}
        today = {None, settings_digest(self.config)}
        return [
            Part(f"{site} {day}", partial(self._report, site, day, Window(since, now), totals))
            for day, totals in found.items()
            if known[day].totals != totals.digest or known[day].settings not in today
        ]

    def widened(self, period: Window) -> Window:
        """Jobs are sent again exactly."""
        return period

    def again(self, site: str, period: Window) -> Sequence[Part]:
        """Send the jobs of a site that ended in exactly this period, acknowledged or not."""

        async def send() -> None:
            await self._send(site, (await self._rows(site, period))[0])

        return [Part(site, send)]

    def refuse_other_kind(self, site: str, begin: datetime) -> None:
        """See :class:`Reporter`."""
        reported = self.saved.site(site).months
        sent = [text for text, month in reported.items() if month.ids or (month.outbox and month.outbox.ids)]
        if since := [month for month in map(Month.parse, sent) if month.next.start > begin]:
            raise other_kind(site, max(since), "summaries", "individual_jobs")

    async def _report(self, site: str, day: date, window: Window, totals: Totals) -> None:
        """Send the jobs of a site that ended on a day, within the window, and are not acknowledged as they are.

        Raises:
            AuditordError: not all of them could be sent.
        """
        state = self.saved.day(site, day)
        if state.marks is None:
            self.context.log.info("%s %s: something has changed, its jobs are sent again", site, day)
            state = DayState()
        of_day = Window(max(window.start, begin_of(day)), min(window.stop, begin_of(day) + _DAY))
        rows, problems = await self._rows(site, of_day)
        begun = msgspec.structs.replace(state, totals=None, stored=totals.jobs, reportable=len(rows))
        await self._save(site, {day: begun})
        known, marks = _marks(state.marks), {mark(row) for row in rows}
        await self._send(site, [row for row in rows if mark(row) not in known])
        settings = settings_digest(self.config) if any(problem.jobs for problem in problems) else None
        done = msgspec.structs.replace(begun, totals=totals.digest, settings=settings)
        await self._save(site, {day: msgspec.structs.replace(done, marks=_joined(marks), jobs=len(marks))})

    async def _save(self, site: str, days: Mapping[date, DayState], sent: int = 0) -> None:
        changed = {str(day): state for day, state in days.items()}
        await self.saved.save_site(site, sent, days=forgetting({**self.saved.site(site).days, **changed}))

    async def _rows(self, site: str, window: Window) -> tuple[Sequence[JobRow], Sequence[Problem]]:
        """A day at most is in memory; messages are sent when the store's answer is read to its end."""
        rows: list[JobRow] = []
        problems: list[Problem] = []
        async for item in individual_jobs(self.config, self.context.records, window, (site,)):
            if isinstance(item, Problem):
                problems.append(item)
            else:
                rows.append(item)
        self.show_problems(site, problems)
        return rows, problems

    async def _send(self, site: str, rows: Sequence[JobRow]) -> None:
        ends = {row.record_id: datetime.fromtimestamp(int(row.fields["EndTime"]), UTC).date() for row in rows}
        marks = {row.record_id: (ends[row.record_id], mark(row)) for row in rows}
        for first in range(0, len(rows), PER_MESSAGE):
            size = self.config.messaging.max_message_size
            waiting = [*render_jobs(rows[first : first + PER_MESSAGE], size)]
            while waiting:
                message = waiting.pop(0)
                sent = await self.publish(message)
                if isinstance(sent, str):
                    await self._acknowledge(site, message, marks)
                else:
                    waiting[:0] = sent

    async def _acknowledge(self, site: str, message: Message, marks: Mapping[str, tuple[date, bytes]]) -> None:
        days: dict[date, DayState] = {}
        for day, new in sorted(map(marks.__getitem__, message.record_ids)):
            state = days.get(day) or self.saved.day(site, day)
            if state.marks is not None:  # else sent again by hand
                joined = _marks(state.marks) | {new}
                state = msgspec.structs.replace(state, marks=_joined(joined), jobs=len(joined))
            days[day] = state
        await self._save(site, days, sent=1)

    async def _totals(self, site: str, window: Window) -> Mapping[date, Totals]:
        fields = _fields(self.config)
        named = [ScoreValue(each.component_name, each.name) for each in fields if isinstance(each, ScoreField)]
        benchmarks = [ScoreValue(each.component, each.score) for each in self.config.scores]
        scores = list(dict.fromkeys(benchmarks + named))
        usage = list(dict.fromkeys(field.name for field in fields if isinstance(field, ComponentField)))
        by_day = CalendarPeriod(CalendarUnit.DAY)
        days: dict[date, list[Group]] = {}
        records = self.context.records
        for group in await site_groups(self.config, records, site, window, by_day, *scores, usage=usage):
            if isinstance(day := group.key[1], date):
                days.setdefault(day, []).append(group)
        return {day: _totals_of(groups, scores) for day, groups in sorted(days.items())}


def mark(row: JobRow) -> bytes:
    """Eight bytes that stand for this job as it is."""
    content = msgspec.json.encode([row.record_id, sorted(row.fields.items())])
    return hashlib.sha256(content).digest()[:_MARK_BYTES]


def forgetting(days: Mapping[str, DayState]) -> Mapping[str, DayState]:
    """Without the marks of the oldest days, if there are too many; a day that is not done keeps them."""
    kept = 0
    changed = dict(days)
    for text in sorted(days, reverse=True):
        day = days[text]
        kept += 0 if day.marks is None else day.jobs
        if kept > MARKED and day.totals is not None and day.marks is not None:
            changed[text] = msgspec.structs.replace(day, marks=None)
    return changed


def _joined(marks: set[bytes]) -> str:
    return base64.b64encode(b"".join(sorted(marks))).decode()


def _marks(text: str | None) -> set[bytes]:
    data = base64.b64decode(text or "")
    return {data[place : place + _MARK_BYTES] for place in range(0, len(data), _MARK_BYTES)}


def settings_digest(config: ApelConfig) -> str:
    """A digest of the options that decide what a job is to APEL."""
    benchmarks = [benchmark.model_dump_json() for benchmark in config.scores]
    fields = None if config.individual_job_fields is None else config.individual_job_fields.model_dump_json()
    content = msgspec.json.encode([config.job_message, config.site.benchmark_type, benchmarks, fields])
    return hashlib.sha256(content).hexdigest()[:32]


def _fields(config: ApelConfig) -> Sequence[object]:
    if config.individual_job_fields is None:
        return ()
    sections = (config.individual_job_fields.mandatory, config.individual_job_fields.optional)
    return [value for section in sections for _, value in section]


def _totals_of(groups: Sequence[Group], scores: Sequence[ScoreValue]) -> Totals:
    """A benchmark more that no job has changes nothing: only the scores count that groups have."""
    parts: list[bytes] = []
    for group in groups:
        values = zip(scores, group.key[2:], strict=True)
        known = sorted(f"{score.component} {score.score} {value}" for score, value in values if value is not None)
        sums = (group.records, group.runtime, group.first_stop, group.last_stop)
        parts.append(msgspec.json.encode((*sums, [usage.sums.amount for usage in group.usage], known)))
    digest = hashlib.sha256(b"".join(sorted(parts))).hexdigest()[:32]
    return Totals(sum(group.records for group in groups), digest)


def begin_of(day: date) -> datetime:
    """The first instant of a day of UTC."""
    return datetime.combine(day, time(), UTC)
