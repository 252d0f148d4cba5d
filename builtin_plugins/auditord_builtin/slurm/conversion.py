"""Convert a job's run to a record, or to the reason why it makes none.

The rows of a run, one per step, are first merged into one, with the CPU time and energy that Slurm measured per step.
"""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal
from math import inf
from typing import Any, Final

from auditord_builtin.slurm.config import (
    CLUSTER,
    CPU_TIME,
    DEFINED_TRES,
    MEASURED,
    JobFilter,
    JobsConfig,
    MergePolicy,
)
from auditord_builtin.slurm.runs import (
    CONTINUED,
    ELSEWHERE,
    FIRST_COLUMN,
    OUTCOMES,
    OVER,
    REQUEUED,
    Run,
    parse_state,
)
from auditord_hookspecs import InvalidRecord, JobChoice, LeftOut, Produced, Quarantined, Record, mapping
from auditord_hookspecs.mapping import (
    ComponentRule,
    PartialRow,
    Row,
    holds,
    is_missing,
    is_zero,
    parse_duration,
    parse_energy,
    parse_number,
    parse_size,
    parse_time,
    sub_value,
)
from auditord_hookspecs.outcomes import Converted, Outcome, Skipped, unwrap_retry
from auditord_hookspecs.wording import counted

OWN_LABELS: Final = ("site_id", "user_id", "group_id")

_OWNERS: Final = {"user_id": ("User",), "group_id": ("Group",)}

_NO_NODES: Final = frozenset({"", "None assigned"})

_RAN: Final = frozenset({"COMPLETED", "TIMEOUT", "OUT_OF_MEMORY"})
"""States that only a job that ran can have."""

_FEW: Final = 20
"""In fewer rows, an entry can be missing by chance."""

_NO_NUMBER: Final = "4294967294"

_CORES: Final = ("NCPUS", "AllocCPUS")

_NOT_MEASURED: Final = (
    "no CPU time was measured: TotalCPU is zero, and TRESUsageInTot has no CPU time, memory or disk; "
    "see JobAcctGatherType in slurm.conf"
)

_SCRIPTS: Final = (".batch", ".interactive")

_CLOCK: Final = len("HH:MM:SS")

_A_WHILE: Final = timedelta(minutes=1)
"""A job that ran for this long has used CPU time, so zero means that none was measured."""

_GATHERED: Final = ("mem", "vmem", "fs/disk", "pages")
"""Entries of TRESUsageInTot. If a step was measured while it ran, at least one of them is not zero."""


