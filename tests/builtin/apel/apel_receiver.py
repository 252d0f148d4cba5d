"""APEL's treatment of messages, written down from its rules and not from our code: parses, and replaces by key.

Refusals are AssertionErrors, which name what is wrong. Text columns are compared without regard to case and accents.
"""

import json
import unicodedata
from calendar import monthrange
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

Fields = Mapping[str, str]

SUMMARY: Final = (
    "Site Month Year GlobalUserName VO VOGroup VORole SubmitHost InfrastructureDescription NodeCount Processors"
)
AMOUNTS: Final = "EarliestEndTime LatestEndTime WallDuration CpuDuration NumberOfJobs"
JOB: Final = (
    "Site SubmitHost MachineName Queue LocalJobId LocalUserId GlobalUserName FQAN VO VOGroup VORole WallDuration "
    "CpuDuration Processors NodeCount StartTime EndTime InfrastructureDescription InfrastructureType MemoryReal "
    "MemoryVirtual ServiceLevel"
)
NORMALISED: Final = "Infrastructure NormalisedWallDuration NormalisedCpuDuration"
KNOWN: Final = {
    "APEL-normalised-summary-message: v0.4": f"{SUMMARY} {AMOUNTS} {NORMALISED}",
    "APEL-summary-job-message: v0.3": f"{SUMMARY} {AMOUNTS} {NORMALISED} ServiceLevelType",
    "APEL-summary-job-message: v0.4": f"{SUMMARY} {AMOUNTS} InfrastructureType ServiceLevel",
    "APEL-summary-job-message: v0.2": f"{SUMMARY} {AMOUNTS} InfrastructureType ServiceLevel ServiceLevelType",
    "APEL-individual-job-message: v0.4": JOB,
    "APEL-individual-job-message: v0.3": f"{JOB} ServiceLevelType",
    "APEL-sync-message: v0.1": "Site SubmitHost NumberOfJobs Month Year",
}
WHOLE: Final = (
    "Month Year NodeCount Processors EarliestEndTime LatestEndTime WallDuration CpuDuration NumberOfJobs StartTime "
    "EndTime MemoryReal MemoryVirtual"
)
SHORT: Final = {"Infrastructure": 20, "InfrastructureType": 20, "InfrastructureDescription": 100, "Queue": 100}
NULLS: Final = ("none", "null", "")
TEXTS: Final = ("VO", "VOGroup", "VORole")  # in which these are words like others
NOT_NULL: Final = ("Site", "WallDuration", "CpuDuration", "NodeCount", "Processors")


@dataclass
class Receiver:
    """The tables, by key."""

    rows: dict[tuple[str, ...], Fields] = field(default_factory=dict[tuple[str, ...], Fields])
    sync: dict[tuple[str, ...], int] = field(default_factory=dict[tuple[str, ...], int])

    def take(self, text: str) -> None:
        """Take a message in as a whole."""
        header, body = text.split("\n", 1)
        known = KNOWN[header.strip()].split()
        parts = body.split("%%")
        assert parts[-1].strip() == ""
        records = [read(part, known) for part in parts[:-1]]
        keys = [self.keep(header, record) for record in records]
        assert len(set(keys)) == len(keys), "one message has a key twice"

    def keep(self, header: str, record: Fields) -> tuple[str, ...]:
        if header.startswith("APEL-sync"):
            at = (record["Site"], folded(record.get("SubmitHost", "None")), record["Month"], record["Year"])
            self.sync[at] = int(record["NumberOfJobs"])
            return at
        check(record)
        key = key_of(record)
        self.rows[key] = record
        return key

    def total(self, name: str) -> int:
        """The sum of a column."""
        return sum(number(record[name]) for record in self.rows.values())


def read(part: str, known: list[str]) -> Fields:
    pairs = [line.split(":", 1) for line in part.split("\n") if line.strip()]
    assert all(len(pair) == 2 for pair in pairs), "a line without a colon"
    record = {key.strip(): value.strip() for key, value in pairs}
    assert set(record) <= set(known), set(record) - set(known)
    for name, value in record.items():
        assert len(value) <= SHORT.get(name, 255), name
        assert name not in WHOLE.split() or 0 <= int(value) < 2**63, name
        assert all(unicodedata.category(character) != "Cc" for character in value)
    return {name: value for name, value in record.items() if name in TEXTS or value.lower() not in NULLS}


def check(record: Fields) -> None:
    assert all(record[name] for name in NOT_NULL)
    wall, cpu, processors = (int(record[name]) for name in ("WallDuration", "CpuDuration", "Processors"))
    assert processors == 0 or cpu <= 2 * processors * (wall + int(record.get("NumberOfJobs", "1")))
    if "Month" in record:
        year, month = int(record["Year"]), int(record["Month"])
        first = int(datetime(year, month, 1, tzinfo=UTC).timestamp())
        last = first + monthrange(year, month)[1] * 86_400
        ends = [int(record[name]) for name in ("EarliestEndTime", "LatestEndTime") if name in record]
        assert [first, *ends, last] == sorted([first, *ends, last])


def key_of(record: Fields) -> tuple[str, ...]:
    if "LocalJobId" in record:
        return (record["Site"], folded(record["LocalJobId"]), record["EndTime"])
    names = f"{SUMMARY} Infrastructure InfrastructureType ServiceLevel ServiceLevelType".split()
    names.remove("InfrastructureDescription")
    level = record.get("NormalisedWallDuration", "").split(":")[0]
    return (level, *[folded(record.get(name, "None")) for name in names])


def folded(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text.casefold())
    return "".join(each for each in plain if not unicodedata.combining(each)).casefold().strip()


def number(value: str) -> int:
    """A number, or the one in ``{name: number}``."""
    return int(value) if not value.startswith("{") else int(json.loads("[" + value.strip("{}").split(":")[1] + "]")[0])
