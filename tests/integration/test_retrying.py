"""A retry of quarantined jobs asks their source again for what was not asked then."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from auditord.actions import Actions
from auditord.config.loading import load
from auditord.hooks import HookEntry, HookModule, load_hooks
from auditord.spool import QuarantineEntry, Spool
from auditord.store.opening import open_store
from auditord.supervisor import acting
from auditord.testing import make_record
from auditord_builtin import local
from auditord_hookspecs import (
    AuditordError,
    Batch,
    CollectorContext,
    CollectorKind,
    InvalidRecord,
    JobChoice,
    Produced,
    Quarantined,
    RunConfig,
    hookimpl,
)
from auditord_hookspecs.wire import decode_record
from tests.quarantined_entries import read_quarantine

pytestmark = pytest.mark.anyio

AT_ONCE = 3


class Source:
    """A batch system and its collector, which at first asks for too little."""

    def __init__(self) -> None:
        self.jobs: dict[str, Mapping[str, Any]] = {}
        self.asked: list[str] = []
        self.fault: str | None = None

    async def collect(self, _config: RunConfig, context: CollectorContext) -> AsyncIterator[Batch]:
        if context.job is None:
            return
        self.asked.append(context.job.job_id)
        if self.fault:
            raise AuditordError(self.fault)
        yield self.batch([name for name in context.job.job_id.split(",") if name in self.jobs], checkpoint="moved")

    def batch(self, names: Sequence[str], checkpoint: str | None = None) -> Batch:
        records, quarantined = list[Produced](), list[Quarantined]()
        for name in names:
            try:
                records.append(self.convert(None, {"id": name, **self.jobs[name]}))
            except InvalidRecord as error:
                quarantined.append(Quarantined(name, {"id": name, **self.jobs[name]}, str(error)))
        return Batch(records, quarantined, checkpoint=checkpoint)

    @staticmethod
    def convert(_config: object, raw: Any) -> Produced:
        if "memory" not in raw:
            raise InvalidRecord("column memory was not asked for then")
        if raw["memory"] is None:
            raise InvalidRecord("memory has no value")
        return Produced(make_record(f"j-{raw['id']}"), source_id=raw["id"])

    def module(self) -> ModuleType:
        @hookimpl
        def auditord_collectors() -> list[CollectorKind[Any]]:
            return [
                CollectorKind(
                    name="jobs",
                    config=RunConfig,
                    collect=self.collect,
                    convert=self.convert,
                    one_job=True,
                    job_of=lambda raw: JobChoice(raw["id"]),
                    jobs_at_once=AT_ONCE,
                )
            ]

        module = ModuleType("source")
        module.auditord_collectors = auditord_collectors  # type: ignore[attr-defined] # that is how modules work
        return module


@asynccontextmanager
async def owned(source: Source, folder: Path, **options: Any) -> AsyncGenerator[Actions, None]:
    modules = [local, source.module()]
    hooks = load_hooks([], [_entry(module) for module in modules])
    file = folder / "auditord.yml"
    document = {"state_dir": str(folder / "state"), "collectors": {"slurm": {"kind": "jobs", **options}}}
    file.write_text(json.dumps(document))  # JSON is YAML
    configuration = load([file], hooks.kinds, {}, hooks.resolve_secret)
    async with acting(configuration, hooks, now) as owner:
        yield owner


def _entry(module: ModuleType) -> HookEntry:
    return HookEntry(HookModule(module.__name__, module.__name__, "tests", "1"), lambda: module)


def now() -> datetime:
    return datetime.now(UTC)


async def quarantine(folder: Path, names: Sequence[str]) -> list[int]:
    """Jobs that were read without the column."""
    (folder / "state").mkdir(exist_ok=True)
    async with Spool.opened(folder / "state", now) as spool:
        batch = Batch(quarantined=[Quarantined(name, {"id": name}, "no value; make it optional") for name in names])
        await spool.enqueue("slurm", batch, ["local"])
        return [entry.quarantine_id for entry in await read_quarantine(spool)]


async def left(folder: Path) -> Sequence[QuarantineEntry]:
    async with Spool.opened_read_only(folder / "state", now) as spool:
        assert await spool.checkpoint("slurm") is None
        return await read_quarantine(spool)


async def test_jobs_of_a_renamed_collector_are_retried_by_its_successor(tmp_path: Path) -> None:
    source = Source()
    source.jobs = {"1": {"memory": 4}}
    (tmp_path / "state").mkdir()
    async with Spool.opened(tmp_path / "state", now) as spool:
        whole, lacking = (
            Quarantined("2", {"id": "2", "memory": 4}, "no site"),
            Quarantined("1", {"id": "1"}, "no value"),
        )
        await spool.enqueue("former", Batch(quarantined=[whole, lacking]), ["local"])
        await spool.enqueue("slurm", Batch(quarantined=[Quarantined("9", {"id": "9"}, "no value")]), ["local"])
        numbers = [entry.quarantine_id for entry in await read_quarantine(spool)]
    async with owned(source, tmp_path) as owner:
        alone = await owner.retry(numbers[:2])
        assert (alone.queued, set(alone.failed)) == (0, set(numbers[:2]))
        assert "retry with --collector NAME" in alone.failed[numbers[0]]
        mistyped = await owner.retry(numbers[:1], "slrum")
        assert mistyped.failed == {numbers[0]: "no enabled collector 'slrum'"}
        retried = await owner.retry(numbers[:2], "slurm")
        assert (retried.queued, retried.failed) == (2, {})
    assert [(entry.task, entry.source_id) for entry in await left(tmp_path)] == [("slurm", "9")]


async def test_jobs_are_asked_of_their_source_again_some_at_a_time(tmp_path: Path) -> None:
    source, names = Source(), ["1", "2", "3", "4"]
    numbers = await quarantine(tmp_path, names)
    source.jobs = {name: {"memory": 1} for name in names}
    async with owned(source, tmp_path) as owner:
        retried = await owner.retry(numbers)
    assert (retried.queued, retried.settled, retried.failed) == (4, 4, {})
    assert source.asked == ["1,2,3", "4"]
    assert await left(tmp_path) == []


class EnvironmentSource(Source):
    """A source that a variable of the instance's section names."""

    async def collect(self, _config: RunConfig, context: CollectorContext) -> AsyncIterator[Batch]:
        place = await context.run_command(["printenv", "PLACE"], timeout=timedelta(minutes=1))
        self.jobs = {name.decode(): {"memory": 1} for name in place.stdout.split()}
        async for batch in super().collect(_config, context):
            yield batch


