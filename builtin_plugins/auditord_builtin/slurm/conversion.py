"""Convert the rows of a job's run to a record, or to the reason why it makes none."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal
from math import inf
from typing import Any, Final

from auditord_builtin.slurm.config import CLUSTER, CPU_TIME, MEASURED, JobFilter, JobsConfig, MergePolicy
from auditord_builtin.slurm.runs import (
    CONTINUED,
    ELSEWHERE,
    FIRST_COLUMN,
    OVER,
    REQUEUED,
    Run,
    has_no_time,
    parse_state,
)
from auditord_hookspecs import InvalidRecord, JobChoice, Produced, Quarantined, Record, mapping
from auditord_hookspecs.mapping import (
    PartialRow,
    Row,
    is_missing,
    is_zero,
    parse_duration,
    parse_energy,
    parse_number,
    parse_size,
    sub_value,
)
from auditord_hookspecs.outcomes import Converted, Outcome, Skipped, retried

_CLOCK: Final = len("HH:MM:SS")
_NO_NUMBER: Final = "4294967294"
_CORES: Final = ("NCPUS", "AllocCPUS")

_A_WHILE: Final = timedelta(minutes=1)
"""A job that ran for this long has used CPU time, so zero means that none was measured."""

_GATHERED: Final = ("mem", "vmem", "fs/disk", "pages")
"""Entries of TRESUsageInTot. If a step was measured while it ran, at least one of them is not zero."""

_NOT_MEASURED: Final = (
    "no CPU time was measured: TotalCPU is zero, and TRESUsageInTot has no CPU time, memory or disk; "
    "see JobAcctGatherType in slurm.conf"
)


class RowMerger:
    """Merges the rows of a run into one, according to the options of an instance. Reusable for many runs."""

    def __init__(self, config: JobsConfig) -> None:
        self._merged = config.merged_columns
        self._sum_memory = "ReqMem" in config.columns
        self._sums_cpu_time = config.sums_cpu_time
        self._cpu_time_may_be_missing = config.cpu_time_may_be_missing
        self._cores = [column for column in _CORES if column in config.columns and column not in config.merge]

    def merge(self, run: Run, lasted: timedelta | None) -> Row:
        """Return one row for a run that took ``lasted`` (None: it is still running).

        Slurm measures some columns per step and leaves them empty in the allocation's row. Each column has a policy:

        * ``alloc``: the allocation's value; steps are ignored.
        * ``max``: the largest value of all steps, such as the peak memory of any task.
        * ``sum``: the sum over all steps; lists such as ``TRESUsageInTot`` are summed entry by entry.
        * ``batch``: the value of the batch script or, if there is none, of the interactive step.
        * ``energy``: the energy of the nodes, each counted once; see :func:`_count_energy`.

        With every policy except ``alloc``, the allocation's value is the fallback if no step has one. If a column
        cannot be read, the rules that use it have no value.
        """
        merged, faults = dict(run.allocation), dict[str, str]()
        self._merge_steps(run, merged, faults)
        for name, number in (("User", "UID"), ("Group", "GID")):
            merged[name] = _known_owner(merged[name]) or _known_owner(merged[number])
        if self._sum_memory:
            try:
                merged["ReqMem"] = _whole_memory(merged)
            except InvalidRecord as error:
                faults["ReqMem"] = str(error)
        for column in self._cores:
            if is_zero(merged[column]) and (fault := _cores_of_steps(column, run)):
                faults[column] = fault
        if self._cpu_time_may_be_missing and is_zero(merged[CPU_TIME]):
            if lasted is None:
                merged[CPU_TIME] = ""  # the usage of a running job is not known yet
            elif _lacks_cpu_time(run, lasted):
                faults.setdefault(CPU_TIME, _NOT_MEASURED)
        return PartialRow(merged, faults) if faults else merged

    def _merge_steps(self, run: Run, merged: dict[str, str], faults: dict[str, str]) -> None:
        for column, policy in self._merged:
            if column in merged:
                try:
                    merged[column] = self._value(column, run, policy)
                except InvalidRecord as error:
                    faults[column] = f"{column} of the steps: {error}"

    def _value(self, column: str, run: Run, policy: MergePolicy) -> str:
        if column == CPU_TIME and self._sums_cpu_time:
            return _cpu_time(run)
        if policy == "energy":
            joules = _count_energy(run, lambda step: step.get(column, ""))
            return run.allocation[column] if joules is None else f"{joules:f}"
        steps = run.steps if policy != "batch" else _script_step(run.steps)
        texts = [step[column] for step in steps if not is_missing(step.get(column, ""))]
        merged = _MERGES[policy](texts) if texts else run.allocation[column]
        if column == MEASURED and policy == "sum" and "energy=" in merged:
            with suppress(InvalidRecord):  # the rule that uses this entry reports why
                joules = _count_energy(run, lambda step: sub_value(step.get(column, ""), "energy"))
                merged += "" if joules is None else f",energy={joules:f}"  # the last entry of a name counts
        return merged


def _cpu_time(run: Run) -> str:
    """Return the CPU time of all steps, or the allocation's value if that is not less.

    Slurm sums up the allocation's value from its steps. Since Slurm 25.05 prints a TotalCPU of zero for many steps, and
    so for their jobs, each step counts with the larger of ``TotalCPU`` and the value measured while it ran.
    """
    own = run.allocation[CPU_TIME]
    if not is_missing(own) and not is_zero(own) and all(map(_has_no_more_gathered, run.steps)):
        return own
    steps = [_cpu_time_of_step(step) for step in run.steps]
    total = sum((seconds for seconds in steps if seconds is not None), Decimal(0))
    if is_missing(own):
        return own if all(seconds is None for seconds in steps) else f"{total:f}"
    return own if parse_duration(own) >= total else f"{total:f}"


def _has_no_more_gathered(step: Row) -> bool:
    """Compare the texts to see that TotalCPU is not less. This is the usual case, and parsing would take longer."""
    gathered, own = sub_value(step.get(MEASURED, ""), "cpu"), step.get(CPU_TIME, "")
    clock = f"00:{own[:5]}" if own[5:6] == "." else own  # MM:SS.fff or HH:MM:SS
    if not own and not gathered:
        return True
    return len(clock) == _CLOCK and (not gathered or (len(gathered) == _CLOCK and clock >= gathered))


def _cpu_time_of_step(step: Row) -> Decimal | None:
    texts = (step.get(CPU_TIME, ""), sub_value(step.get(MEASURED, ""), "cpu"))
    return max((parse_duration(text) for text in texts if not is_missing(text)), default=None)


def _was_measured(run: Run) -> bool:
    texts = (sub_value(step.get(MEASURED, ""), name) for step in run.steps for name in _GATHERED)
    return any(not is_missing(text) and not is_zero(text) for text in texts)


def _lacks_cpu_time(run: Run, lasted: timedelta) -> bool:
    """Return whether a CPU time of zero cannot be true, since a run that took this long was not measured."""
    return lasted >= _A_WHILE and not is_zero(run.allocation.get("NCPUS", "")) and not _was_measured(run)


def _cores_of_steps(column: str, run: Run) -> str | None:
    """Return an error text if a step had cores although the job has none; None if no step had any."""
    for step in run.steps:
        text = step.get(column, "")
        if not is_missing(text) and not is_zero(text):
            return f"it is 0, but step {step[FIRST_COLUMN]} had {text}: it is not known how many the job held"
    return None


def _count_energy(run: Run, read: Callable[[Row], str]) -> Decimal | None:
    """Return the joules of the nodes during the job; None if no step has any.

    Each step has the energy of its whole nodes. So the energy of concurrent steps is the same energy, and the job's own
    value, which is the sum over its steps, can be too large. The extern step spans the job on all its nodes. Without
    it, the largest sum of steps that do not overlap counts: for one step after the other, the sum of all.
    """
    known = [(step, parse_energy(text)) for step in run.steps if not is_missing(text := read(step))]
    if not known:
        return None
    largest = max(joules for _, joules in known)
    if any(joules and step[FIRST_COLUMN].endswith(".extern") for step, joules in known):
        return largest
    measured = [(step, joules) for step, joules in known if not step[FIRST_COLUMN].endswith(_SCRIPTS)]
    single = all(re.fullmatch(r"[^\[,]+", step.get("NodeList", "")) for step, _ in measured)
    by_nodes: dict[str, list[tuple[float, float, Decimal]]] = {}
    for step, joules in measured:
        start, end = step.get("Start", ""), step.get("End", "")
        period = (
            -inf if has_no_time(start) else mapping.parse_instant(start).timestamp(),
            inf if has_no_time(end) else mapping.parse_instant(end).timestamp(),
        )
        by_nodes.setdefault(step["NodeList"] if single else "", []).append((*period, joules))
    return max(largest, sum(map(_find_largest_sum, by_nodes.values()), Decimal(0)))


def _find_largest_sum(steps: list[tuple[float, float, Decimal]]) -> Decimal:
    """Return the largest sum of values of steps, given as start, end and value, that do not overlap."""
    ends, sums = [-inf], [Decimal(0)]
    for start, end, value in sorted(steps, key=lambda step: step[1]):
        sums.append(max(sums[-1], sums[bisect_right(ends, start) - 1] + value))
        ends.append(end)
    return sums[-1]


_SCRIPTS: Final = (".batch", ".interactive")


def _script_step(steps: Sequence[Row]) -> Sequence[Row]:
    for kind in _SCRIPTS:
        found = [step for step in steps if step[FIRST_COLUMN].endswith(kind)]
        if found:
            return found[:1]
    return ()


def _largest(texts: Sequence[str]) -> str:
    if "=" in "".join(texts):
        return _entry_by_entry(texts, max)
    return max(texts, key=_magnitude)


def _total(texts: Sequence[str]) -> str:
    if "=" in "".join(texts):
        return _entry_by_entry(texts, sum)
    return f"{sum(map(_magnitude, texts)):f}"


_MERGES: Final[Mapping[MergePolicy, Callable[[Sequence[str]], str]]] = {
    "max": _largest,
    "sum": _total,
    "batch": "".join,
}


def _entry_by_entry(texts: Sequence[str], combine: Callable[[list[Decimal]], Decimal | int]) -> str:
    entries: dict[str, list[Decimal]] = {}
    unreadable: dict[str, str] = {}
    for text in texts:
        for name, _, value in (part.partition("=") for part in text.split(",")):
            try:
                if not is_missing(value):
                    entries.setdefault(name, []).append(_magnitude(value))
            except InvalidRecord:
                unreadable[name] = value  # the rule that uses this entry reports why
    merged = {name: f"{combine(values):f}" for name, values in entries.items() if values}
    return ",".join(f"{name}={value}" for name, value in {**merged, **unreadable}.items())


def _magnitude(text: str) -> Decimal:
    """Parse a duration, size or count as a number of seconds, bytes or units."""
    return parse_duration(text) if ":" in text else parse_size(text)


def _known_owner(owner: str) -> str:
    """Return the text, or an empty one for sacct's "no number". Deleted users and groups have only a number."""
    return "" if owner == _NO_NUMBER else owner


