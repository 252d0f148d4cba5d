"""The label ``outcome`` of Slurm's jobs, for every state in which a job is over, and for jobs of a real cluster."""

from collections import Counter
from typing import Any

import pytest

from auditord_builtin.slurm.config import SlurmConfig
from auditord_builtin.slurm.conversion import Converter
from auditord_builtin.slurm.runs import ENDED, OUTCOMES, Run, parse_state
from auditord_hookspecs.outcomes import Converted, Skipped
from auditord_hookspecs.vocabulary import JobOutcome
from tests.builtin.slurm.test_conversion import run
from tests.builtin.slurm.test_table import captured_runs

WORDS = {
    "BOOT_FAIL": "node_fail",
    "CANCELLED": "cancelled",
    "CANCELLED by 1000": "cancelled",
    "COMPLETED": "completed",
    "DEADLINE": "timeout",
    "FAILED": "failed",
    "NODE_FAIL": "node_fail",
    "OUT_OF_MEMORY": "out_of_memory",
    "PREEMPTED": "preempted",
    "REQUEUED": "requeued",
    "RESIZING": None,
    "TIMEOUT": "timeout",
}


def outcome(state: str, end: str = "1700000060", **options: Any) -> str | None:
    one = run(State=state, End=end)
    converted = Converter(SlurmConfig.model_validate(options)).convert(one)
    assert isinstance(converted, Converted), converted
    values = (converted.record.meta or {}).get("outcome", (None,))
    assert len(values) == 1
    return values[0]


@pytest.mark.parametrize(("state", "word"), WORDS.items())
def test_each_state_has_one_word(state: str, word: str | None) -> None:
    assert outcome(state) == word


def test_no_state_is_forgotten_and_no_word_is_made_up() -> None:
    assert {parse_state(state) for state in WORDS} == {*ENDED.values()} - {"REVOKED"}  # which makes no record here
    assert set(OUTCOMES.values()) == set(JobOutcome)


@pytest.mark.parametrize("state", ["RUNNING", "SUSPENDED"])
def test_a_job_that_is_not_over_has_no_outcome(state: str) -> None:
    assert outcome(state, end="Unknown", open_records=True) is None


def test_a_state_of_a_later_slurm_leaves_the_label_out() -> None:
    assert outcome("TELEPORTED") is None


def test_a_rule_of_the_site_wins_even_if_it_has_no_value() -> None:
    rule = {"name": "outcome", "key": "State", "key_type": "String"}
    assert outcome("CANCELLED by 1000", meta=[rule]) == "CANCELLED by 1000"
    nothing = {**rule, "key": "Comment", "optional": True}
    assert outcome("FAILED", meta=[nothing]) is None


def test_jobs_of_a_real_cluster_have_these_words() -> None:
    converter, found = Converter(SlurmConfig.model_validate({"components": "auditor"})), Counter[tuple[str, str]]()
    for recorded in captured_runs().values():
        had_nodes = recorded.allocation["Start"] != "None"  # the recording lacks these columns
        unrecorded = {"NodeList": "n01" if had_nodes else "None assigned", "Partition": "p", "Account": "a"}
        converted = converter.convert(Run({**recorded.allocation, **unrecorded}, recorded.steps))
        if isinstance(converted, Converted):
            (word,) = (converted.record.meta or {})["outcome"]
            found[recorded.allocation["State"], word] += 1
        else:
            assert converted == Skipped("never started")
    assert found == {
        ("CANCELLED by 0", "cancelled"): 1,
        ("COMPLETED", "completed"): 17,
        ("FAILED", "failed"): 1,
        ("REQUEUED", "requeued"): 2,
        ("TIMEOUT", "timeout"): 2,
    }
