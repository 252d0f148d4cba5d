from typing import Any

import pytest

from auditord.testing import FakePluginContext
from auditord_builtin.apel.commands import preview
from auditord_builtin.apel.config import ApelConfig
from auditord_builtin.apel.messages import Problem
from auditord_hookspecs import Component, Record, Score
from auditord_hookspecs.months import Month

MARCH = Month(2024, 3)
pytestmark = pytest.mark.anyio


def configured(**more: Any) -> ApelConfig:  # Any: as in a file
    host = {"type": "ConstantField", "value": "ce1"}
    return ApelConfig.model_validate(
        {
            "site": {"sites_to_report": {"SITE-A": "a"}, "site_meta_field": "site_id"},
            "messaging": {"client_cert": "/nowhere/cert", "client_key": "/nowhere/key"},
            "summary_fields": {"mandatory": {"VO": {"type": "MetaField", "name": "vo"}, "SubmitHost": host}},
            "individual_job_fields": {"optional": {"SubmitHost": host}},
            **more,
        }
    )


def job(name: str, cpu: int = 1) -> Record:
    components = (Component("Cores", 1, (Score("HEPscore23", 1),)), Component("TotalCPU", cpu, ()))
    return Record(name, MARCH.start, components, MARCH.start.replace(hour=1), {"site_id": ("a",), "vo": ("ops",)})


async def texts(config: ApelConfig, *stored: Record) -> list[str]:
    shown = preview(config, FakePluginContext(stored=stored).records, "SITE-A", MARCH)
    return [str(each) if isinstance(each, Problem) else each.text async for each in shown]


async def test_summaries_and_what_was_left_out() -> None:
    sync, summary, problem = await texts(configured(), job("1"), Record("2", *_unscored()))
    assert sync.startswith("APEL-sync-message: v0.1\n")
    assert "NumberOfJobs: 1\n%%" in summary
    assert problem == "SITE-A 2024-03: no score HEPscore23: left out (1 job)"


def _unscored() -> tuple[Any, ...]:  # Any: the fields of a record
    first = job("x")
    return first.start_time, (Component("Cores", 1, ()),), first.stop_time, first.meta


async def test_individual_jobs_and_what_was_left_out() -> None:
    problem, message = await texts(configured(message_type="individual_jobs"), job("1"), job("2", 10**6), job("3"))
    assert message.count("LocalJobId") == 3
    assert problem.startswith("2: an implausible CPU time, 1000000 s in 3600 s: reported with 3601 s; are these milli")
