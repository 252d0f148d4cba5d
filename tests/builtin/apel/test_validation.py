"""Refusals of APEL's parser and database, as they were seen with APEL's own code and a MariaDB with its schema."""

from datetime import UTC, datetime

import pytest

from auditord_builtin.apel.validation import validate

NORMALISED = """APEL-normalised-summary-message: v0.4
Site: EXAMPLE-SITE
Month: 3
Year: 2024
GlobalUserName: /DC=org/CN=robot
VO: atlas
VOGroup: /atlas
VORole: Role=production
SubmitHost: ce1.example.org
Infrastructure: grid
NodeCount: 1
Processors: 8
EarliestEndTime: 1709293600
LatestEndTime: 1709380000
WallDuration: 7200
CpuDuration: 56000
NormalisedWallDuration: {HEPscore23: 108720}
NormalisedCpuDuration: {HEPscore23: 845600}
NumberOfJobs: 2
%%
"""
SUMMARY = """APEL-summary-job-message: v0.2
Site: EXAMPLE-SITE
Month: 3
Year: 2024
VO: atlas
SubmitHost: ce1.example.org
InfrastructureType: grid
ServiceLevelType: hepspec
ServiceLevel: 15.1
NodeCount: 1
Processors: 8
WallDuration: 7200
CpuDuration: 56000
NumberOfJobs: 2
%%
"""
JOB = """APEL-individual-job-message: v0.3
Site: EXAMPLE-SITE
LocalJobId: 17
WallDuration: 3600
CpuDuration: 3000
Processors: 1
NodeCount: 1
StartTime: 1709290000
EndTime: 1709293600
ServiceLevelType: HEPscore23
ServiceLevel: 15.1
%%
"""
SYNC = "APEL-sync-message: v0.1\nSite: A\nSubmitHost: ce1\nNumberOfJobs: 3\nMonth: 3\nYear: 2024\n%%\n"
NOW = datetime(2024, 3, 20, tzinfo=UTC)


@pytest.mark.parametrize("text", [NORMALISED, SUMMARY, JOB, SYNC], ids=["normalised", "summary", "job", "sync"])
def test_good_ones_pass(text: str) -> None:
    assert validate(text, NOW) == []
    header, body = text.split("\n", 1)
    assert validate(f"{header}  \n{body}", NOW) == []


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (NORMALISED, "Month: 3", "Month: 03"),
        (NORMALISED, "NumberOfJobs: 2", "NumberOfJobs: 0"),
        (NORMALISED, "LatestEndTime: 1709380000", "LatestEndTime: 1711929600"),  # the month's end is in it
        (NORMALISED, "{HEPscore23: 108720}", "{HEPscore23: 108720.5}"),
        (NORMALISED, "VO: atlas", "VO: none"),
        (NORMALISED, "CpuDuration: 56000", "CpuDuration: 1000000000"),
        (NORMALISED, "Processors: 8", "Processors: 0"),  # not known
        (NORMALISED, "EarliestEndTime: 1709293600\n", ""),
        (JOB, "HEPscore23", "SI2K"),
        (SUMMARY, "GlobalUserName: x\n", ""),
        (SUMMARY, "ServiceLevel: 15.1", "ServiceLevel: 9999999.999"),
    ],
)
def test_what_looks_odd_and_is_good(text: str, old: str, new: str) -> None:
    assert validate(text.replace(old, new), NOW) == []