def _whole_memory(row: Row) -> str:
    """Return the whole job's ``ReqMem``. Before Slurm 21.08 it was per node (``4000Mn``) or per core (``16Gc``).

    Raises:
        InvalidRecord: the value, or the number of nodes or cores, cannot be read.
    """
    text = row["ReqMem"]
    column = {"n": "NNodes", "c": "NCPUS"}.get(text[-1:])
    if column is None or is_missing(text):
        return text
    try:
        return f"{parse_size(text[:-1]) * parse_number(row.get(column, '')):f}"
    except InvalidRecord as error:
        raise InvalidRecord(f"ReqMem {text!r} times {column}: {error}") from error


_RESERVED: Final = ("site_id", "user_id", "group_id")
_OWNERS: Final = {"user_id": ("User",), "group_id": ("Group",)}
_NO_NODES: Final = frozenset({"", "None assigned"})
_RAN: Final = frozenset({"COMPLETED", "TIMEOUT", "OUT_OF_MEMORY"})
"""States that only a job that ran can have."""


class Converter:
    """Converts runs to records, according to the options of an instance. Reusable for many runs."""

    def __init__(self, config: JobsConfig) -> None:
        self._config = config
        self._reads_steps = config.reads_steps
        self._merge_rows = RowMerger(config).merge
        self._one_prefix = None if CLUSTER in config.record_prefix else config.record_prefix
        self._id_column = config.id_column
        self._requeued_keep_their_id = config.requeued_keep_their_id
        self._filters = _filters(config.job_filter)

    def convert(self, run: Run) -> Outcome:
        """Convert one run. A run with invalid content is quarantined and never raises."""
        try:
            state, start = run.state, _start_of(run)
            reason = self._reason_to_skip(run.allocation, state, start)
            return Skipped(reason) if reason else self._converted(run, state, start)
        except (InvalidRecord, KeyError) as error:
            missing = f"column {error} was not queried when the job was read; retry queries it again"
            raw = raw_of(run, steps_asked=self._reads_steps)
            return Quarantined(run.source_id, raw, missing if isinstance(error, KeyError) else str(error))

    def _reason_to_skip(self, row: Row, state: str, start: str) -> str | None:
        if self._never_started(row, state, start):
            return "never started"
        if state == ELSEWHERE:
            return "revoked: ran on another cluster of the federation"
        passes = all(not allowed.isdisjoint(read(row)) for allowed, read in self._filters)
        return None if passes else "filtered out"

    def _never_started(self, row: Row, state: str, start: str) -> bool:
        """Return True if the run had no nodes, or never began on them.

        A run without a start that must have run all the same is not one of these: the conversion quarantines it.

        For a job that was cancelled while it was pending, sacct prints no nodes and no start. If slurmctld had
        considered the job, sacct prints the time of the cancellation as start and end (seen with Slurm 22.05).
        """
        had_nodes = row["NodeList"] not in _NO_NODES
        if has_no_time(start):
            must_have_run = state in _RAN or not (is_missing(used := row.get(CPU_TIME, "")) or is_zero(used))
            return not had_nodes or (self._reads_steps and not must_have_run)
        return not had_nodes and row["Start"] == row["End"]

    def _converted(self, run: Run, state: str, start_text: str) -> Converted:
        config = self._config
        start, stop = _began_at(run, start_text), run.end
        if stop is None and state in OVER:
            raise InvalidRecord(
                f"the job is {run.allocation['State']}, but sacct reports no end; see sacctmgr show runawayjobs"
            )
        if config.runtime == "elapsed" and stop is not None:
            stop = min(stop, _end_by_elapsed(run.allocation, start))
        row = self._merge_rows(run, None if stop is None else stop - start)
        is_cpu_time_unknown = stop is None or _lacks_cpu_time(run, stop - start)
        never_zero = config.never_zero | (config.cpu_figures if is_cpu_time_unknown else frozenset[str]())
        labels = mapping.build_meta(config.meta, row, _RESERVED)
        owners = mapping.build_owners(_OWNERS, row)
        meta = {**labels.meta, "site_id": (mapping.find_site(config.sites, row),), **owners.meta}
        left_out = [*labels.left_out, *owners.left_out]
        components = mapping.build_components(config.components, row, left_out, never_zero)
        prefix = self._one_prefix or config.prefix_of(row["Cluster"])
        plain = f"{prefix}-{row[self._id_column]}"
        alternate = f"{plain}-{int(start.timestamp())}"
        # If the owner requeues a run after its end, its row gets another state and a later end. The run may already
        # be stored under the plain id, which is therefore the alternative.
        own = state in CONTINUED and not self._requeued_keep_their_id
        record_id, other = (alternate, plain) if own else (plain, alternate)
        record = Record(record_id, start, components, stop, meta)
        return Converted(Produced(record, other, state == REQUEUED, run.source_id), left_out)


