"""Convert ads to records, or to the reason why they make none."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from auditord_builtin.htcondor.ads import (
    EXECUTED,
    FIRST_START,
    ID_COLUMNS,
    LAST_VACATE,
    LAST_WALL_CLOCK,
    MAX_HOSTS,
    MEMORY,
    OUTCOME_COLUMNS,
    PARALLEL,
    WALL_CLOCK,
    JobAd,
    job_name,
    parse_ad,
)
from auditord_builtin.htcondor.config import START_KEYS, STOP_KEYS, HTCondorConfig
from auditord_builtin.htcondor.evaluation import Evaluator, literals, read_ad
from auditord_builtin.htcondor.query import CHOSEN, list_columns
from auditord_hookspecs import InvalidRecord, JobChoice, Produced, Quarantined, Record, Window
from auditord_hookspecs.mapping import (
    PartialRow,
    Row,
    build_components,
    build_meta,
    build_owners,
    find_site,
    is_missing,
    is_zero,
    parse_number,
)
from auditord_hookspecs.outcomes import Converted, Outcome, Skipped, unwrap_retry

OWN_LABELS: Final = ("user_id", "group_id")
"""The labels of every record, besides ``site_labels``."""

_ON_SUBMIT_HOST: Final = frozenset({"7", "12"})
"""The universes scheduler (DAGMan) and local, whose jobs run on the schedd's host and use no slot."""

_REMOVED: Final = "3"
_COMPLETED: Final = "4"
_HELD: Final = "5"

_OUT_OF_RESOURCES: Final = "34"
_OF_MEMORY: Final = frozenset({"", "0", "102"})
"""The subcodes of ``JobOutOfResources`` for memory. Another one says that the job used too much disk."""

_HELD_FOR: Final[Mapping[str, str]] = {
    **dict.fromkeys(("", "0", "1", "3", "5", "15", "16", "21", "26", "27"), "cancelled"),  # by a user or a policy
    **dict.fromkeys(("46", "47"), "timeout"),
}
"""Outcomes by ``HoldReasonCode``. All other codes say that the job could not be run."""

_VACATED_FOR: Final[Mapping[str, str]] = {
    **dict.fromkeys(("1004", "1023"), "cancelled"),
    "1005": "requeued",
    **dict.fromkeys(
        ("1000", "1001", "1009", "1010", "1011", "1014", "1015", "1017", "1018", "1019", "1022"), "preempted"
    ),
    **dict.fromkeys(
        ("1002", "1003", "1006", "1007", "1008", "1012", "1013", "1016", "1020", "1021", "1024"), "node_fail"
    ),
}
"""Outcomes of a run that did not end by itself, by ``VacateReasonCode``. A code below 1000 is that of a hold."""

_VACATE_CODE: Final = 4
"""The number of digits in a code that is not that of a hold."""

_SCIENTIFIC: Final = re.compile(r"[+-]?\d{1,30}(\.\d{1,30})?[eE][+-]?\d{1,2}")

_A_WHILE: Final = timedelta(minutes=1)
"""A job that ran for this long has been measured and has used CPU time."""

_NOT_MEASURED: Final = "no CPU time was measured: it is zero, and ResidentSetSize is zero or missing"

_EPOCH_START: Final = "JobCurrentStartDate"

_EPOCH_STOP: Final = "EpochWriteDate"


def find_end(config: HTCondorConfig, row: Row) -> datetime | None:
    """Return the end of the job, or None if it is unknown, for which HTCondor has 0 or no attribute.

    Raises:
        InvalidRecord: the end cannot be read.
    """
    return _first_instant(row, (_EPOCH_STOP, *STOP_KEYS) if config.epochs else STOP_KEYS)


def ends_before(config: HTCondorConfig, ad: JobAd, moment: datetime) -> bool:
    """Return True if the job ended before ``moment``, and False if its end is unknown or unreadable."""
    try:
        end = find_end(config, ad.row)
    except InvalidRecord:
        return False
    return end is not None and end < moment


def ends_within(config: HTCondorConfig, ad: JobAd, window: Window) -> bool:
    """Return True if the job's record ends within the window, or if its end is unknown or unreadable."""
    try:
        _, end = _determine_times(config, ad.row)
    except InvalidRecord:
        return True
    return end is None or window.start <= end < window.stop


def _began_at(config: HTCondorConfig, row: Row) -> datetime | None:
    return _first_instant(row, (_EPOCH_START, *START_KEYS) if config.epochs else START_KEYS)


def _first_instant(row: Row, keys: Sequence[str]) -> datetime | None:
    for key in keys:
        seconds = parse_number(row[key]) if key in row else Decimal(0)
        if seconds:
            try:
                return datetime.fromtimestamp(int(seconds), UTC)
            except (OverflowError, ValueError, OSError) as error:
                raise InvalidRecord(f"{key}: {seconds} is not a time") from error
    return None