class Converter:
    """Converts runs to records, according to the options of an instance. Reusable for many runs.

    Attributes:
        check_selection: finds components that none of the runs has, although they are configured.
    """

    def __init__(self, config: JobsConfig) -> None:
        self._config = config
        self._reads_steps = config.reads_steps
        self._one_prefix = None if CLUSTER in config.record_prefix else config.record_prefix
        self._id_column = config.id_column
        self._requeued_keep_their_id = config.requeued_keep_their_id
        self._filters = _filters(config.job_filter)
        self.check_selection = SelectionCheck(config.components).look_at
        self._merge_rows = RowMerger(config).merge

    def convert(self, run: Run) -> Outcome:
        """Convert one run. A run with invalid content is quarantined and never raises.

        A run that had no nodes, or never began on them, is skipped. For a job that was cancelled while it was pending,
        sacct prints no nodes and no start. If slurmctld had considered the job, sacct prints the time of the
        cancellation as start and end (seen with Slurm 22.05).
        """
        row = run.allocation
        try:
            state, source_id, start = run.state, run.source_id, parse_time(row["Start"])
            if start is None:
                # If a run was requeued before the database had its start, its row never gets one (seen with Slurm
                # 22.05), but its steps still have theirs.
                start = min(filter(None, (parse_time(step["Start"]) for step in run.steps)), default=None)
            began = row["NodeList"] not in _NO_NODES
            if start is not None:
                began = began or row["Start"] != row["End"]
            elif self._reads_steps and began:  # a run that must have run all the same is quarantined
                began = state in _RAN or not (is_missing(used := row.get(CPU_TIME, "")) or is_zero(used))
            if not began:
                return Skipped("never started")
            if state == ELSEWHERE:
                return Skipped("revoked: ran on another cluster of the federation")
            if any(allowed.isdisjoint(read(row)) for allowed, read in self._filters):
                return Skipped("filtered out")
            return self._make_record(run, state, source_id, start)
        except (InvalidRecord, KeyError) as error:
            missing = f"column {error} was not queried when the job was read; retry queries it again"
            raw = raw_of(run, steps_asked=self._reads_steps)
            return Quarantined(run.source_id, raw, missing if isinstance(error, KeyError) else str(error))

    def _make_record(self, run: Run, state: str, source_id: str, start: datetime | None) -> Converted:
        config, row = self._config, run.allocation
        submitted, stop = parse_time(row["Submit"]), parse_time(row["End"])
        if start is None:
            raise InvalidRecord(
                f"the job had nodes ({row['NodeList']}), but sacct reports no start; its steps may have one, "
                "but they are only read for components such as MaxRSS"
            )
        # A resized job continues in another row, which keeps the start but has the time of the resizing as its
        # submission (seen with Slurm 22.05). In all other rows, the submission precedes the start.
        start = start if submitted is None else max(start, submitted)
        if stop is None and state in OVER:
            raise InvalidRecord(f"the job is {row['State']}, but sacct reports no end; see sacctmgr show runawayjobs")
        if config.runtime == "elapsed" and stop is not None:
            stop = min(stop, _end_by_elapsed(row, start))
        measured = None if stop is None else not lacks_cpu_time(run, stop - start)
        merged = self._merge_rows(run, measured=measured)
        never_zero = config.never_zero if measured else config.never_zero | config.cpu_figures
        labels = mapping.build_meta(config.meta, merged, OWN_LABELS, None if stop is None else OUTCOMES.get(state))
        owners = mapping.build_owners(_OWNERS, merged)
        meta = {**labels.meta, "site_id": (mapping.find_site(config.sites, merged),), **owners.meta}
        left_out = [*labels.left_out, *owners.left_out]
        components = mapping.build_components(config.components, merged, left_out, never_zero)
        prefix = self._one_prefix or config.prefix_of(row["Cluster"])
        plain = f"{prefix}-{row[self._id_column]}"
        alternate = f"{plain}-{int(start.timestamp())}"
        # If the owner requeues a run after its end, its row gets another state and a later end. The run may already
        # be stored under the plain id, which is therefore the alternative.
        own = state in CONTINUED and not self._requeued_keep_their_id
        record_id, other = (alternate, plain) if own else (plain, alternate)
        record = Record(record_id, start, components, stop, meta)
        return Converted(Produced(record, other, state == REQUEUED, source_id), left_out)


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


def _end_by_elapsed(row: Row, start: datetime) -> datetime:
    """Return the end as the job's start plus ``Elapsed``, which excludes suspensions.

    ``Elapsed`` counts from the start of the job, even if the job was resized.
    """
    text, began = row["Elapsed"], parse_time(row["Start"]) or start
    try:
        return max(start, began + timedelta(seconds=float(parse_duration(text))))
    except OverflowError as error:
        raise InvalidRecord(f"Elapsed {text!r} ends after the year 9999") from error


class SelectionCheck:
    """Finds components whose ``sub_key`` is in none of the lists of a run of the collector.

    An entry such as ``gres/gpu:a100`` is only reported if a job has an entry of the same sort (``gres/…``) that no
    component uses: most jobs use none of these.
    """

    def __init__(self, rules: Sequence[ComponentRule]) -> None:
        named = [(at, rule, rule.sub_key) for at, rule in enumerate(rules) if rule.sub_key]
        self._open = {at: (rule, name) for at, rule, name in named if name not in DEFINED_TRES}
        self._used = {rule.sub_key for rule in rules}
        self._rows = Counter[int]()
        self._seen: defaultdict[int, set[str]] = defaultdict(set)

    def look_at(self, runs: Iterable[Run]) -> Iterator[LeftOut]:
        """Yield the components that none of many runs so far has."""
        if not self._open:
            return
        for run in runs:
            for at, (rule, wanted) in [*self._open.items()]:
                rows: Iterable[Row] = (run.allocation, *run.steps)
                texts = [text for row in rows if not is_missing(text := row.get(rule.key or "", ""))]
                if any(sub_value(text, wanted) for text in texts):
                    del self._open[at]
                elif texts and holds(rule.only_if, run.allocation):
                    self._rows[at] += 1
                    self._seen[at].update(part.partition("=")[0] for text in texts for part in text.split(","))
        for at, (rule, wanted) in self._open.items():
            sort, slash, _ = wanted.partition("/")
            likely = not slash or any(name.startswith(f"{sort}/") for name in self._seen[at] - self._used)
            if self._rows[at] >= _FEW and likely:
                found = f"{rule.key} has {', '.join(sorted(self._seen[at]))}"
                text = f"sub_key {wanted!r} is in none of {counted(self._rows[at], 'row')}; {found}"
                yield LeftOut(rule.name, f"components.{at}: {text}")


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
    return unwrap_retry(outcome)