def _filters(job_filter: JobFilter) -> Sequence[tuple[frozenset[str], Callable[[Row], Iterable[str]]]]:
    """Return, for each filter in use, the allowed values and a function that reads a row's values."""
    # sacct ignores the case of accounts and partitions, but not that of users and groups (seen with Slurm 22.05).
    filters: Sequence[tuple[Iterable[str], Callable[[Row], Iterable[str]]]] = (
        (job_filter.status, lambda row: (parse_state(row["State"]),)),
        (map(str.lower, job_filter.partition), lambda row: row["Partition"].lower().split(",")),
        (job_filter.user, lambda row: (row["User"], row["UID"])),
        (job_filter.group, lambda row: (row["Group"], row["GID"])),
        (map(str.lower, job_filter.account), lambda row: (row["Account"].lower(),)),
    )
    return [(names, read) for allowed, read in filters if (names := frozenset(allowed))]


def _start_of(run: Run) -> str:
    """Return the start of the run or, if it is unknown, the earliest start of its steps.

    If a run was requeued before the database had its start, its row never gets one (seen with Slurm 22.05), but its
    steps still have theirs.
    """
    own = run.allocation["Start"]
    if not has_no_time(own):
        return own
    known = [step["Start"] for step in run.steps if not has_no_time(step["Start"])]
    return min(known, key=mapping.parse_instant, default=own)