def convert_ad(config: HTCondorConfig, ad: JobAd) -> Outcome:
    """Convert one ad. An ad with invalid content is quarantined and never raises."""
    if ad.reason is not None:
        return Quarantined(job_name(ad, epochs=config.epochs), {"ad": ad.text}, ad.reason)
    try:
        return _make_record(config, ad)
    except InvalidRecord as error:
        return _quarantine(config, ad, str(error))
    except Exception as error:  # noqa: BLE001 users' input must not stop other jobs
        return _quarantine(config, ad, f"{type(error).__name__}: {error}")


def _quarantine(config: HTCondorConfig, ad: JobAd, reason: str) -> Quarantined:
    raw = {"row": dict(ad.row), "asked": list_columns(config)}
    return Quarantined(job_name(ad, epochs=config.epochs), raw, reason)


def _read_seconds(row: Row, column: str) -> int:
    """Return the whole seconds in the column; 0 if they are unknown."""
    text = _plain(row.get(column, ""))
    return int(parse_number(text)) if text else 0


def _make_record(config: HTCondorConfig, ad: JobAd) -> Converted | Skipped:
    row = ad.row
    is_chosen = not config.constraint or row.get(CHOSEN.format(config.constraint), "").lower() == "true"
    if not is_chosen or (config.job_status and row.get("JobStatus") not in {str(each) for each in config.job_status}):
        return Skipped("filtered out")
    if row.get("JobUniverse") in _ON_SUBMIT_HOST:
        return Skipped("ran on the submit host (scheduler or local universe)")
    # NumJobStarts stays 0, too, if the shadow or the node was lost too early.
    not_executed = row.get("NumJobStarts") == "0" and EXECUTED not in row and _read_seconds(row, WALL_CLOCK) <= 0
    if _began_at(config, row) is None or not_executed:
        return Skipped("never started")
    start, stop = _determine_times(config, row)
    if start is None or stop is None or "GlobalJobId" not in row:
        missing = "GlobalJobId" if start and stop else " and ".join(STOP_KEYS)
        raise InvalidRecord(f"the ad has no {missing}")
    owners = build_owners({"user_id": config.user_keys, "group_id": config.group_keys}, row)
    reserved, outcome = (*config.site_labels, *OWN_LABELS), find_outcome(row, is_run=config.epochs)
    labels = build_meta(config.meta, row, reserved, outcome)
    site = (find_site(config.sites, row),) if config.site_labels else ()
    plain = f"{config.record_prefix}-{row['GlobalJobId']}"
    left_out = [*owners.left_out, *labels.left_out]
    record = Record(
        record_id=f"{plain}-{int(start.timestamp())}" if config.epochs else plain,
        start_time=start,
        stop_time=stop,
        components=build_components(
            config.components, _amounts(config, row, stop - start), left_out, config.never_zero
        ),
        meta={**labels.meta, **dict.fromkeys(config.site_labels, site), **owners.meta},
    )
    # A job is in the history once, so the same id with another start time is not another run but an error to report.
    return Converted(Produced(record, source_id=job_name(ad, epochs=config.epochs)), left_out)


def find_outcome(row: Row, *, is_run: bool) -> str | None:
    """Return how the job ended, or one run of it; None if HTCondor does not say.

    A job that is removed while it is held ended because of the hold. Its code is in ``LastHoldReasonCode`` (seen with
    HTCondor 23.9). ``VacateReasonCode`` is only present if the last run did not end by itself.
    """
    if row.get("JobStatus") == _REMOVED:
        if row.get("LastJobStatus") != _HELD:
            return "cancelled"
        return _find_outcome_of_hold(row, "Hold" if row.get("HoldReasonCode") else "LastHold")
    if is_run and (code := row.get("VacateReasonCode")):
        is_hold = len(code) < _VACATE_CODE and code != "0"
        return _find_outcome_of_hold(row, "Vacate") if is_hold else _VACATED_FOR.get(code)
    if row.get("ExitBySignal", "").lower() == "true":
        return "failed"
    exit_code = row.get("ExitCode", "")
    return None if not exit_code else "completed" if exit_code == "0" else "failed"


def _find_outcome_of_hold(row: Row, prefix: str) -> str:
    code = row.get(f"{prefix}ReasonCode", "")
    if code == _OUT_OF_RESOURCES and row.get(f"{prefix}ReasonSubCode", "") in _OF_MEMORY:
        return "out_of_memory"
    return _HELD_FOR.get(code, "failed")


