"""A state that an earlier version saved is read, and nothing of it is sent again."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from auditord_builtin.apel.config import ApelConfig
from auditord_builtin.apel.publishing import publish
from auditord_hookspecs import Component, Record, Score
from tests.builtin.apel.apel_settings import apel_section
from tests.builtin.apel.test_publishing import Recorder
from tests.filtering_context import FilteringContext

SAVED: Final = json.loads((Path(__file__).parent / "state_of_1_0.json").read_text())
"""The states after reports of :func:`stored`, by message type; as version 1.0.0 writes them."""

pytestmark = pytest.mark.anyio


def stored() -> list[Record]:
    return [_record(number) for number in range(40)]


def _record(number: int) -> Record:
    stop = datetime(2026, 1 + number % 3, 1 + number % 27, number % 24, number, tzinfo=UTC)
    scores = (Score("HEPscore23", 10.25),) if number % 5 else (Score("HS06", 11.5),)
    components = [Component("Cores", 1 + number % 3, scores), Component("TotalCPU", 1000 + 37 * number, ())]
    components += [Component("GPU", 1 + number % 2, ())] if number % 4 == 0 else []
    meta: dict[str, tuple[str, ...]] = {
        "site_id": ("a" if number % 7 else "b",),
        "voms": (f"/vo{number % 3}",),
        "submit_host": (f"CE{number % 2}",),
        "collector_type": ("slurm",),
    }
    return Record(f"job-{number}", stop - timedelta(seconds=3600 + number), tuple(components), stop, meta)


def configured(message_type: str) -> ApelConfig:
    section: dict[str, Any] = apel_section(
        sites={"SITE-A": ["a"], "SITE-B": ["b"]}, since=datetime(2026, 1, 1, tzinfo=UTC)
    )
    section["message_type"] = message_type
    section["benchmarks"] = [{"type": "HEPscore23", "score": "HEPscore23"}, {"type": "hepspec", "score": "HS06"}]
    if message_type == "summaries":
        section["accelerators"] = {"associated_record_type": "cloud", "topic": "gpus"}
    return ApelConfig.model_validate(section)


@pytest.mark.parametrize("message_type", ["summaries", "individual_jobs"])
async def test_what_an_earlier_version_reported_is_not_sent_again(message_type: str) -> None:
    state = SAVED["jobs" if message_type == "individual_jobs" else message_type]
    context = FilteringContext(
        instance="apel",
        moment=datetime(2026, 6, 3, 12, tzinfo=UTC),
        stored=stored(),
        state=json.loads(json.dumps(state)),
    )
    broker = Recorder()
    await publish(configured(message_type), context, broker, all_months=True)
    assert broker.messages == []
    sites: dict[str, Any] = {site: {**saved, "looked": "2026-06-03"} for site, saved in state["sites"].items()}
    assert msgspec.json.decode(msgspec.json.encode(context.state)) == {**state, "sites": sites}
    context.stored = [*stored(), _record(47)]
    await publish(configured(message_type), context, broker, all_months=True)
    assert broker.taken() == [("SITE-A", "2026-03")]
