"""APEL's rules of each message: its fields, their types and lengths, and its database's keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_LONG: Final = 255
_LENGTHS: Final = {
    "Infrastructure": 20,
    "InfrastructureType": 20,
    "InfrastructureDescription": 100,
    "Queue": 100,
    "ServiceLevelType": 50,
}
_PERIOD: Final = ("Month", "Year", "EarliestEndTime", "LatestEndTime", "NumberOfJobs")
_WHO: Final = ("Site", "GlobalUserName", "VO", "VOGroup", "VORole", "SubmitHost")
_HOW_MUCH: Final = ("NodeCount", "Processors", "WallDuration", "CpuDuration")
NORMALISED: Final = ("NormalisedWallDuration", "NormalisedCpuDuration")
"""Durations times a benchmark."""

_COUNTS: Final = frozenset({"NumberOfJobs", "Processors", "NodeCount"})
_MOST_COUNTED: Final = 2**31 - 1
MOST: Final = 2**53
"""The greatest of all other numbers."""

_TIMES: Final = ("StartTime", "EndTime", "MemoryReal", "MemoryVirtual")
_JOB: Final = (
    *("MachineName", "Queue", "LocalJobId", "LocalUserId", "FQAN", "InfrastructureDescription", "InfrastructureType"),
    *("ServiceLevel", "SubmitHostType", "UpdateTime"),
)


@dataclass(frozen=True, slots=True)
class Rules:
    """One message.

    Args:
        longest: how many characters fit, for each field that is known.
        texts: those of them that are nothing but texts.
        whole: fields with whole numbers from 0 on, and the greatest of each.
        by_benchmark: fields such as ``{HEPscore23: 12}``.
        mandatory: fields that the parser or the database asks for.
        key: fields of which a record with the same values replaces one before it.
    """

    longest: Mapping[str, int]
    texts: frozenset[str]
    whole: Mapping[str, int]
    by_benchmark: tuple[str, ...]
    mandatory: tuple[str, ...]
    key: tuple[str, ...]


def _rules(
    fields: tuple[str, ...], *, mandatory: tuple[str, ...], key: tuple[str, ...], by_benchmark: tuple[str, ...] = ()
) -> Rules:
    numbers = {*_PERIOD, *_HOW_MUCH, *NORMALISED, *_TIMES} & set(fields) - set(by_benchmark)
    whole = {field: _MOST_COUNTED if field in _COUNTS else MOST for field in numbers}
    longest = {field: _LENGTHS.get(field, _LONG) for field in fields}
    texts = frozenset(fields) - numbers - {*by_benchmark, "ServiceLevel"}
    return Rules(longest, texts, whole, by_benchmark, mandatory, key)


_SUMMARY_KEY: Final = (*_WHO, "Month", "Year", "NodeCount", "Processors")
_SUMMARY_FIELDS: Final = (*_WHO, *_PERIOD, *_HOW_MUCH, "InfrastructureDescription")
_SUMMARY_MANDATORY: Final = ("Site", "Month", "Year", *_HOW_MUCH, "NumberOfJobs")


def _normalised(*, by_benchmark: bool) -> Rules:
    dicts = NORMALISED if by_benchmark else ()
    level = () if by_benchmark else ("ServiceLevelType",)
    return _rules(
        (*_SUMMARY_FIELDS, "Infrastructure", *NORMALISED, *level),
        mandatory=(*_SUMMARY_MANDATORY, *NORMALISED),
        key=(*_SUMMARY_KEY, "Infrastructure", NORMALISED[0] if by_benchmark else "ServiceLevelType"),
        by_benchmark=dicts,
    )


def _plain(*, by_benchmark: bool) -> Rules:
    level = ("ServiceLevel",) if by_benchmark else ("ServiceLevel", "ServiceLevelType")
    return _rules(
        (*_SUMMARY_FIELDS, "InfrastructureType", *level),
        mandatory=(*_SUMMARY_MANDATORY, *level),
        key=(*_SUMMARY_KEY, "InfrastructureType", *level),
        by_benchmark=("ServiceLevel",) if by_benchmark else (),
    )


def _job(*, by_benchmark: bool) -> Rules:
    level = ("ServiceLevel",) if by_benchmark else ("ServiceLevel", "ServiceLevelType")
    fields = (*_WHO, *_JOB, *_HOW_MUCH, *_TIMES, *level)
    return _rules(
        fields,
        mandatory=("Site", "LocalJobId", *_HOW_MUCH, "StartTime", "EndTime", *level),
        key=("Site", "LocalJobId", "EndTime"),
        by_benchmark=("ServiceLevel",) if by_benchmark else (),
    )


MESSAGES: Final[Mapping[str, Rules]] = {
    "APEL-normalised-summary-message: v0.4": _normalised(by_benchmark=True),
    "APEL-summary-job-message: v0.3": _normalised(by_benchmark=False),
    "APEL-summary-job-message: v0.4": _plain(by_benchmark=True),
    "APEL-summary-job-message: v0.2": _plain(by_benchmark=False),
    "APEL-individual-job-message: v0.4": _job(by_benchmark=True),
    "APEL-individual-job-message: v0.3": _job(by_benchmark=False),
    "APEL-sync-message: v0.1": _rules(
        ("Site", "SubmitHost", "NumberOfJobs", "Month", "Year"),
        mandatory=("Site", "NumberOfJobs", "Month", "Year"),
        key=("Site", "SubmitHost", "Month", "Year"),
    ),
}
"""By the first line of the message."""

ACCELERATORS: Final = (
    *("MeasurementMonth", "MeasurementYear", "AssociatedRecordType", "AssociatedRecord", "FQAN", "SiteName", "Count"),
    *("AvailableDuration", "Type"),
)
"""The mandatory members of the draft of the accelerator message."""