def _determine_times(config: HTCondorConfig, row: Row) -> tuple[datetime | None, datetime | None]:
    """Return the start and stop of the record, by ``runtime``.

    The start does not depend on how long the runs took, since it identifies the record's run. The stop is never after
    the job's end.
    """
    start, stop = _began_at(config, row), find_end(config, row)
    if start is None or stop is None or config.epochs or config.runtime == "auditor":
        return start, stop
    # How long the job held a slot in its last run. LastRemoteWallClockTime is 0 if the schedd or the node was lost. If
    # a schedd was restarted and reconnected to the job, it lacks the time before (seen with HTCondor 23.9). The run's
    # completion or eviction is known even then.
    last = stop - start
    if row.get("JobStatus") != _COMPLETED:
        known = [timedelta(seconds=seconds)] if (seconds := _read_seconds(row, LAST_WALL_CLOCK)) > 0 else []
        evicted = _first_instant(row, [LAST_VACATE])
        if evicted is not None and evicted >= start:
            known.append(evicted - start)
        last = min(max(known, default=last), last)
    if config.runtime == "last_run":
        return start, start + last
    begin = min(start, _first_instant(row, [FIRST_START]) or start)
    total = timedelta(seconds=_read_seconds(row, WALL_CLOCK))
    if LAST_WALL_CLOCK in row:  # the sum lacks as much of the last run as this does
        total = max(total, total - timedelta(seconds=_read_seconds(row, LAST_WALL_CLOCK)) + last)
    return begin, min(begin + (total or last), stop)


def _amounts(config: HTCondorConfig, row: Row, lasted: timedelta) -> Row:
    """Return the row with plain numbers, with the resources that the job held, and without unmeasured CPU times.

    If the shadow or the node was lost before the first measurement, the CPU time stays zero, and the memory is unknown
    or zero. A job that only sleeps uses memory.
    """
    # Only columns that are parsed as numbers change, since a user may be called 1e5.
    numeric = {rule.key for rule in config.components} | {
        score.key for rule in config.components for score in rule.scores if score.matches is None
    }
    plain = {**row, **{key: _plain(row[key]) for key in numeric if key is not None and key in row}}
    faults = dict[str, str]()
    for key, request in config.requests.items():
        try:
            plain[key] = _find_amount_held(plain, key, plain.get(request, ""))
        except InvalidRecord as error:
            faults[key] = str(error)
    if lasted >= _A_WHILE and (is_missing(plain.get(MEMORY, "")) or is_zero(plain[MEMORY])):
        faults |= {key: _NOT_MEASURED for key in config.cpu_times if is_zero(plain.get(key, ""))}
    return PartialRow(plain, faults) if faults else plain


def _find_amount_held(row: Row, key: str, requested: str) -> str:
    """Return the amount of a resource that the job held on all its machines.

    A job of the parallel universe has the amount of one machine, or none (seen with HTCondor 23.9). Other jobs have
    none if the schedd was lost while they ran. Then the request tells.
    """
    text = requested or row.get(key, "")
    if row.get("JobUniverse") != PARALLEL or is_missing(text):
        return text
    if is_missing(hosts := row.get(MAX_HOSTS, "")):
        raise InvalidRecord(f"the job is of the parallel universe, but has no {MAX_HOSTS}")
    return f"{parse_number(_plain(text)) * parse_number(hosts):f}"


def _plain(text: str) -> str:
    """Return a number in plain notation: ``1.5E+03`` becomes 1500, and nan and inf become empty."""
    if text.lower().lstrip("+-") in {"nan", "inf", "infinity"}:
        return ""
    return f"{Decimal(text):f}" if _SCIENTIFIC.fullmatch(text) else text


def convert(config: HTCondorConfig, raw: Any) -> Record | Produced | None:  # Any: JSON from the quarantine
    """Convert a quarantined job again with the current configuration; None if it makes no record.

    Raises:
        InvalidRecord: the job still cannot be converted.
    """
    if "row" in raw:
        queried = {MEMORY, *OUTCOME_COLUMNS, *raw["asked"]}  # no rule needs these
        if missing := [repr(column) for column in list_columns(config) if column not in queried]:
            raise InvalidRecord(f"{', '.join(missing)} was not queried when the job was read; retry queries it again")
        ad = JobAd(dict(raw["row"]))
    elif "ad" in raw:
        with Evaluator() as evaluator:
            ad = read_ad(evaluator, str(raw["ad"]), list_columns(config))
    else:
        raise InvalidRecord("this is not a job but output that belongs to no job; discard it")
    return unwrap_retry(convert_ad(config, ad))


def job_of(raw: Any) -> JobChoice | None:  # Any: JSON from the quarantine
    """Return the job of a quarantined ad, without its schedd, or None for unreadable output."""
    try:
        row = raw["row"] if "row" in raw else literals(parse_ad(str(raw.get("ad"))), ID_COLUMNS)
        return JobChoice(f"{row['ClusterId']}.{row['ProcId']}")
    except (InvalidRecord, KeyError):
        return None
