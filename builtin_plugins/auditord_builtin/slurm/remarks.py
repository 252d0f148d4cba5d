"""Find options that select nothing, such as columns that sacct does not have.

Such an option costs no error where its component is optional, but every record lacks the figure.
"""

from difflib import get_close_matches
from typing import Final

from auditord_builtin.slurm.config import CPU_TIME, DEFINED_TRES, JobsConfig
from auditord_hookspecs.mapping import remarks_on_fractions, remarks_on_sites

_FRACTIONS: Final = frozenset({"AllocTRES[billing]", "ReqTRES[billing]"})
"""Sums of resources times ``TRESBillingWeights``, such as ``billing=2.50``."""

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
        likely = [] if name in DEFINED_TRES else get_close_matches(name.lower(), DEFINED_TRES, n=1, cutoff=0.8)
        if likely:
            remarks.append(f"components.{index}: Slurm has no resource {name}: did you mean sub_key: {likely[0]}?")
    if config.sums_cpu_time and not config.cpu_time_may_be_missing:
        remarks.append(
            f"the component of {CPU_TIME} is not optional: where Slurm measured no CPU time, records say 0; set "
            "optional: true to leave it out there"
        )
    return remarks