def _began_at(run: Run, text: str) -> datetime:
    """Return the time since which the run held the resources of this row: its start or submission, whichever is later.

    A resized job continues in another row, which keeps the start but has the time of the resizing as its submission
    (seen with Slurm 22.05). In all other rows, the submission precedes the start.
    """
    submitted = run.allocation["Submit"]
    if has_no_time(text):
        raise InvalidRecord(
            f"the job had nodes ({run.allocation['NodeList']}), but sacct reports no start; its steps may have one, "
            "but they are only read for components such as MaxRSS"
        )
    start = mapping.parse_instant(text)
    return start if has_no_time(submitted) else max(start, mapping.parse_instant(submitted))


def _end_by_elapsed(row: Row, start: datetime) -> datetime:
    """Return the end as the job's start plus ``Elapsed``, which excludes suspensions.

    ``Elapsed`` counts from the start of the job, even if the job was resized.
    """
    text, began = row["Elapsed"], start if has_no_time(row["Start"]) else mapping.parse_instant(row["Start"])
    try:
        return max(start, began + timedelta(seconds=float(parse_duration(text))))
    except OverflowError as error:
        raise InvalidRecord(f"Elapsed {text!r} ends after the year 9999") from error


def raw_of(run: Run, *, steps_asked: bool) -> Any:  # Any: JSON for the quarantine
    """Return the run as JSON, with a flag that says whether steps were queried. :func:`run_from_raw` reads it back."""
    steps = [dict(step) for step in run.steps]
    return {"allocation": dict(run.allocation), "steps": steps, "steps_asked": steps_asked or bool(steps)}


