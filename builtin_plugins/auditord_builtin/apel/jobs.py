"""Report individual jobs. A job is sent when it is new, and again if it has changed."""

import base64
import hashlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from functools import partial
from typing import Final, NamedTuple

import msgspec
from typing_extensions import override

from auditord_builtin.apel.config import (
    ApelConfig,
    ComponentField,
    ConstantField,
    JobField,
    JobFields,
    JobLayout,
    MetaField,
    RecordField,
    ScoreField,
)
from auditord_builtin.apel.messages import LONGEST, JobRow, Problem, clean, render_jobs
from auditord_builtin.apel.questions import (
    LeftOut,
    batch_system_field,
    check_level,
    conditions,
    describe,
    describe_cpu,
    format_value,
    name_of_held,
    plausible_cpu,
    round_half_up,
    site_groups,
    site_of,
    whole_number,
)
from auditord_builtin.apel.reporting import Part, Reporter, other_kind
from auditord_builtin.apel.state import DayState
from auditord_builtin.apel.validation import validate
from auditord_hookspecs import CalendarPeriod, CalendarUnit, Group, Record, RecordQuery, Records, ScoreValue, Window
from auditord_hookspecs.aggregates import amount_of, exact_score, meta_value
from auditord_hookspecs.months import Month
from auditord_hookspecs.vocabulary import HELD, TOTALS

_LENGTHS: Final = {"Queue": 100, "InfrastructureDescription": 100, "InfrastructureType": 20}
_OTHERWISE: Final = frozenset({"CpuDuration", "ServiceLevel", "ServiceLevelType"})
_NUMBERS: Final = frozenset({"Processors", "NodeCount", "MemoryReal", "MemoryVirtual"})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def individual_jobs(
    config: ApelConfig, records: Records, window: Window, sites: Sequence[str] | None = None
) -> AsyncIterator[JobRow | Problem]:
    """Yield the jobs that ended in the window, but not before ``publish_since``, and the problems of their records.

    Records are streamed, so memory stays bounded. ``sites`` are names in GOCDB; None means all ``sites_to_report``.
    """
    wanted = tuple(config.site.sites_to_report) if sites is None else tuple(sites)
    begin = max(window.start, config.site.publish_since or window.start)
    if begin >= window.stop:
        return
    for where in conditions(config, wanted, Window(begin, window.stop)):
        async with records.stream(RecordQuery(where)) as found:
            async for record in found:
                if _site(config, record) not in wanted or (job := job_row(config, record)) is None:
                    continue
                yield job
                if isinstance(job, JobRow) and job.remark is not None:
                    yield job.remark


def job_row(config: ApelConfig, record: Record) -> JobRow | Problem | None:
    """Return a record as a job for APEL, or the problem that prevents it, or None if its site is not reported."""
    site = _site(config, record)
    if site is None:
        return None
    try:
        row = _make_row(config, record, site)
    except LeftOut as reason:
        return Problem(record.record_id, str(reason), 1)
    faults = [fault.reason for message in render_jobs([row]) for fault in validate(message.text)]
    return Problem(record.record_id, f"left out: {'; '.join(faults)}", 1) if faults else row


def _site(config: ApelConfig, record: Record) -> str | None:
    return site_of(config, meta_value(record, config.site.site_meta_field))


def _make_row(config: ApelConfig, record: Record, site: str) -> JobRow:
    chosen = config.individual_job_fields
    if chosen is None:
        raise ValueError("individual jobs need individual_job_fields")
    stop, runtime = record.stop_time, record.runtime
    if stop is None or runtime is None or stop < record.start_time:
        raise LeftOut("it stops before it starts: left out")
    name = name_of_held(chosen.mandatory.Processors)
    seconds = None if name is None else amount_of(record, TOTALS[name])
    if name is not None and seconds is not None:  # count a job that has core-seconds as a job of one core
        held = next(each for each in record.components if each.name == TOTALS[name])
        one = msgspec.structs.replace(held, name=name, amount=1)
        others = [each for each in record.components if each.name != TOTALS[name]]
        record, runtime = msgspec.structs.replace(record, components=(one, *others)), seconds
    batch_system = batch_system_field(config)
    description = describe(
        config, () if batch_system is None else (batch_system.text(meta_value(record, batch_system.name)),)
    )
    texts: dict[str, str] = {}
    for section in (chosen.mandatory, chosen.optional):
        named: Iterable[tuple[str, JobField | None]] = section
        for label, field in named:
            if field is not None and label not in _OTHERWISE:
                texts[label] = _format_field(label, field, record)
    stored = round_half_up(Fraction(_text(chosen.mandatory.CpuDuration, record)))
    cpu = plausible_cpu(stored, runtime, 1, int(texts["Processors"]))
    kind, value = _benchmark(config, chosen, record)
    level = f"{value.quantize(Decimal('0.001'), ROUND_HALF_UP):f}"
    values = {
        **({} if description is None else {"InfrastructureDescription": description}),
        "Site": clean(site),
        **texts,
        "WallDuration": str(runtime),
        "CpuDuration": str(cpu),
        "StartTime": _seconds(record.start_time),
        "EndTime": _seconds(stop),
        **(
            {"ServiceLevel": f"{{{kind}: {level}}}"}
            if config.job_message is JobLayout.V4
            else {"ServiceLevelType": kind, "ServiceLevel": level}
        ),
    }
    remark = None if cpu == stored else Problem(record.record_id, f"an {describe_cpu(stored, runtime, cpu)}")
    return JobRow(config.job_message, record.record_id, site, Month.of(stop), values, remark)


