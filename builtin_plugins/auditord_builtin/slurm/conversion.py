"""From one run of a job to a record, or to the reason why there is none."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from auditord_builtin.slurm.config import CLUSTER, JobFilter, JobsConfig
from auditord_builtin.slurm.merging import RowMerger
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
from auditord_hookspecs.mapping import Row, parse_duration
from auditord_hookspecs.outcomes import Converted, Outcome, Skipped, retried

_RESERVED: Final = ("site_id", "user_id", "group_id")
_OWNERS: Final = {"user_id": ("User",), "group_id": ("Group",)}
_NO_NODES: Final = frozenset({"", "None assigned"})


class Converter:
    """Makes records of runs by the options of an instance; made once for many runs."""

    def __init__(self, config: JobsConfig) -> None:
        self._config = config
        self._reads_steps = config.reads_steps
        self._merge_rows = RowMerger(config).merge
        self._one_prefix = None if CLUSTER in config.record_prefix else config.record_prefix
        self._id_column = config.id_column
        self._requeued_keep_their_id = config.requeued_keep_their_id
        self._filters = _filters(config.job_filter)

    def convert(self, run: Run) -> Outcome:
        """Classify one run; never raises for what the run holds."""
        try:
            state, start = run.state, _start_of(run)
            reason = self._reason_to_skip(run.allocation, state, start)
            return Skipped(reason) if reason else self._converted(run, state, start)
        except (InvalidRecord, KeyError) as error:
            missing = f"column {error} was not asked of sacct then; retry asks for this job again"
            raw = raw_of(run, steps_asked=self._reads_steps)
            return Quarantined(run.source_id, raw, missing if isinstance(error, KeyError) else str(error))

    def _reason_to_skip(self, row: Row, state: str, start: str) -> str | None:
        if self._never_started(row, start):
            return "never started"
        if state == ELSEWHERE:
            return "revoked: ran on another cluster of the federation"
        passes = all(not allowed.isdisjoint(read(row)) for allowed, read in self._filters)
        return None if passes else "filtered out"

    def _never_started(self, row: Row, start: str) -> bool:
        """True if the run had no nodes, or nothing ever began on them.

        Of a job that was cancelled while it waited sacct either prints no start, or, if slurmctld had looked at it
        before, the moment of cancelling as start and as end (seen with Slurm 22.05); it has no nodes then.
        """
        had_nodes = row["NodeList"] not in _NO_NODES
        if has_no_time(start):
            return not had_nodes or self._reads_steps
        return not had_nodes and row["Start"] == row["End"]

    def _converted(self, run: Run, state: str, start_text: str) -> Converted:
        config = self._config
        start, stop = _began_at(run, start_text), run.end
        if stop is None and state in OVER:
            raise InvalidRecord(
                f"the job is {run.allocation['State']}, but sacct names no end; see sacctmgr show runawayjobs"
            )
        if config.runtime == "elapsed" and stop is not None:
            stop = min(stop, _end_by_elapsed(run.allocation, start))
        row = self._merge_rows(run, None if stop is None else stop - start)
        labels = mapping.build_meta(config.meta, row, _RESERVED)
        owners = mapping.build_owners(_OWNERS, row)
        meta = {**labels.meta, "site_id": (mapping.find_site(config.sites, row),), **owners.meta}
        left_out = [*labels.left_out, *owners.left_out]
        components = mapping.build_components(config.components, row, left_out, config.never_zero)
        prefix = self._one_prefix or config.prefix_of(row["Cluster"])
        plain = f"{prefix}-{row[self._id_column]}"
        alternate = f"{plain}-{int(start.timestamp())}"
        # The row of a run whose owner requeues it after its end gets another state and a later end: the run may be
        # stored already, under the plain id.
        own = state in CONTINUED and not self._requeued_keep_their_id
        record_id, other = (alternate, plain) if own else (plain, alternate)
        record = Record(record_id, start, components, stop, meta)
        return Converted(Produced(record, other, state == REQUEUED, run.source_id), left_out)


def _filters(job_filter: JobFilter) -> Sequence[tuple[frozenset[str], Callable[[Row], Iterable[str]]]]:
    """The values that are allowed, and the reader of a row's own; only of what the filter says something about."""
    filters: Sequence[tuple[Sequence[str], Callable[[Row], Iterable[str]]]] = (
        (job_filter.status, lambda row: (parse_state(row["State"]),)),
        (job_filter.partition, lambda row: row["Partition"].split(",")),
        (job_filter.user, lambda row: (row["User"], row["UID"])),
        (job_filter.group, lambda row: (row["Group"], row["GID"])),
        (job_filter.account, lambda row: (row["Account"],)),
    )
    return [(frozenset(allowed), read) for allowed, read in filters if allowed]