def job_of(raw: Any) -> JobChoice | None:  # Any: JSON from the quarantine
    """Return the job of a quarantined run, or None for an unreadable line."""
    try:
        return JobChoice(run_from_raw(raw).allocation[FIRST_COLUMN])
    except (InvalidRecord, KeyError):
        return None


class RowMerger:
    """Merges the rows of a run into one, according to the options of an instance. Reusable for many runs."""

    def __init__(self, config: JobsConfig) -> None:
        self._merged = config.merged_columns
        self._sum_memory = "ReqMem" in config.columns
        self._sums_cpu_time = config.sums_cpu_time
        self._cpu_time_may_be_missing = config.cpu_time_may_be_missing
        self._cores = [column for column in _CORES if column in config.columns and column not in config.merge]

    def merge(self, run: Run, *, measured: bool | None) -> Row:
        """Return one row for a run.

        ``measured`` is False if its CPU time was not measured (:func:`lacks_cpu_time`), and None if it is running.

        Slurm measures some columns per step and leaves them empty in the allocation's row. Each column has a policy:

        * ``alloc``: the allocation's value; steps are ignored.
        * ``max``: the largest value of all steps, such as the peak memory of any task.
        * ``sum``: the sum over all steps; lists such as ``TRESUsageInTot`` are summed entry by entry.
        * ``batch``: the value of the batch script or, if there is none, of the interactive step.
        * ``energy``: the energy of the nodes, each counted once; see :func:`count_energy`.

        With every policy except ``alloc``, the allocation's value is the fallback if no step has one. If a column
        cannot be read, the rules that use it have no value.
        """
        merged, faults = dict(run.allocation), dict[str, str]()
        self._merge_steps(run, merged, faults)
        for name, number in (("User", "UID"), ("Group", "GID")):
            merged[name] = _drop_no_number(merged[name]) or _drop_no_number(merged[number])
        if self._sum_memory:
            try:
                merged["ReqMem"] = _whole_memory(merged)
            except InvalidRecord as error:
                faults["ReqMem"] = str(error)
        for column in self._cores:
            if not is_zero(merged[column]):
                continue
            had = ((step, step.get(column, "")) for step in run.steps)
            step, text = next((each for each in had if not is_missing(each[1]) and not is_zero(each[1])), (None, ""))
            if step is not None:
                step_id = step[FIRST_COLUMN]
                faults[column] = f"it is 0, but step {step_id} had {text}: it is not known how many the job held"
        if self._cpu_time_may_be_missing and is_zero(merged[CPU_TIME]):
            if measured is None:
                merged[CPU_TIME] = ""  # the usage of a running job is not known yet
            elif not measured:
                faults.setdefault(CPU_TIME, _NOT_MEASURED)
        return PartialRow(merged, faults) if faults else merged

    def _merge_steps(self, run: Run, merged: dict[str, str], faults: dict[str, str]) -> None:
        for column, policy in self._merged if run.steps else ():
            if column not in merged:
                continue
            try:
                if column == CPU_TIME and self._sums_cpu_time:
                    merged[column] = sum_up_cpu_time(run)
                    continue
                if policy == "energy":
                    joules = count_energy(run, column)
                    merged[column] = run.allocation[column] if joules is None else f"{joules:f}"
                    continue
                steps = run.steps
                if policy == "batch":
                    steps = [step for kind in _SCRIPTS for step in steps if step[FIRST_COLUMN].endswith(kind)][:1]
                texts = [step[column] for step in steps if not is_missing(step.get(column, ""))]
                merged[column] = _MERGES[policy](texts) if texts else run.allocation[column]
                if column == MEASURED and policy == "sum" and "energy=" in merged[column]:
                    with suppress(InvalidRecord):  # the rule that uses this entry reports why
                        joules = count_energy(run, column, "energy")
                        merged[column] += "" if joules is None else f",energy={joules:f}"  # the last entry counts
            except InvalidRecord as error:
                faults[column] = f"{column} of the steps: {error}"


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


