from typing import Any

import pytest

from auditord.testing import FakePluginContext
from auditord_builtin.apel.commands import shown
from auditord_builtin.apel.config import ApelConfig
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


async def texts(config: ApelConfig, *stored: Record, site: str = "SITE-A") -> list[str]:
    return [text async for text in shown(config, FakePluginContext(stored=stored), site, MARCH)]


async def test_summaries_and_what_was_left_out() -> None:
    sync, summary, problem = await texts(configured(), job("1"), Record("2", *_unscored()))
    assert sync.startswith("APEL-sync-message: v0.1\n")
    assert "NumberOfJobs: 1\n%%" in summary
    assert problem == "# SITE-A 2024-03: no score HEPscore23: left out (1 job)\n"


def _unscored() -> tuple[Any, ...]:  # Any: the fields of a record
    first = job("x")
    return first.start_time, (Component("Cores", 1, ()),), first.stop_time, first.meta


async def test_individual_jobs_and_what_was_left_out() -> None:
    message, problem = await texts(configured(message_type="individual_jobs"), job("1"), job("2", 10**6), job("3"))
    assert message.count("LocalJobId") == 3
    assert problem.startswith(
        "# 2: an implausible CPU time, 1000000 s in 3600 s: reported with 3601 s; are these milli"
    )


async def test_of_very_many_problems_the_rest_is_counted() -> None:
    stored = [Record(str(number), *_unscored()) for number in range(1_002)]
    lines = await texts(configured(message_type="individual_jobs"), *stored)
    assert [len(lines), lines[-1]] == [1_001, "# and 2 more\n"]


async def test_a_site_that_is_not_reported() -> None:
    with pytest.raises(ValueError, match="SITE-B is not reported; sites_to_report has SITE-A"):
        await texts(configured(), site="SITE-B")
