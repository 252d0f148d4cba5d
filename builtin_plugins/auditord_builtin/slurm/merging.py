"""One row for a run and its steps, in which every text means the job as a whole."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
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
    parse_number,
    parse_size,
    sub_value,
)

_CLOCK: Final = len("HH:MM:SS")
_NO_NUMBER: Final = "4294967294"
_CORES: Final = ("NCPUS", "AllocCPUS")

_A_WHILE: Final = timedelta(minutes=1)
"""A job that runs for so long uses CPU time."""

_GATHERED: Final = ("mem", "vmem", "fs/disk", "pages")
"""Entries of TRESUsageInTot of which one at least is not zero where a step was looked at while it ran."""

_NOT_MEASURED: Final = (
    "no CPU time was measured: TotalCPU is zero, and TRESUsageInTot knows no CPU time, memory or disk; "
    "see JobAcctGatherType in slurm.conf"
)


class RowMerger:
    """Makes one row of a run by the options of an instance; made once for many runs."""

    def __init__(self, config: JobsConfig) -> None:
        self._merged = config.merged_columns
        self._sum_memory = "ReqMem" in config.columns
        self._sums_cpu_time = config.sums_cpu_time
        self._cpu_time_may_be_missing = config.cpu_time_may_be_missing
        self._cores = [column for column in _CORES if column in config.columns and column not in config.merge]

    def merge(self, run: Run, lasted: timedelta | None) -> Row:
        """Return the row of a run that lasted so long (None: it goes on).

        Slurm measures some columns per step and leaves them empty in the allocation's row. Each column has a policy:

        * ``alloc``: the allocation's own value; steps are not looked at.
        * ``max``: the largest of all steps, such as the peak memory of any task.
        * ``sum``: all steps together; lists such as ``TRESUsageInTot`` are added up entry by entry.
        * ``batch``: the value of the batch script, or of the interactive step where there is none.

        With every policy but ``alloc``, a value in the allocation's own row counts if no step has any. A column that
        cannot be read costs those rules their value that look at it.
        """
        merged, faults = dict(run.allocation), dict[str, str]()
        self._take_steps(run, merged, faults)
        for name, number in (("User", "UID"), ("Group", "GID")):
            merged[name] = _known(merged[name]) or _known(merged[number])
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
                merged[CPU_TIME] = ""  # what a running job has used is not known yet
            elif lasted >= _A_WHILE and not is_zero(merged.get("NCPUS", "")) and not _was_looked_at(run):
                faults.setdefault(CPU_TIME, _NOT_MEASURED)
        return PartialRow(merged, faults) if faults else merged

    def _take_steps(self, run: Run, merged: dict[str, str], faults: dict[str, str]) -> None:
        for column, policy in self._merged:
            if column in merged:
                try:
                    merged[column] = self._value(column, run, policy)
                except InvalidRecord as error:
                    faults[column] = f"{column} of the steps: {error}"

    def _value(self, column: str, run: Run, policy: MergePolicy) -> str:
        if column == CPU_TIME and self._sums_cpu_time:
            return _cpu_time(run)
        steps = run.steps if policy != "batch" else _script(run.steps)
        texts = [step[column] for step in steps if not is_missing(step.get(column, ""))]
        return _MERGES[policy](texts) if texts else run.allocation[column]


def _cpu_time(run: Run) -> str:
    """Return the CPU time of all steps, or the allocation's own, which is Slurm's sum of them, if that is not less.

    Of each step the larger of ``TotalCPU`` and what was gathered while it ran counts. Slurm 25.05 prints a TotalCPU of
    zero for many steps, and so for their jobs.
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
    """Tell from the texts alone that TotalCPU is the larger one, as nearly always: reading numbers takes longer."""
    gathered, own = sub_value(step.get(MEASURED, ""), "cpu"), step.get(CPU_TIME, "")
    clock = f"00:{own[:5]}" if own[5:6] == "." else own  # of MM:SS.fff and HH:MM:SS
    if not own and not gathered:
        return True
    return len(clock) == _CLOCK and (not gathered or (len(gathered) == _CLOCK and clock >= gathered))


def _cpu_time_of_step(step: Row) -> Decimal | None:
    texts = (step.get(CPU_TIME, ""), sub_value(step.get(MEASURED, ""), "cpu"))
    return max((parse_duration(text) for text in texts if not is_missing(text)), default=None)


def _was_looked_at(run: Run) -> bool:
    texts = (sub_value(step.get(MEASURED, ""), name) for step in run.steps for name in _GATHERED)
    return any(not is_missing(text) and not is_zero(text) for text in texts)


def _cores_of_steps(column: str, run: Run) -> str | None:
    """Return what is wrong with a job without cores whose step had some: how many it held is not known."""
    for step in run.steps:
        text = step.get(column, "")
        if not is_missing(text) and not is_zero(text):
            return f"it is 0, but step {step[FIRST_COLUMN]} had {text}: how many the job held is not known"
    return None


def _script(steps: Sequence[Row]) -> Sequence[Row]:
    for kind in (".batch", ".interactive"):
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
                unreadable[name] = value  # a rule that looks at this entry says why
    merged = {name: f"{combine(values):f}" for name, values in entries.items() if values}
    return ",".join(f"{name}={value}" for name, value in {**merged, **unreadable}.items())


def _magnitude(text: str) -> Decimal:
    """A text as a plain number in its base unit: seconds, bytes, or what it counts."""
    return parse_duration(text) if ":" in text else parse_size(text)


def _known(owner: str) -> str:
    """A deleted user or group has no name, but a number still; and sacct prints "no number" as one."""
    return "" if owner == _NO_NUMBER else owner


def _whole_memory(row: Row) -> str:
    """``ReqMem`` of the whole job; before Slurm 21.08 it was printed per node (``4000Mn``) or per core (``16Gc``).

    Raises:
        InvalidRecord: the number of nodes or cores is not known.
    """
    text = row["ReqMem"]
    column = {"n": "NNodes", "c": "NCPUS"}.get(text[-1:])
    if column is None or is_missing(text):
        return text
    try:
        return f"{parse_size(text[:-1]) * parse_number(row.get(column, '')):f}"
    except InvalidRecord as error:
        raise InvalidRecord(f"ReqMem {text!r} times {column}: {error}") from error