def _drop_no_number(owner: str) -> str:
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


def sum_up_cpu_time(run: Run) -> str:
    """Return the CPU time of all steps, or the allocation's value if that is not less.

    Slurm sums up the allocation's value from its steps. Since Slurm 25.05 prints a TotalCPU of zero for many steps, and
    so for their jobs, each step counts with the larger of ``TotalCPU`` and the value measured while it ran.
    """
    own = run.allocation[CPU_TIME]
    if not is_missing(own) and not is_zero(own) and all(map(_has_no_more_gathered, run.steps)):
        return own
    total, is_known = Decimal(0), False
    for step in run.steps:
        texts = (step.get(CPU_TIME, ""), sub_value(step.get(MEASURED, ""), "cpu"))
        if known := [parse_duration(text) for text in texts if not is_missing(text)]:
            total, is_known = total + max(known), True
    if is_missing(own):
        return f"{total:f}" if is_known else own
    return own if parse_duration(own) >= total else f"{total:f}"


def _has_no_more_gathered(step: Row) -> bool:
    """Compare the texts to see that TotalCPU is not less. This is the usual case, and parsing would take longer."""
    gathered, own = sub_value(step.get(MEASURED, ""), "cpu"), step.get(CPU_TIME, "")
    clock = f"00:{own[:5]}" if own[5:6] == "." else own  # MM:SS.fff or HH:MM:SS
    if not own and not gathered:
        return True
    return len(clock) == _CLOCK and (not gathered or (len(gathered) == _CLOCK and clock >= gathered))


def lacks_cpu_time(run: Run, lasted: timedelta) -> bool:
    """Return whether a CPU time of zero cannot be true, since a run that took this long was not measured."""
    if lasted < _A_WHILE or is_zero(run.allocation.get("NCPUS", "")):
        return False
    texts = (sub_value(step.get(MEASURED, ""), name) for step in run.steps for name in _GATHERED)
    return all(is_missing(text) or is_zero(text) for text in texts)


def count_energy(run: Run, column: str, entry: str | None = None) -> Decimal | None:
    """Return the joules of the nodes during the job, by a column or an entry of its list; None if no step has any.

    Each step has the energy of its whole nodes. So the energy of concurrent steps is the same energy, and the job's own
    value, which is the sum over its steps, can be too large. The extern step spans the job on all its nodes. Without
    it, the largest sum of steps that do not overlap counts: for one step after the other, the sum of all.
    """
    texts = [(step, step.get(column, "")) for step in run.steps]
    if entry is not None:
        texts = [(step, sub_value(text, entry)) for step, text in texts]
    known = [(step, parse_energy(text)) for step, text in texts if not is_missing(text)]
    if not known:
        return None
    largest = max(joules for _, joules in known)
    if any(joules and step[FIRST_COLUMN].endswith(".extern") for step, joules in known):
        return largest
    measured = [(step, joules) for step, joules in known if not step[FIRST_COLUMN].endswith(_SCRIPTS)]
    single = all(re.fullmatch(r"[^\[,]+", step.get("NodeList", "")) for step, _ in measured)
    by_nodes: dict[str, list[tuple[float, float, Decimal]]] = {}
    for step, joules in measured:
        start, end = parse_time(step.get("Start", "")), parse_time(step.get("End", ""))
        period = (-inf if start is None else start.timestamp(), inf if end is None else end.timestamp())
        by_nodes.setdefault(step["NodeList"] if single else "", []).append((*period, joules))
    return max(largest, sum(map(_find_largest_sum, by_nodes.values()), Decimal(0)))


def _find_largest_sum(steps: list[tuple[float, float, Decimal]]) -> Decimal:
    """Return the largest sum of values of steps, given as start, end and value, that do not overlap."""
    ends, sums = [-inf], [Decimal(0)]
    for start, end, value in sorted(steps, key=lambda step: step[1]):
        sums.append(max(sums[-1], sums[bisect_right(ends, start) - 1] + value))
        ends.append(end)
    return sums[-1]
