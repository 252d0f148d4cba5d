"""Convert a job's run to a record, or to the reason why it makes none."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from auditord_builtin.slurm.config import CLUSTER, CPU_TIME, DEFINED_TRES, JobFilter, JobsConfig
from auditord_builtin.slurm.merging import RowMerger, lacks_cpu_time
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
    Row,
    holds,
    is_missing,
    is_zero,
    parse_duration,
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