async def test_their_source_is_asked_in_the_instances_environment(tmp_path: Path) -> None:
    (number,) = await quarantine(tmp_path, ["1"])
    async with owned(EnvironmentSource(), tmp_path, environment={"PLACE": "1"}) as owner:
        retried = await owner.retry([number])
    assert (retried.queued, retried.failed) == (1, {})


async def test_what_is_still_wrong_stays_with_todays_reason(tmp_path: Path) -> None:
    source = Source()
    good, bad, gone = await quarantine(tmp_path, ["good", "bad", "gone"])
    source.jobs = {"good": {"memory": 1}, "bad": {"memory": None}}
    async with owned(source, tmp_path) as owner:
        retried = await owner.retry([good, bad, gone])
    assert (retried.queued, retried.settled) == (1, 1)
    assert retried.failed == {
        bad: "memory has no value",
        gone: "column memory was not asked for then (its source no longer gives a record of it, or does not know it)",
    }
    assert {entry.source_id: entry.raw_json for entry in await left(tmp_path)} == {
        "bad": {"id": "bad", "memory": None},  # what the source says today
        "gone": {"id": "gone"},
    }


async def test_jobs_collected_to_replace_their_records_replace_them_when_retried(tmp_path: Path) -> None:
    """One can be converted as it is, and the source must be asked about the other."""
    source, stored = Source(), [make_record(f"j-{name}", cores=8) for name in ("1", "2")]
    jobs = [Quarantined("1", {"id": "1", "memory": 1}, "no site"), Quarantined("2", {"id": "2"}, "no memory")]
    (tmp_path / "state").mkdir()
    async with Spool.opened(tmp_path / "state", now) as spool:
        await spool.enqueue("slurm", Batch(stored), ["local"])
        await spool.enqueue("slurm", Batch(quarantined=jobs), ["local"], "replace")
        numbers = [entry.quarantine_id for entry in await read_quarantine(spool)]
    source.jobs = {"2": {"memory": 1}}
    async with owned(source, tmp_path) as owner:
        assert (await owner.retry(numbers)).failed == {}
    async with open_store(f"sqlite://{tmp_path}/state/records.db", counted_keys=()) as store:
        found = [await store.get(each.record_id) for each in stored]
        assert (await store.counts()).differences == 0
    assert [decode_record(text) for text in found if text] == [make_record("j-1"), make_record("j-2")]


async def test_a_source_that_fails_costs_nothing(tmp_path: Path) -> None:
    source = Source()
    source.fault = "slurmdbd is away"
    (number,) = await quarantine(tmp_path, ["1"])
    async with owned(source, tmp_path) as owner:
        retried = await owner.retry([number])
    assert "slurmdbd is away" in retried.failed[number]
    assert len(await left(tmp_path)) == 1


async def test_whatever_makes_the_record_later_settles_the_entry(tmp_path: Path) -> None:
    source = Source()
    await quarantine(tmp_path, ["1", "2"])
    source.jobs = {"1": {"memory": 1}}
    async with Spool.opened(tmp_path / "state", now) as spool:
        await spool.enqueue("another", source.batch(["1"]), ["local"])
        assert len(await read_quarantine(spool)) == 2
        await spool.enqueue("slurm", source.batch(["1"]), ["local"])
    assert [entry.source_id for entry in await left(tmp_path)] == ["2"]
