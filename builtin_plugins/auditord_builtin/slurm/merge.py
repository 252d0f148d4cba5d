"""From the rows of an allocation and its steps to one row.

Slurm measures some columns per step and leaves them empty in the allocation's row. Each column has a policy:

* ``alloc``: the allocation's own value; steps are not looked at.
* ``max``: the largest of all steps, such as the peak memory of any task.
* ``sum``: all steps together; lists such as ``TRESUsageInTot`` are added up entry by entry.
* ``batch``: the value of the batch script, or of the interactive step where there is none.

With every policy but ``alloc``, a value in the allocation's own row counts if no step has any.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Final

from auditord_builtin.slurm.config import JobsConfig, MergePolicy
from auditord_builtin.slurm.runs import FIRST_COLUMN, Run
from auditord_hookspecs import InvalidRecord
from auditord_hookspecs.mapping import Row, is_missing, parse_duration, parse_number, parse_size

_DEFAULTS: Final[Mapping[str, MergePolicy]] = {
    **dict.fromkeys(("MaxRSS", "MaxVMSize", "MaxPages", "MaxDiskRead", "MaxDiskWrite"), "max"),
    **dict.fromkeys(("AveRSS", "AveVMSize", "TRESUsageInMax", "TRESUsageOutMax", "TRESUsageInAve"), "max"),
    **dict.fromkeys(("TRESUsageInTot", "TRESUsageOutTot"), "sum"),
    # Steps that run at the same time measure the same node, so a sum would count its energy twice. The extern step,
    # where there is one, spans the whole job. AllocTRES[energy] is better where Slurm fills it.
    **dict.fromkeys(("ConsumedEnergy", "ConsumedEnergyRaw"), "max"),
    **dict.fromkeys(("AveCPU", "MinCPU", "AveDiskRead", "AveDiskWrite", "AvePages", "NTasks", "AveCPUFreq"), "batch"),
}
_FOR_REQMEM: Final = ("NNodes", "NCPUS")
_NO_NUMBER: Final = "4294967294"


def policy_of(column: str, chosen: Mapping[str, MergePolicy]) -> MergePolicy:
    """The way in which a column of several rows becomes one value."""
    return chosen.get(column) or _DEFAULTS.get(column, "alloc")


def reads_steps(config: JobsConfig) -> bool:
    """True if steps are among the rows of every run; printing them is several times the output."""
    return config.all_steps or any(policy_of(column, config.merge) != "alloc" for column in config.columns)


def extra_columns(columns: Iterable[str]) -> Sequence[str]:
    """Columns that others cannot be understood without."""
    return _FOR_REQMEM if "ReqMem" in columns else ()


def merge_rows(run: Run, chosen: Mapping[str, MergePolicy]) -> Row:
    """One row for a run, in which every text means the job as a whole.

    Raises:
        InvalidRecord: values of several steps cannot be compared or added; the message names the column.
    """
    merged = dict(run.allocation)
    for column in run.allocation:
        if column in _DEFAULTS or column in chosen:  # few are, and this is done for every job
            merged[column] = _merged(column, run, policy_of(column, chosen))
    for name, number in (("User", "UID"), ("Group", "GID")):
        merged[name] = _known(merged[name]) or _known(merged[number])
    if "ReqMem" in merged:
        merged["ReqMem"] = _whole_memory(merged)
    return merged


def _merged(column: str, run: Run, policy: MergePolicy) -> str:
    own = run.allocation[column]
    if policy == "alloc":
        return own
    steps = run.steps if policy != "batch" else _script(run.steps)
    texts = [step[column] for step in steps if not is_missing(step.get(column, ""))]
    try:
        return _MERGES[policy](texts) if texts else own
    except InvalidRecord as error:
        raise InvalidRecord(f"{column} of the steps: {error}") from error


def _script(steps: Sequence[Row]) -> Sequence[Row]:
    for kind in (".batch", ".interactive"):
        found = [step for step in steps if step[FIRST_COLUMN].endswith(kind)]
        if found:
            return found[:1]
    return ()


def _largest(texts: Sequence[str]) -> str:
    if any("=" in text for text in texts):
        return _entry_by_entry(texts, max)
    return max(texts, key=_magnitude)


def _total(texts: Sequence[str]) -> str:
    if any("=" in text for text in texts):
        return _entry_by_entry(texts, sum)
    return f"{sum(map(_magnitude, texts)):f}"


_MERGES: Final[Mapping[MergePolicy, Callable[[Sequence[str]], str]]] = {
    "max": _largest,
    "sum": _total,
    "batch": "".join,
}


def _entry_by_entry(texts: Sequence[str], combine: Callable[[list[Decimal]], Decimal | int]) -> str:
    entries: dict[str, list[Decimal]] = {}
    for text in texts:
        for name, _, value in (part.partition("=") for part in text.split(",")):
            if not is_missing(value):
                entries.setdefault(name, []).append(_magnitude(value))
    return ",".join(f"{name}={combine(values):f}" for name, values in entries.items())


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
