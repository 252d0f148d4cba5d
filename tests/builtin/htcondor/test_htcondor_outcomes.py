"""The label ``outcome`` of HTCondor's jobs: ads of real pools, and ads as the manual describes them."""

import pytest

pytest.importorskip("classad2", reason="pip install 'auditord[htcondor]'")

from auditord_builtin.htcondor.ads import OUTCOME_COLUMNS, JobAd
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.htcondor.conversion import convert_ad, find_outcome
from auditord_builtin.htcondor.evaluation import Evaluator, read_ad
from auditord_builtin.htcondor.query import list_columns
from auditord_hookspecs.outcomes import Converted
from auditord_hookspecs.vocabulary import JobOutcome
from tests.builtin.htcondor.recordings import recorded_ads

CONFIG = HTCondorConfig()


def read(name: str) -> list[JobAd]:
    with Evaluator() as evaluator:
        return [read_ad(evaluator, text, list_columns(CONFIG)) for text in recorded_ads(name)]


def words(name: str) -> list[str]:
    converted = [convert_ad(CONFIG, ad) for ad in read(name)]
    return ["".join((each.record.meta or {})["outcome"]) for each in converted if isinstance(each, Converted)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("long_completed", ["completed"]),
        ("long_removed_running", ["cancelled"]),  # by a policy of the job
        ("long_twice", ["completed"]),  # held and released before
        ("long_after_schedd_crash_no_CpusProvisioned", ["completed"]),
        ("long_forcex_disconnected_numjobstarts0", ["cancelled"]),
        # Two were killed by signal 15 for a hold, and removed while they were held.
        ("pool_23_9", ["completed", "cancelled", "cancelled", "completed"]),
    ],
)
def test_jobs_of_real_pools_have_these_words(name: str, expected: list[str]) -> None:
    assert words(name) == expected


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        ({"JobStatus": "4", "ExitBySignal": "false", "ExitCode": "0"}, "completed"),
        ({"JobStatus": "4", "ExitBySignal": "false", "ExitCode": "1"}, "failed"),
        ({"JobStatus": "4", "ExitBySignal": "true", "ExitCode": ""}, "failed"),
        ({"JobStatus": "4", "ExitBySignal": "false", "ExitCode": ""}, None),
        ({"JobStatus": "4", "ExitCode": "0", "LastHoldReasonCode": "34"}, "completed"),  # released, and ran again
        ({"JobStatus": "3", "LastJobStatus": "2", "ExitCode": "0"}, "cancelled"),
        ({"JobStatus": "3", "LastJobStatus": "1"}, "cancelled"),
        ({"JobStatus": "3", "LastJobStatus": "1", "LastHoldReasonCode": "34"}, "cancelled"),
        ({"JobStatus": "3", "LastJobStatus": "5"}, "cancelled"),
        ({"JobStatus": "3", "LastJobStatus": "5", "LastHoldReasonCode": "1"}, "cancelled"),
        ({"JobStatus": "3", "LastJobStatus": "5", "LastHoldReasonCode": "3"}, "cancelled"),
        ({"JobStatus": "3", "LastJobStatus": "5", "LastHoldReasonCode": "34"}, "out_of_memory"),
        (
            {
                "JobStatus": "3",
                "LastJobStatus": "5",
                "LastHoldReasonCode": "34",
                "LastHoldReasonSubCode": "102",
            },
            "out_of_memory",
        ),
        (
            {
                "JobStatus": "3",
                "LastJobStatus": "5",
                "LastHoldReasonCode": "34",
                "LastHoldReasonSubCode": "104",
            },
            "failed",  # too much disk
        ),
        ({"JobStatus": "3", "LastJobStatus": "5", "HoldReasonCode": "46"}, "timeout"),
        ({"JobStatus": "3", "LastJobStatus": "5", "LastHoldReasonCode": "47"}, "timeout"),
        ({"JobStatus": "3", "LastJobStatus": "5", "LastHoldReasonCode": "13"}, "failed"),  # no output could be moved
        ({"JobStatus": "3", "LastJobStatus": "5", "HoldReasonCode": "34", "LastHoldReasonCode": "1"}, "out_of_memory"),
        ({}, None),
    ],
)
def test_a_job_ends_with_one_of_the_words(columns: dict[str, str], word: str | None) -> None:
    row = {name: columns.get(name, "") for name in ("JobStatus", *OUTCOME_COLUMNS)}
    assert find_outcome(row, is_run=False) == word
    assert word is None or word in set(JobOutcome)


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        ({"JobStatus": "2", "ExitBySignal": "false", "ExitCode": "0"}, "completed"),
        ({"JobStatus": "2", "VacateReasonCode": "1019", "ExitCode": "1"}, "preempted"),
        ({"JobStatus": "2", "VacateReasonCode": "1014"}, "preempted"),
        ({"JobStatus": "2", "VacateReasonCode": "1008"}, "node_fail"),
        ({"JobStatus": "2", "VacateReasonCode": "34", "VacateReasonSubCode": "102"}, "out_of_memory"),
        ({"JobStatus": "2", "VacateReasonCode": "1"}, "cancelled"),  # held by a user
        ({"JobStatus": "2", "VacateReasonCode": "1036"}, None),
        ({"JobStatus": "2", "VacateReasonCode": "1005"}, "requeued"),
        ({"JobStatus": "2", "VacateReasonCode": "0", "ExitCode": "0"}, None),
        ({"JobStatus": "3", "LastJobStatus": "2", "VacateReasonCode": "0"}, "cancelled"),
    ],
)
def test_a_run_of_a_job_ends_with_one_of_the_words(columns: dict[str, str], word: str | None) -> None:
    assert find_outcome(columns, is_run=True) == word
    assert word is None or word in set(JobOutcome)
