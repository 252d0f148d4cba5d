import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from auditord.testing import FakePluginContext
from auditord_builtin.apel.accelerators import accelerator_messages
from auditord_builtin.apel.config import ApelConfig
from auditord_builtin.apel.messages import Message
from auditord_builtin.apel.validation import validate
from auditord_hookspecs import Component, Record
from auditord_hookspecs.months import Month

APRIL = Month(2026, 4)
pytestmark = pytest.mark.anyio


def configured(**accelerators: Any) -> ApelConfig:  # Any: as in a file
    section = {"associated_record_type": "summary", "topic": "gpus", **accelerators}
    return ApelConfig.model_validate(
        {
            "site": {"sites_to_report": {"SITE-A": "a"}},
            "messaging": {"client_cert": "/c", "client_key": "/k"},
            "summary_fields": {
                "mandatory": {
                    "VO": {"type": "MetaField", "name": "vo"},
                    "SubmitHost": {"type": "ConstantField", "value": "ce1"},
                }
            },
            "accelerators": section if accelerators else None,
        }
    )


def job(name: str, gpus: int | None, *, vo: str = "bio", busy: int | None = 1800) -> Record:
    components = [Component("Cores", 4, ())]
    components += [] if gpus is None else [Component("GPU", gpus, ())]
    components += [] if busy is None else [Component("GPUTime", busy, ())]
    start = datetime(2026, 4, 2, tzinfo=UTC)
    return Record(name, start, tuple(components), start + timedelta(hours=1), {"site_id": ("a",), "vo": (vo,)})


async def messages(config: ApelConfig, *stored: Record, most: int = 900_000) -> list[Message]:
    made, problems = await accelerator_messages(config, FakePluginContext(stored=stored), "SITE-A", APRIL, most)
    assert not problems
    assert all(validate(message.text) == [] for message in made)
    return list(made)


async def test_jobs_with_as_many_gpus_make_one_record() -> None:
    stored = [job("1", 2), job("2", 2), job("3", 4), job("4", 0), job("5", None)]
    (message,) = await messages(configured(model={"type": "ConstantField", "value": "H100"}), *stored)
    document = json.loads(message.text)
    common = {
        "MeasurementMonth": 4,
        "MeasurementYear": 2026,
        "AssociatedRecordType": "summary",
        "AssociatedRecord": "ce1",
        "FQAN": "bio",
        "SiteName": "SITE-A",
        "Type": "GPU",
        "Model": "H100",
    }
    assert (document["Type"], document["Version"], message.records) == ("APEL-accelerator-message", "0.1", 2)
    assert document["UsageRecords"] == [
        {**common, "Count": 2, "AvailableDuration": 7200, "ActiveDuration": 7200},
        {**common, "Count": 4, "AvailableDuration": 3600, "ActiveDuration": 3600},
    ]


async def test_nothing_is_made_unless_it_is_asked_for() -> None:
    assert await messages(configured(), job("1", 2)) == []


async def test_what_was_busy_is_reported_where_it_is_known() -> None:
    active = {"type": "ComponentField", "name": "GPUTime"}
    stored = [job("1", 1), job("2", 1, busy=None), job("3", None, busy=None)]
    made, problems = await accelerator_messages(
        configured(active=active), FakePluginContext(stored=stored), "SITE-A", APRIL
    )
    assert json.loads(made[0].text)["UsageRecords"][0]["ActiveDuration"] == 1800
    assert [(problem.reason, problem.jobs) for problem in problems] == [("no component GPUTime: left out", 1)]


async def test_messages_are_split_and_halved_between_records() -> None:
    stored = [job(str(number), 1, vo=f"vo{number:03}") for number in range(100)]
    made = await messages(configured(type="GPU"), *stored, most=30_000)
    halves = [half for message in made for half in message.halves()]
    assert len(made) > 1
    for parts in (made, halves):
        assert all(validate(message.text) == [] for message in parts)
        found = [record["FQAN"] for message in parts for record in json.loads(message.text)["UsageRecords"]]
        assert found == [f"vo{number:03}" for number in range(100)]


@pytest.mark.parametrize("text", ['{"UsageRecords": [{}]}', "{}", "{", '{"UsageRecords": 5}'])
def test_what_the_draft_does_not_know_is_refused(text: str) -> None:
    assert validate(text)
