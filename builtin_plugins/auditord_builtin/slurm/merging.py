"""Merge the rows of a run, one per step, into one row."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from typing import Final

from auditord_builtin.slurm.config import CPU_TIME, MEASURED, JobsConfig, MergePolicy
from auditord_builtin.slurm.measurements import SCRIPTS, count_energy, lacks_cpu_time, sum_up_cpu_time
from auditord_builtin.slurm.runs import (
    FIRST_COLUMN,
    Run,
)
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

_NO_NUMBER: Final = "4294967294"

_CORES: Final = ("NCPUS", "AllocCPUS")

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
            if lasted is None:
                merged[CPU_TIME] = ""  # the usage of a running job is not known yet
            elif lacks_cpu_time(run, lasted):
                faults.setdefault(CPU_TIME, _NOT_MEASURED)
        return PartialRow(merged, faults) if faults else merged

    def _merge_steps(self, run: Run, merged: dict[str, str], faults: dict[str, str]) -> None:
        for column, policy in self._merged:
            if column in merged:
                try:
                    merged[column] = self._merge_column(column, run, policy)
                except InvalidRecord as error:
                    faults[column] = f"{column} of the steps: {error}"

    def _merge_column(self, column: str, run: Run, policy: MergePolicy) -> str:
        if column == CPU_TIME and self._sums_cpu_time:
            return sum_up_cpu_time(run)
        if policy == "energy":
            joules = count_energy(run, lambda step: step.get(column, ""))
            return run.allocation[column] if joules is None else f"{joules:f}"
        steps = run.steps if policy != "batch" else _find_script_step(run.steps)
        texts = [step[column] for step in steps if not is_missing(step.get(column, ""))]
        merged = _MERGES[policy](texts) if texts else run.allocation[column]
        if column == MEASURED and policy == "sum" and "energy=" in merged:
            with suppress(InvalidRecord):  # the rule that uses this entry reports why
                joules = count_energy(run, lambda step: sub_value(step.get(column, ""), "energy"))
                merged += "" if joules is None else f",energy={joules:f}"  # the last entry of a name counts
        return merged


def _find_script_step(steps: Sequence[Row]) -> Sequence[Row]:
    for kind in SCRIPTS:
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
