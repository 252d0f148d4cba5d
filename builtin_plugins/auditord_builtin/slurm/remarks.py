"""Find options that select nothing: columns that sacct does not have, and entries of lists that are in no row.

Such an option costs no error where its component is optional, but every record lacks the figure.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Final

from auditord_builtin.slurm.config import ALWAYS_TRACKED, CPU_TIME, JobsConfig
from auditord_builtin.slurm.runs import Run
from auditord_hookspecs import LeftOut
from auditord_hookspecs.mapping import (
    ComponentRule,
    Row,
    holds,
    is_missing,
    remarks_on_fractions,
    remarks_on_sites,
    sub_value,
)
from auditord_hookspecs.wording import counted

_FRACTIONS: Final = frozenset({"AllocTRES[billing]", "ReqTRES[billing]"})
"""Sums of resources times ``TRESBillingWeights``, such as ``billing=2.50``."""

_FEW: Final = 20
"""In fewer rows, an entry can be missing by chance."""

_TRES: Final = ALWAYS_TRACKED | {"gres/gpu", "gres/gpumem", "gres/gpuutil", "gres/mps", "gres/shard"}
"""Names that Slurm defines. A cluster without such a resource lists none, which is no mistake."""

_COLUMNS: Final = (
    *("Account", "AdminComment", "AllocCPUS", "AllocGRES", "AllocNodes", "AllocTRES", "AssocID", "AveCPU"),
    *("AveCPUFreq", "AveDiskRead", "AveDiskWrite", "AvePages", "AveRSS", "AveVMSize", "BlockID", "Cluster"),
    *("Comment", "Constraints", "ConsumedEnergy", "ConsumedEnergyRaw", "Container", "CPUTime", "CPUTimeRAW"),
    *("DBIndex", "DerivedExitCode", "Elapsed", "ElapsedRaw", "Eligible", "End", "ExitCode", "Extra", "FailedNode"),
    *("Flags", "GID", "Group", "JobID", "JobIDRaw", "JobName", "Layout", "Licenses", "MaxDiskRead"),
    *("MaxDiskReadNode", "MaxDiskReadTask", "MaxDiskWrite", "MaxDiskWriteNode", "MaxDiskWriteTask", "MaxPages"),
    *("MaxPagesNode", "MaxPagesTask", "MaxRSS", "MaxRSSNode", "MaxRSSTask", "MaxVMSize", "MaxVMSizeNode"),
    *("MaxVMSizeTask", "McsLabel", "MinCPU", "MinCPUNode", "MinCPUTask", "NCPUS", "NNodes", "NodeList", "NTasks"),
    *("Partition", "Planned", "PlannedCPU", "PlannedCPURAW", "Priority", "QOS", "QOSRAW", "QOSREQ", "Reason"),
    *("ReqCPUFreq", "ReqCPUFreqGov", "ReqCPUFreqMax", "ReqCPUFreqMin", "ReqCPUS", "ReqGRES", "ReqMem", "ReqNodes"),
    *("ReqReservation", "ReqTRES", "Reservation", "ReservationId", "Reserved", "Restarts", "ResvCPU", "ResvCPURAW"),
    *("SegmentSize", "SLUID", "Start", "State", "StdErr", "StdIn", "StdOut", "Submit", "SubmitLine", "Suspended"),
    *("SystemComment", "SystemCPU", "Timelimit", "TimelimitRaw", "TotalCPU", "TRESUsageInAve", "TRESUsageInMax"),
    *("TRESUsageInMaxNode", "TRESUsageInMaxTask", "TRESUsageInMin", "TRESUsageInMinNode", "TRESUsageInMinTask"),
    *("TRESUsageInTot", "TRESUsageOutAve", "TRESUsageOutMax", "TRESUsageOutMaxNode", "TRESUsageOutMaxTask"),
    *("TRESUsageOutMin", "TRESUsageOutMinNode", "TRESUsageOutMinTask", "TRESUsageOutTot", "UID", "User", "UserCPU"),
    *("WCKey", "WCKeyID", "WorkDir"),
)
"""Fields of sacct: all that ``sacct --helpformat`` of version 22.05 lists, and some of other versions.

Other versions may have more, so an unknown column is only remarked on.
"""


def remark(config: JobsConfig) -> list[str]:
    """Return remarks on the options of an instance (``CollectorKind.remarks``)."""
    remarks = [*remarks_on_sites(config.sites), *remarks_on_fractions(config.components, _FRACTIONS)]
    known = {column.lower(): column for column in _COLUMNS}
    for column in dict.fromkeys((*config.columns, *config.merge)):
        if column.lower() not in known:
            likely = get_close_matches(column.lower(), known, n=1)
            hint = f"did you mean {known[likely[0]]}? " if likely else ""
            remarks.append(f"sacct may have no column {column}: {hint}sacct --helpformat lists those of your version")
    for index, rule in enumerate(config.components):
        name = (rule.sub_key or "").partition(":")[0]
        likely = [] if name in _TRES else get_close_matches(name.lower(), _TRES, n=1, cutoff=0.8)
        if likely:
            remarks.append(f"components.{index}: Slurm has no resource {name}: did you mean sub_key: {likely[0]}?")
    if config.sums_cpu_time and not config.cpu_time_may_be_missing:
        remarks.append(
            f"the component of {CPU_TIME} is not optional: where Slurm measured no CPU time, records say 0; set "
            "optional: true to leave it out there"
        )
    return remarks


class SelectionCheck:
    """Finds components whose ``sub_key`` is in none of the lists of a run of the collector.

    An entry such as ``gres/gpu:a100`` is only reported if a job has an entry of the same sort (``gres/…``) that no
    component uses: most jobs use none of these.
    """

    def __init__(self, rules: Sequence[ComponentRule]) -> None:
        named = [(at, rule, rule.sub_key) for at, rule in enumerate(rules) if rule.sub_key]
        self._open = {at: (rule, name) for at, rule, name in named if name not in _TRES}
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