def _start_of(run: Run) -> str:
    """The beginning of the run, as sacct prints it.

    A run that was requeued before the database had heard of its start keeps none there (seen with Slurm 22.05; it may
    have been long, if the database was away), but its steps have theirs.
    """
    own = run.allocation["Start"]
    if not has_no_time(own):
        return own
    known = [step["Start"] for step in run.steps if not has_no_time(step["Start"])]
    return min(known, key=mapping.parse_instant, default=own)


def _began_at(run: Run, text: str) -> datetime:
    """The instant at which the run began to hold what this row says.

    A job that is resized goes on in another row, which keeps the start; its time of submission is that of the resizing
    (seen with Slurm 22.05). Of every other row, the submission is before the start.
    """
    submitted = run.allocation.get("Submit", "")  # rows of earlier versions have no Submit
    if has_no_time(text):
        raise InvalidRecord(
            f"the job had nodes ({run.allocation['NodeList']}), but sacct names no start, and its steps, which may, "
            "are only read if a component is made of them, such as MaxRSS"
        )
    start = mapping.parse_instant(text)
    return start if has_no_time(submitted) else max(start, mapping.parse_instant(submitted))


def _end_by_elapsed(row: Row, start: datetime) -> datetime:
    """The end of a run that was never suspended, but ran for as long.

    ``Elapsed`` begins with the job, also of a resized one.
    """
    text, began = row["Elapsed"], start if has_no_time(row["Start"]) else mapping.parse_instant(row["Start"])
    try:
        return max(start, began + timedelta(seconds=float(parse_duration(text))))
    except OverflowError as error:
        raise InvalidRecord(f"Elapsed {text!r} ends after the year 9999") from error


def raw_of(run: Run, *, steps_asked: bool) -> Any:  # Any: JSON for the quarantine
    """The rows of a run as JSON, and whether it has all its steps; :func:`run_from_raw` reads it back."""
    steps = [dict(step) for step in run.steps]
    return {"allocation": dict(run.allocation), "steps": steps, "steps_asked": steps_asked or bool(steps)}


def run_from_raw(raw: Any) -> Run:  # Any: JSON from the quarantine
    """The run that was quarantined.

    Raises:
        InvalidRecord: the raw value is no run but a line that was never readable.
    """
    try:
        return Run(dict(raw["allocation"]), tuple(dict(step) for step in raw["steps"]))
    except (TypeError, KeyError, ValueError) as error:
        raise InvalidRecord("this is no job but a line of output that belongs to none; discard it") from error


def convert(config: JobsConfig, raw: Any) -> Record | Produced | None:  # Any: JSON from the quarantine
    """Try a quarantined run again under today's configuration; None if it makes no record now.

    Raises:
        InvalidRecord: what is still wrong.
    """
    run = run_from_raw(raw)
    if missing := [
        repr(column) for column in config.needed_columns if column not in run.allocation
    ]:  # not the same as empty
        raise InvalidRecord(f"column {', '.join(missing)} was not asked of sacct then; retry asks for this job again")
    outcome = Converter(config).convert(run)
    # Earlier versions did not note whether steps were asked for.
    if isinstance(outcome, Converted) and config.reads_steps and not raw.get("steps_asked", bool(run.steps)):
        raise InvalidRecord("its steps were not asked of sacct then; retry asks for this job again")
    return retried(outcome)


def job_of(raw: Any) -> JobChoice | None:  # Any: JSON from the quarantine
    """The job of a quarantined run; None for a line of output that belongs to none."""
    try:
        return JobChoice(run_from_raw(raw).allocation[FIRST_COLUMN])
    except (InvalidRecord, KeyError):
        return None