def run_from_raw(raw: Any) -> Run:  # Any: JSON from the quarantine
    """Return the quarantined run.

    Raises:
        InvalidRecord: the quarantined value is an unreadable line, not a run.
    """
    try:
        return Run(dict(raw["allocation"]), tuple(dict(step) for step in raw["steps"]))
    except (TypeError, KeyError, ValueError) as error:
        raise InvalidRecord("this is not a job but a line of output that belongs to no job; discard it") from error


def convert(config: JobsConfig, raw: Any) -> Record | Produced | None:  # Any: JSON from the quarantine
    """Convert a quarantined run again with the current configuration; None if it makes no record.

    Raises:
        InvalidRecord: the run still cannot be converted.
    """
    run = run_from_raw(raw)
    # A column that was not queried is not the same as an empty one.
    if missing := [repr(column) for column in config.needed_columns if column not in run.allocation]:
        raise InvalidRecord(
            f"column {', '.join(missing)} was not queried when the job was read; retry queries it again"
        )
    outcome = Converter(config).convert(run)
    if isinstance(outcome, Converted) and config.reads_steps and not raw["steps_asked"]:
        raise InvalidRecord("its steps were not queried when the job was read; retry queries it again")
    return retried(outcome)


def job_of(raw: Any) -> JobChoice | None:  # Any: JSON from the quarantine
    """Return the job of a quarantined run, or None for an unreadable line."""
    try:
        return JobChoice(run_from_raw(raw).allocation[FIRST_COLUMN])
    except (InvalidRecord, KeyError):
        return None
