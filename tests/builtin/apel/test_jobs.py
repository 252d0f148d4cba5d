from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from auditord_builtin.apel.config import ApelConfig
from auditord_builtin.apel.jobs import individual_jobs, job_row
from auditord_builtin.apel.messages import JobRow, Problem, render_jobs
from auditord_builtin.apel.validation import validate
from auditord_hookspecs import Component, Record, Score, Window
from tests.filtering_context import FilteringContext

STOP = datetime(2024, 3, 10, 12, tzinfo=UTC)
pytestmark = pytest.mark.anyio


def meta(name: str, **more: Any) -> dict[str, Any]:  # Any: as in a file
    return {"type": "MetaField", "name": name, **more}


def configured(layout: str = "v0.4", since: str | None = None, **optional: Any) -> ApelConfig:  # Any: as in a file
    return ApelConfig.model_validate(
        {
            "message_type": "individual_jobs",
            "job_message": layout,
            "site": {"sites_to_report": {"SITE-A": "a", "SITE-B": "b"}, "publish_since": since},
            "messaging": {"client_cert": "/c", "client_key": "/k"},
            "individual_job_fields": {"optional": {"SubmitHost": meta("host"), **optional}},
        }
    )


def job(
    name: str = "slurm-1", stop: datetime = STOP, *, site: str = "a", cpu: int = 7_000, score: float = 14.2
) -> Record:
    components = (Component("Cores", 2, (Score("HEPscore23", score),)), Component("TotalCPU", cpu, ()))
    labels = {"site_id": (site,), "host": ("ce1",), "voms": ("/atlas/Role=pilot",), "user": ("alice",)}
    return Record(name, stop - timedelta(hours=1), components, stop, dict(labels))


def test_a_job_as_it_is_written() -> None:
    infrastructure = {"type": "ConstantField", "value": "grid"}
    made = configured(LocalUserId=meta("user"), FQAN=meta("voms"), InfrastructureType=infrastructure)
    row = job_row(made, job())
    assert isinstance(row, JobRow)
    (message,) = render_jobs([row])
    assert message.text == (
        "APEL-individual-job-message: v0.4\nSite: SITE-A\nSubmitHost: ce1\nLocalJobId: slurm-1\nLocalUserId: alice\n"
        "FQAN: /atlas/Role=pilot\nWallDuration: 3600\nCpuDuration: 7000\nProcessors: 2\nNodeCount: 1\n"
        "StartTime: 1710068400\nEndTime: 1710072000\nInfrastructureDescription: AUDITORD-UNKNOWN-UNKNOWN\n"
        "InfrastructureType: grid\nServiceLevel: {HEPscore23: 14.200}\n%%\n"
    )
    assert message.record_ids == ("slurm-1",)


def test_the_older_layout_names_the_benchmark_beside_its_value() -> None:
    row = job_row(configured("v0.3"), job())
    assert isinstance(row, JobRow)
    (message,) = render_jobs([row])
    assert "ServiceLevelType: HEPscore23\nServiceLevel: 14.200\n%%" in message.text
    assert validate(message.text) == []


def test_a_service_level_that_fields_name_counts() -> None:
    level = {"type": "ScoreField", "name": "HEPscore23", "component_name": "Cores"}
    made = configured("v0.3", ServiceLevelType={"type": "ConstantField", "value": "si2k"}, ServiceLevel=level)
    row = job_row(made, job())
    assert isinstance(row, JobRow)
    assert (row.fields["ServiceLevelType"], row.fields["ServiceLevel"]) == ("si2k", "14.200")


def test_a_part_of_a_time() -> None:
    made = configured(Queue={"type": "RecordField", "name": "stop_time", "modify": "month"})
    row = job_row(made, job())
    assert isinstance(row, JobRow)
    assert row.fields["Queue"] == "3"


def test_ids_too_long_for_apel_stay_different() -> None:
    rows = [job_row(configured(), job("é" * 255 + end)) for end in "ab"]
    ids = {row.fields["LocalJobId"] for row in rows if isinstance(row, JobRow)}
    assert len(ids) == 2
    assert all(len(each) <= 255 for each in ids)


@pytest.mark.parametrize(("field", "longest"), [("FQAN", 255), ("Queue", 100)])
def test_texts_are_cut_to_what_a_column_of_apel_takes(field: str, longest: int) -> None:
    record = msgspec.structs.replace(job(), meta={"site_id": ("a",), "host": ("ce1",), "long": ("x" * 256,)})
    row = job_row(configured("v0.4", None, **{field: meta("long")}), record)
    assert isinstance(row, JobRow)
    assert row.fields[field] == "x" * longest


def test_a_job_of_another_site_is_none_of_ours() -> None:
    assert job_row(configured(), job(site="c")) is None


@pytest.mark.parametrize(
    ("record", "reason"),
    [(job(score=0), "no score HEPscore23"), (job(score=1e9), "not from 0")],
)
def test_a_job_that_apel_would_refuse_is_listed(record: Record, reason: str) -> None:
    problem = job_row(configured(), record)
    assert isinstance(problem, Problem)
    assert (problem.subject, problem.jobs) == ("slurm-1", 1)
    assert reason in problem.reason


async def test_a_job_with_an_implausible_cpu_time_is_reported_with_what_its_processors_had() -> None:
    stored = [job("odd", cpu=147_587), job("sound", STOP + timedelta(seconds=1))]
    window = Window(STOP, STOP + timedelta(days=1))
    odd, remark, sound = [each async for each in individual_jobs(configured(), FilteringContext(stored=stored), window)]
    assert isinstance(odd, JobRow)
    assert isinstance(sound, JobRow)
    assert [(each.fields["WallDuration"], each.fields["CpuDuration"]) for each in (odd, sound)] == [
        ("3600", "7202"),
        ("3600", "7000"),
    ]
    assert str(remark) == "odd: an implausible CPU time, 147587 s in 3600 s: reported with 7202 s"


async def test_jobs_of_the_window_from_publish_since_on() -> None:
    stored = [job(str(day), STOP.replace(day=day), site="ab"[day % 2]) for day in range(1, 29)]
    window = Window(STOP.replace(day=5), STOP.replace(day=8))
    found = individual_jobs(configured(since="2024-03-06T00:00:00Z"), FilteringContext(stored=stored), window)
    assert [(row.record_id, row.site) async for row in found if isinstance(row, JobRow)] == [
        ("6", "SITE-A"),
        ("7", "SITE-B"),
    ]
    nothing = individual_jobs(configured(since="2025-01-01T00:00:00Z"), FilteringContext(stored=stored), window)
    assert [row async for row in nothing] == []
