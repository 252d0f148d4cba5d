"""From one ad of the history to a record, or to the reason why there is none."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from auditord_builtin.htcondor.ads import parse_ad, row_of_ad
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.htcondor.identity import identity
from auditord_builtin.htcondor.query import CHOSEN, wanted_columns
from auditord_hookspecs import InvalidRecord, Quarantined, Record
from auditord_hookspecs.mapping import Row, build_components, build_meta, build_owners, find_site, parse_number

_ON_SUBMIT_HOST: Final = frozenset({"7", "12"})
"""Universes scheduler (DAGMan) and local: such a job runs beside the schedd and holds no slot."""

_SCIENTIFIC: Final = re.compile(r"[+-]?\d{1,30}(\.\d{1,30})?[eE][+-]?\d{1,2}")

_EPOCH_START: Final = "JobCurrentStartDate"
_EPOCH_STOP: Final = "EpochWriteDate"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A job that makes no record on purpose."""

    reason: str


@dataclass(frozen=True, slots=True)
class Converted:
    """A job that makes a record.

    Args:
        record: what happened. It has no second id: a job is once in the history under its id, so the same id with
            another start time is a contradiction for people to look at, and no other run to count.
        left_out: labels that could not be kept, with the reason.
    """

    record: Record
    left_out: Sequence[str]


def ended_at(config: HTCondorConfig, row: Row) -> datetime | None:
    """When the job ended: HTCondor says 0 or nothing where it does not know, and 1970 is never meant.

    Raises:
        InvalidRecord: the end is no time.
    """
    return _first_instant(row, (_EPOCH_STOP, *config.stop_keys) if config.epochs else config.stop_keys)


def _began_at(config: HTCondorConfig, row: Row) -> datetime | None:
    return _first_instant(row, (_EPOCH_START, *config.start_keys) if config.epochs else config.start_keys)


def _first_instant(row: Row, keys: Sequence[str]) -> datetime | None:
    for key in keys:
        seconds = parse_number(row[key]) if key in row else Decimal(0)
        if seconds:
            return _instant(key, seconds)
    return None


def _instant(key: str, seconds: Decimal) -> datetime:
    try:
        return datetime.fromtimestamp(int(seconds), UTC)
    except (OverflowError, ValueError, OSError) as error:
        raise InvalidRecord(f"{key}: {seconds} is no time") from error


def convert_row(config: HTCondorConfig, row: Row) -> Converted | Skipped | Quarantined:
    """Judge one ad; never raises for what it holds."""
    try:
        reason = _reason_to_skip(config, row)
        return Skipped(reason) if reason else _converted(config, row)
    except InvalidRecord as error:
        return Quarantined(identity(row, epochs=config.epochs), {"row": dict(row)}, str(error))


def _reason_to_skip(config: HTCondorConfig, row: Row) -> str | None:
    if config.job_status and row.get("JobStatus") not in {str(status) for status in config.job_status}:
        return "filtered out"
    if config.constraint and row.get(CHOSEN.format(config.constraint), "").lower() != "true":
        return "filtered out"
    if row.get("JobUniverse") in _ON_SUBMIT_HOST:
        return "ran on the submit host (scheduler or local universe)"
    if row.get("NumJobStarts") == "0" or _began_at(config, row) is None:
        return "never started"
    return None


def _converted(config: HTCondorConfig, row: Row) -> Converted:
    start, stop = _began_at(config, row), ended_at(config, row)
    if start is None or stop is None or "GlobalJobId" not in row:
        missing = "GlobalJobId" if start and stop else " and ".join(config.stop_keys)
        raise InvalidRecord(f"the ad says nothing of {missing}")
    owners = build_owners({"user_id": config.user_keys, "group_id": config.group_keys}, row)
    labels = build_meta(config.meta, row, (*config.site_labels, "user_id", "group_id"))
    site = (find_site(config.sites, row),) if config.site_labels else ()
    plain = f"{config.record_prefix}-{row['GlobalJobId']}"
    record = Record(
        record_id=f"{plain}-{int(start.timestamp())}" if config.epochs else plain,
        start_time=start,
        stop_time=stop,
        components=build_components(config.components, _with_plain_numbers(config, row)),
        meta={**labels.meta, **dict.fromkeys(config.site_labels, site), **owners.meta},
    )
    return Converted(record, [*owners.left_out, *labels.left_out])


def _with_plain_numbers(config: HTCondorConfig, row: Row) -> Row:
    """The row with numbers as the grammar wants them: ``1.5E+03`` is 1500, and nan or inf is no statement.

    Only of what is read as a number: a user may be called 1e5.
    """
    keys = {rule.key for rule in config.components} | {
        score.key for rule in config.components for score in rule.scores if score.matches is None
    }
    plain = {key: _plain(row[key]) for key in keys if key is not None and key in row}
    return {**row, **plain}


def _plain(text: str) -> str:
    if text.lower().lstrip("+-") in {"nan", "inf", "infinity"}:
        return ""
    return f"{Decimal(text):f}" if _SCIENTIFIC.fullmatch(text) else text


def convert(config: HTCondorConfig, raw: Any) -> Record | None:  # Any: JSON from the quarantine
    """Try a quarantined job again under today's configuration; None if it makes no record now.

    Raises:
        InvalidRecord: what is still wrong.
    """
    judged = convert_row(config, _row_from_raw(config, raw))
    if isinstance(judged, Quarantined):
        raise InvalidRecord(judged.reason)
    return judged.record if isinstance(judged, Converted) else None


def _row_from_raw(config: HTCondorConfig, raw: Any) -> Row:  # Any: JSON from the quarantine
    if "ad" in raw:
        return row_of_ad(parse_ad(raw["ad"]), wanted_columns(config))
    if "row" in raw:
        return dict(raw["row"])
    raise InvalidRecord("this is no job but output that belongs to none; discard it")