def _format_field(name: str, field: JobField, record: Record) -> str:
    text = _text(field, record)
    if name in _NUMBERS:
        return str(whole_number(text, name))
    cleaned = clean(text, _LENGTHS.get(name, LONGEST))
    if name != "LocalJobId" or cleaned == text:
        return cleaned
    # APEL truncates long ids, so a digest keeps them unique.
    return f"{cleaned[: LONGEST - 65]}-{hashlib.sha256(text.encode()).hexdigest()}"


def _text(field: JobField, record: Record) -> str:
    match field:
        case MetaField(name=names):
            return field.text(meta_value(record, names))
        case ConstantField(value=value):
            return str(value)
        case ComponentField(name=name):
            return format_value(field, amount_of(record, name))
        case ScoreField():
            return format_value(field, _score(record, field.component_name, field.name))
        case RecordField(name=name, modify=part):
            value = getattr(record, name)
            moment = getattr(value, part) if part is not None else value
            return _seconds(moment) if isinstance(moment, datetime) else str(moment)


def _benchmark(config: ApelConfig, chosen: JobFields, record: Record) -> tuple[str, Decimal]:
    given, kind = chosen.optional.ServiceLevel, chosen.optional.ServiceLevelType
    if given is not None:
        text, named = _text(given, record), None if kind is None else _text(kind, record)
        try:
            return named or config.site.benchmark_type, check_level(Decimal(text), "ServiceLevel")
        except ArithmeticError:
            raise LeftOut(f"ServiceLevel is {text[:40]!r}, not a number: left out") from None
    for benchmark in config.scores:
        if value := _score(record, benchmark.component, benchmark.score):  # AUDITOR writes 0 for an unknown score
            return benchmark.type, check_level(value, benchmark.score)
    raise LeftOut(f"no score {' or '.join(each.score for each in config.scores)}: left out")


def _score(record: Record, component: str, score: str) -> Decimal | None:
    scores = next((each.scores for each in record.components if each.name == component), ())
    return next((exact_score(each.value) for each in scores if each.name == score), None)


