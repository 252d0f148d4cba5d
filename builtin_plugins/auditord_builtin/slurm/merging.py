"""Merge the rows of a run, one per step, into one row, with the CPU time and energy that Slurm measured per step."""

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from math import inf
from typing import Final

from auditord_builtin.slurm.config import CPU_TIME, MEASURED, JobsConfig, MergePolicy
from auditord_builtin.slurm.runs import FIRST_COLUMN, Run
from auditord_hookspecs import InvalidRecord
from auditord_hookspecs.mapping import (
    PartialRow,
    Row,
    is_missing,
    is_zero,
    parse_duration,
    parse_energy,
    parse_number,
    parse_size,
    parse_time,
    sub_value,
)

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