@pytest.mark.parametrize(
    ("text", "old", "new", "reason"),
    [
        (NORMALISED, "v0.4", "v0.5", "knows no message"),
        (NORMALISED, "Infrastructure:", "InfrastructureType:", "InfrastructureType: APEL does not know"),
        (SUMMARY, "InfrastructureType:", "Infrastructure:", "Infrastructure: APEL does not know"),
        (NORMALISED, "NodeCount: 1\n", "", "NodeCount is missing"),
        (NORMALISED, "Processors: 8", "Processors: none", "Processors is missing"),
        (NORMALISED, "Site: EXAMPLE-SITE", "Site:", "Site is missing"),
        (SUMMARY, "ServiceLevel: 15.1\n", "", "ServiceLevel is missing"),
        (SUMMARY, "ServiceLevel: 15.1", "ServiceLevel: 10000000", "not a number from 0 to 10000000"),
        (JOB, "ServiceLevelType: HEPscore23\n", "", "ServiceLevelType is missing"),
        (JOB, "HEPscore23", "custom", "ServiceLevelType is 'custom'"),
        (NORMALISED, "1709293600", "1709293600.5", "not a whole number"),
        (NORMALISED, "WallDuration: 7200", "WallDuration: 7200.0", "not a whole number"),
        (NORMALISED, "WallDuration: 7200", "WallDuration: -1", "not from 0"),
        (NORMALISED, "NumberOfJobs: 2", "NumberOfJobs: 2147483648", "not from 0"),
        (NORMALISED, "WallDuration: 7200", "WallDuration: 9007199254740993", "not from 0"),
        (NORMALISED, "WallDuration: 7200", f"WallDuration: {'9' * 200}", "not from 0"),
        (NORMALISED, "WallDuration: 7200", "WallDuration: 720\N{ARABIC-INDIC DIGIT ZERO}", "not a whole number"),
        (NORMALISED, "Month: 3", "Month: 13", "2024-13 is not a month"),
        (NORMALISED, "1709380000", "1711929601", "is not in 2024-03"),
        (NORMALISED, "1709293600", "1709251199", "is not in 2024-03"),
        (NORMALISED, "EarliestEndTime: 1709293600", "EarliestEndTime: 1709380001", "after LatestEndTime"),
        (SUMMARY, "Month: 3", "Month: 4", "lies in the future"),
        (JOB, "EndTime: 1709293600", "EndTime: 1711100000", "lies in the future"),
        (JOB, "EndTime: 1709293600", "EndTime: 1709289999", "before StartTime"),
        (
            NORMALISED,
            "{HEPscore23: 845600}",
            "{hepspec: 845600}",
            "the durations are normalised with different benchmarks",
        ),
        (
            NORMALISED,
            "{HEPscore23: 845600}",
            "845600",
            "NormalisedCpuDuration is '845600', not a benchmark and a number",
        ),
        (NORMALISED, "{HEPscore23: 845600}", "{HEPscore23: x}", "not a benchmark and a number"),
        (NORMALISED, "{HEPscore23: 845600}", "{HEPscore23: 1, hepscore23: 2}", "each benchmark once"),
        (NORMALISED, "{HEPscore23: 845600}", "{flops: 845600}", "each benchmark once"),
        (NORMALISED, "Infrastructure: grid", f"Infrastructure: {'x' * 21}", "at most 20"),
        (NORMALISED, "VO: atlas", f"VO: {'x' * 256}", "at most 255"),
        (NORMALISED, "VO: atlas", "VO: atlas\nVO: cms", "appears twice"),
        (NORMALISED, "VO: atlas", "VO atlas", "no colon"),
        (NORMALISED, "VO: atlas", "VO: at\rlas", "control character"),
        (NORMALISED, "VO: atlas", "VO: at\N{LINE SEPARATOR}las", "control character"),
        (NORMALISED, "VO: atlas", "VO: application/pkcs7-mime", "encrypted"),
        (NORMALISED, "VO: atlas", "VO: Application/X-pKc\N{LATIN SMALL LETTER LONG S}7-Mime", "encrypted"),
        (NORMALISED, "VO: atlas", "VO: at%%las", "is missing"),
        (NORMALISED, "NumberOfJobs: 2\n%%\n", "NumberOfJobs: 2\n", "not closed"),
        (SYNC, "Month: 3", "Month: 0", "is not a month"),
    ],
)
def test_what_apel_refuses(text: str, old: str, new: str, reason: str) -> None:
    assert old in text
    assert any(reason in problem.reason for problem in validate(text.replace(old, new), NOW))


def test_an_unknown_message_is_a_problem_of_the_whole_message() -> None:
    (problem,) = validate("APEL-summary-job-message: v9\nSite: A\n%%\n", NOW)
    assert str(problem) == "message: APEL knows no message that begins with 'APEL-summary-job-message: v9'"


def test_accelerators_without_records_are_refused() -> None:
    (problem,) = validate("{}", NOW)
    assert str(problem) == "message: it has no UsageRecords in JSON"


def test_a_message_without_records_is_refused() -> None:
    assert validate("APEL-sync-message: v0.1\n")


@pytest.mark.parametrize(
    ("text", "old", "new", "alike"),
    [
        (NORMALISED, "VO: atlas", "VO: Atlas", True),
        (NORMALISED, "VO: atlas", "VO: átlas", True),
        (NORMALISED, "NumberOfJobs: 2", "NumberOfJobs: 3", True),
        (NORMALISED, "HEPscore23", "hepspec", False),
        (NORMALISED, "Infrastructure: grid", "Infrastructure: local", False),
        (SUMMARY, "ServiceLevel: 15.1", "ServiceLevel: 15.2", False),
        (JOB, "EndTime: 1709293600", "EndTime: 1709293601", False),
    ],
)
def test_a_key_that_stands_twice_in_a_message_is_refused(text: str, old: str, new: str, alike: bool) -> None:  # noqa: FBT001 a column
    both = text + text.replace(old, new).split("\n", 1)[1]
    assert ["replace" in problem.reason for problem in validate(both, NOW)] == [True] * alike


def test_a_record_without_a_part_of_its_key_has_the_key_of_one_that_says_none() -> None:
    _, second = SUMMARY.split("\n", 1)
    twice = SUMMARY + second.replace("VO: atlas", "VO: atlas\nVOGroup: None")
    (problem,) = validate(twice)
    assert problem.reason == "it has the key of an earlier record, and would replace it"