def _seconds(moment: datetime) -> str:
    return str((moment - _EPOCH) // timedelta(seconds=1))


MARKED: Final = 100_000
"""The number of jobs whose marks are kept. They need about a megabyte of state."""

PER_MESSAGE: Final = 1_000
_MARK_BYTES: Final = 8
_DAY: Final = timedelta(days=1)


class Totals(NamedTuple):
    """The number of stored jobs of a site and day, and a digest of their sums."""

    jobs: int
    digest: str


class JobReporter(Reporter):
    """Sends new jobs, day by day. All days since the beginning are checked once a day, the last two in every run."""

    def begin(self, since: datetime) -> datetime:
        """Return ``publish_since`` itself: jobs are reported exactly."""
        return since

    async def due(self, site: str, since: datetime, *, full: bool) -> Sequence[Part]:
        """Return the days whose sums have changed, or that left out jobs under options that have since changed."""
        now = self.context.now()
        start = since if full else max(since, begin_of((now - _DAY).date()))
        found = await self._read_totals(site, Window(start, max(start, now)))
        known = {day: self.saved.day(site, day) for day in found}
        current = {None, settings_digest(self.config)}
        return [
            Part(f"{site} {day}", partial(self._report, site, day, Window(since, now), totals))
            for day, totals in found.items()
            if known[day].totals != totals.digest or known[day].settings not in current
        ]

    def widen(self, period: Window) -> Window:
        """Return the period up to now. APEL would refuse a whole message for one job that ends in the future."""
        return Window(period.start, min(period.stop, self.context.now()))

    def again(self, site: str, period: Window) -> Sequence[Part]:
        """Return a part that sends all jobs that ended in the period, acknowledged or not."""

        async def send() -> None:
            await self._send(site, (await self._read_rows(site, period))[0])

        return [Part(site, send)]

    @override
    def refuse_other_kind(self, site: str, begin: datetime) -> None:
        reported = self.saved.site(site).months
        sent = [text for text, month in reported.items() if month.ids or (month.outbox and month.outbox.ids)]
        if since := [month for month in map(Month.parse, sent) if month.next.start > begin]:
            raise other_kind(site, max(since), "summaries", "individual_jobs")

    async def _report(self, site: str, day: date, window: Window, totals: Totals) -> None:
        """Send the jobs of a day, within the window, that are new or have changed since they were acknowledged.

        Raises:
            AuditordError: some jobs could not be sent.
        """
        state = self.saved.day(site, day)
        if state.marks is None:
            self.context.log.info("%s %s: jobs or options have changed, all jobs of the day are sent again", site, day)
            state = DayState()
        of_day = Window(max(window.start, begin_of(day)), min(window.stop, begin_of(day) + _DAY))
        rows, problems = await self._read_rows(site, of_day)
        started = msgspec.structs.replace(state, totals=None, stored=totals.jobs, reportable=len(rows))
        await self._save(site, {day: started})
        known, marks = _decode_marks(state.marks), {mark(row) for row in rows}
        await self._send(site, [row for row in rows if mark(row) not in known])
        settings = settings_digest(self.config) if any(problem.jobs for problem in problems) else None
        done = msgspec.structs.replace(started, totals=totals.digest, settings=settings)
        await self._save(site, {day: msgspec.structs.replace(done, marks=_encode_marks(marks), jobs=len(marks))})

    async def _save(self, site: str, days: Mapping[date, DayState], sent: int = 0) -> None:
        changed = {str(day): state for day, state in days.items()}
        await self.saved.save_site(site, sent, days=forget_marks({**self.saved.site(site).days, **changed}))

    async def _read_rows(self, site: str, window: Window) -> tuple[Sequence[JobRow], Sequence[Problem]]:
        """Return the jobs that ended in the window, all in memory, and the problems."""
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
                if not isinstance(sent, str):
                    waiting[:0] = sent
                    continue
                days: dict[date, DayState] = {}
                for day, new in sorted(map(marks.__getitem__, message.record_ids)):
                    state = days.get(day) or self.saved.day(site, day)
                    if state.marks is not None:  # None: the jobs are republished by hand
                        known = _decode_marks(state.marks) | {new}
                        state = msgspec.structs.replace(state, marks=_encode_marks(known), jobs=len(known))
                    days[day] = state
                await self._save(site, days, sent=1)

    async def _read_totals(self, site: str, window: Window) -> Mapping[date, Totals]:
        chosen = self.config.individual_job_fields
        sections = () if chosen is None else (chosen.mandatory, chosen.optional)
        fields: list[object] = [value for section in sections for _, value in section]
        named = [ScoreValue(each.component_name, each.name) for each in fields if isinstance(each, ScoreField)]
        benchmarks = [ScoreValue(each.component, each.score) for each in self.config.scores]
        scores = list(dict.fromkeys(benchmarks + named))
        usage = list(dict.fromkeys(field.name for field in fields if isinstance(field, ComponentField)))
        usage += [TOTALS[name] for name in usage if name in TOTALS]
        by_day = CalendarPeriod(CalendarUnit.DAY)
        days: dict[date, list[Group]] = {}
        records = self.context.records
        for group in await site_groups(self.config, records, site, window, by_day, *scores, usage=usage):
            if isinstance(day := group.key[1], date):
                days.setdefault(day, []).append(group)
        totals: dict[date, Totals] = {}
        for day, groups in sorted(days.items()):
            parts: list[bytes] = []
            for group in groups:
                # Scores and totals of held amounts that no job has are left out: adding a benchmark changes nothing.
                values = zip(scores, group.key[2:], strict=True)
                known = sorted(f"{each.component} {each.score} {value}" for each, value in values if value is not None)
                sums = (group.records, group.runtime, group.first_stop, group.last_stop)
                used = zip(usage, group.usage, strict=True)
                amounts = [each.sums.amount for name, each in used if each.known or name not in HELD]
                parts.append(msgspec.json.encode((*sums, amounts, known)))
            digest = hashlib.sha256(b"".join(sorted(parts))).hexdigest()[:32]
            totals[day] = Totals(sum(group.records for group in groups), digest)
        return totals


def mark(row: JobRow) -> bytes:
    """Return eight bytes that identify this version of a job."""
    content = msgspec.json.encode([row.record_id, sorted(row.fields.items())])
    return hashlib.sha256(content).digest()[:_MARK_BYTES]


def forget_marks(days: Mapping[str, DayState]) -> Mapping[str, DayState]:
    """Drop the marks of the oldest days if there are too many. Incomplete days keep theirs."""
    kept = 0
    changed = dict(days)
    for text in sorted(days, reverse=True):
        day = days[text]
        kept += 0 if day.marks is None else day.jobs
        if kept > MARKED and day.totals is not None and day.marks is not None:
            changed[text] = msgspec.structs.replace(day, marks=None)
    return changed


def _encode_marks(marks: set[bytes]) -> str:
    return base64.b64encode(b"".join(sorted(marks))).decode()


def _decode_marks(text: str | None) -> set[bytes]:
    data = base64.b64decode(text or "")
    return {data[place : place + _MARK_BYTES] for place in range(0, len(data), _MARK_BYTES)}


def settings_digest(config: ApelConfig) -> str:
    """Return a digest of the options that affect how a job is reported."""
    benchmarks = [benchmark.model_dump_json() for benchmark in config.scores]
    fields = None if config.individual_job_fields is None else config.individual_job_fields.model_dump_json()
    content = msgspec.json.encode([config.job_message, config.site.benchmark_type, benchmarks, fields])
    return hashlib.sha256(content).hexdigest()[:32]


def begin_of(day: date) -> datetime:
    """Return the first instant of a UTC day."""
    return datetime.combine(day, time(), UTC)
