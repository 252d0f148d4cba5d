"""Audits of a collector on both stores: every state that a run can be in, repairs, and what they must not do."""

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

import anyio
import msgspec
import pytest

from auditord import supervisor
from auditord.actions import Actions, Note, RunRequest
from auditord.audit.values import AuditReport, AuditRequest
from auditord.config.loading import load
from auditord.errors import StoreUnavailable, UnknownInstance, UnsuitableRequest
from auditord.hooks import HookEntry, HookModule, Hooks, load_hooks
from auditord.spool import Spool
from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store, open_store_for_reading
from auditord.store.reading import StoredRecords
from auditord.tasks.runs import Turn
from auditord.testing import make_record
from auditord.testing.records import EPOCH
from auditord_builtin import local, privacy, secrets
from auditord_hookspecs import (
    AuditordError,
    Batch,
    CollectorContext,
    CollectorKind,
    Produced,
    Quarantined,
    Reach,
    Record,
    RecordQuery,
    RunConfig,
    Window,
    hookimpl,
)
from auditord_hookspecs.wire import decode_record

pytestmark = pytest.mark.anyio

DAY: Final = timedelta(days=1)
WINDOW: Final = Window(EPOCH, EPOCH + 10 * DAY)
KEYS: Final = ("group_id", "site_id", "user_id")
NOBODY: Final = Provenance(EPOCH, "test")


class SilentObserver:
    """An observer that nobody asks."""

    def show_progress(self, fraction: float) -> None: ...

    def show_line(self, line: str) -> None: ...

    def show_output(self, text: str) -> None: ...

    async def show_batch(self, batch: Batch) -> None: ...


@dataclass
class Source:
    """A batch system of the test's: what it lists, and how far back it goes."""

    batches: list[Batch] = field(default_factory=list[Batch])
    reach: Reach = field(default_factory=Reach)
    fails: str | None = None
    until: Callable[[], Awaitable[bool]] | None = None
    asked: list[Window | None] = field(default_factory=list[Window | None])
    meanwhile: Callable[[], Awaitable[object]] | None = None
    collects: Batch = field(default_factory=Batch)
    prefix: str = "job"

    async def inventory(self, _: RunConfig, context: CollectorContext) -> AsyncGenerator[Batch, None]:
        assert context.dry_run
        self.asked.append(context.window)
        for batch in self.batches:
            yield batch
        while self.until is not None and not await self.until():  # noqa: ASYNC110 it has no event
            await anyio.sleep(0.01)
        if self.meanwhile is not None:
            await self.meanwhile()
        if self.fails is not None:
            raise AuditordError(self.fails)

    async def go_back(self, _: RunConfig, __: CollectorContext) -> Reach:
        return self.reach

    async def collect(self, _: RunConfig, __: CollectorContext) -> AsyncGenerator[Batch, None]:
        yield self.collects

    def module(self) -> ModuleType:
        @hookimpl
        def auditord_collectors() -> list[CollectorKind[Any]]:
            known = CollectorKind(
                name="jobs",
                config=RunConfig,
                collect=self.collect,
                inventory=self.inventory,
                reach=self.go_back,
                prefix=lambda _: self.prefix,
            )
            blind = CollectorKind(
                name="blind",
                config=RunConfig,
                collect=self.collect,
                inventory=self.inventory,
                no_inventory=lambda _: "set eyes",
            )
            return [known, blind, CollectorKind(name="dull", config=RunConfig, collect=self.collect)]

        module = ModuleType("source")
        setattr(module, "auditord_collectors", auditord_collectors)  # noqa: B010 modules have no such attribute
        return module


def entry(module: ModuleType) -> HookEntry:
    return HookEntry(HookModule(module.__name__, module.__name__, "tests", "1"), lambda: module)


@dataclass
class AuditedDaemon:
    """A daemon's state folder, record store and source."""

    folder: Path
    url: str
    source: Source
    sections: dict[str, Any] = field(default_factory=dict[str, Any])
    now: Callable[[], datetime] = lambda: EPOCH + 20 * DAY

    def hooks(self) -> Hooks:
        return load_hooks([], [entry(each) for each in (local, privacy, secrets, self.source.module())])

    @asynccontextmanager
    async def acting(self) -> AsyncGenerator[Actions, None]:
        hooks, file = self.hooks(), self.folder / "auditord.yml"
        document = {
            "state_dir": str(self.folder / "state"),
            "store": {"url": self.url},
            "collectors": {"jobs": {"kind": "jobs"}, "blind": {"kind": "blind"}, "dull": {"kind": "dull"}},
            **self.sections,
        }
        file.write_bytes(msgspec.json.encode(document))
        async with supervisor.acting(load([file], hooks.kinds, {}, hooks.resolve_secret), hooks, self.now) as actions:
            yield actions

    async def audit(self, **options: Any) -> AuditReport:
        async with self.acting() as actions:
            return await actions.audit(AuditRequest("jobs", WINDOW, **options), SilentObserver())

    async def collect(self) -> None:
        async with self.acting() as actions:
            await actions.run(RunRequest("jobs"), SilentObserver())

    async def store(self, *records: Record) -> None:
        async with open_store(self.url, counted_keys=KEYS) as store:
            await store.add_all(records, NOBODY, Duplicates.SAME_RUN, atomic=False)

    async def stored(self) -> Mapping[str, Record]:
        async with (
            open_store(self.url, counted_keys=KEYS) as store,
            StoredRecords(store).stream(RecordQuery()) as records,
        ):
            return {record.record_id: record async for record in records}


@pytest.fixture(params=["sqlite", "postgresql"])
def audited(request: pytest.FixtureRequest, tmp_path: Path) -> AuditedDaemon:
    if request.param == "sqlite":
        return AuditedDaemon(tmp_path, f"sqlite://{tmp_path / 'records.db'}", Source())
    return AuditedDaemon(tmp_path, request.getfixturevalue("new_postgres_url")(), Source())


def job(number: int, day: int = 0, site_id: str = "A", **options: Any) -> Record:
    return make_record(f"job-{number}", start=EPOCH + day * DAY, site_id=site_id, **options)


def states(report: AuditReport) -> Counter[str]:
    return +sum((Counter(each.counts) for each in report.days), Counter[str]())


async def test_equal_sides_are_complete(audited: AuditedDaemon) -> None:
    records = [job(n, day=n % 3) for n in range(6)]
    await audited.store(*records)
    audited.source.batches = [Batch(records[:3]), Batch(records[3:], skipped={"never started": 2})]
    report = await audited.audit()
    assert (report.complete, states(report), report.skipped) == (True, {"stored": 6}, {"never started": 2})
    assert [(each.day, each.site, each.counts) for each in report.days] == [
        ("2026-01-01", "A", {"stored": 2}),
        ("2026-01-02", "A", {"stored": 2}),
        ("2026-01-03", "A", {"stored": 2}),
    ]
    assert audited.source.asked == [WINDOW]


async def test_each_state_is_named_by_day_and_site(audited: AuditedDaemon) -> None:
    changed, begun = job(2, cores=8), job(3, day=1, runtime=None)
    await audited.store(job(1), changed, begun, job(9, day=2, site_id="B"), job(8, day=20), make_record("other-1"))
    audited.source.reach = Reach(remembers=EPOCH - DAY)
    audited.source.batches = [Batch([job(1), job(2), job(3, day=1), job(4, day=1)])]
    report = await audited.audit()
    assert states(report) == {"stored": 1, "different": 1, "unclosed": 1, "missing": 1, "extra": 1}
    found = {each.record_id: (each.state, each.day, each.site) for each in report.discrepancies}
    assert found == {
        "job-2": ("different", "2026-01-01", "A"),
        "job-3": ("unclosed", "2026-01-02", "A"),
        "job-4": ("missing", "2026-01-02", "A"),
        "job-9": ("extra", "2026-01-03", "B"),
    }
    [detail] = [each.detail for each in report.discrepancies if each.state == "different"]
    assert detail == (
        'components: [{"name":"Cores","amount":8,"scores":[]}] stored, '
        '[{"name":"Cores","amount":1,"scores":[]}] in the source'
    )
    assert not report.complete
    assert await audited.stored() == await audited.stored()


async def test_an_audit_changes_nothing(audited: AuditedDaemon) -> None:
    await audited.store(job(1, cores=2))
    audited.source.batches = [Batch([job(1), job(2)])]
    before = await audited.stored()
    await audited.audit()
    assert await audited.stored() == before


async def test_repair_collects_what_is_missing_once(audited: AuditedDaemon) -> None:
    await audited.store(job(1), job(2, cores=8), job(3, runtime=None))
    audited.source.batches = [Batch([job(1), job(2), job(3), job(4), job(4)])]
    report = await audited.audit(repair=True)
    assert (report.repaired, report.replaced, report.complete) == (2, 0, False)
    expected = {"job-1": job(1), "job-2": job(2, cores=8), "job-3": job(3), "job-4": job(4)}
    assert await audited.stored() == expected
    again = await audited.audit(repair=True)
    assert (again.repaired, states(again)) == (0, {"stored": 3, "different": 1})
    assert await audited.stored() == expected


async def test_replace_overwrites_on_purpose_and_keeps_the_history(audited: AuditedDaemon) -> None:
    await audited.store(job(2, cores=8))
    audited.source.batches = [Batch([job(2)])]
    report = await audited.audit(replace="wrong core count until March", by="alice")
    assert (report.replaced, report.complete) == (1, True)
    assert await audited.stored() == {"job-2": job(2)}
    async with open_store(audited.url, counted_keys=KEYS) as store:
        [version] = await store.history("job-2")
    assert (version.reason, version.changed_by) == ("wrong core count until March", "user:alice")
    assert decode_record(version.document) == job(2, cores=8)
    assert states(await audited.audit()) == {"stored": 1}


async def test_the_run_counts_and_not_the_id(audited: AuditedDaemon) -> None:
    """A recycled job number: the stored record is of another run, and the run itself is under its second id."""
    await audited.store(job(1, day=0), make_record("job-1-again", start=EPOCH + 5 * DAY, site_id="A"))
    audited.source.batches = [Batch([Produced(job(1, day=5), "job-1-again"), Produced(job(1, day=7), "job-1-third")])]
    report = await audited.audit(repair=True)
    assert {each.record_id: each.state for each in report.discrepancies} == {"job-1": "missing"}
    assert set(await audited.stored()) == {"job-1", "job-1-again", "job-1-third"}


async def test_every_run_of_one_job_number_is_audited(audited: AuditedDaemon) -> None:
    """The node of the first run failed, and Slurm ran the job again under the same number."""
    runs = [Produced(job(1, day=day), f"job-1-{day}") for day in (1, 2, 3)]
    audited.source.batches = [Batch(runs[:2]), Batch([*runs[2:], *runs])]
    assert states(await audited.audit()) == {"missing": 3}
    await audited.store(job(1, day=1))
    report = await audited.audit(repair=True)
    assert (states(report), report.repaired) == ({"stored": 1, "missing": 2}, 2)
    assert set(await audited.stored()) == {"job-1", "job-1-2", "job-1-3"}
    assert states(await audited.audit()) == {"stored": 3}


async def test_what_arrives_during_the_audit_is_no_extra(audited: AuditedDaemon) -> None:
    """A repaired run is stored under its second id before the store is asked for what it has besides."""
    await audited.store(job(1, day=0))
    audited.source.batches = [Batch([Produced(job(1, day=7), "job-1-third")])]

    async def arrived() -> bool:
        async with open_store_for_reading(audited.url) as store:
            return await store.get("job-1-third") is not None

    audited.source.until = arrived
    report = await audited.audit(repair=True)
    assert {each.record_id: each.state for each in report.discrepancies} == {"job-1": "missing"}


async def test_what_is_on_its_way_or_in_quarantine_is_not_missing(audited: AuditedDaemon) -> None:
    audited.source.batches = [
        Batch(
            [job(1), Produced(job(2), source_id="two"), job(3)],
            [Quarantined("four", {}, "no cores"), Quarantined("five", {}, "no start")],
        )
    ]
    async with audited.acting():
        pass  # makes spool and store
    async with Spool.opened(audited.folder / "state", audited.now) as spool:
        await spool.enqueue("jobs", Batch(quarantined=[Quarantined("two", {}, "?"), Quarantined("four", {}, "?")]), [])
        await spool.enqueue("jobs", Batch([job(1)]), ["local"])
        (queued,) = await spool.claim("local", 1)
        await spool.settle("local", [], {queued.entry_id: "refused"})
        await spool.enqueue("jobs", Batch([job(3)]), ["local"])
        (queued,) = await spool.claim("local", 1)
        await spool.postpone({queued.entry_id: audited.now() + DAY})
    async with audited.acting() as actions:
        # The sender takes what it was to send; the audit may find it before or after.
        report = await actions.audit(AuditRequest("jobs", WINDOW), SilentObserver())
    found = states(report)
    assert found.pop("queued", 0) + found.pop("stored", 0) == 1
    assert found == {"quarantined": 3, "missing": 1}
    assert not report.complete
    listed = {each.record_id: (each.state, each.day, each.detail) for each in report.discrepancies}
    assert listed.pop("five") == ("missing", "", "no start")
    assert listed.pop("four") == ("quarantined", "", "no cores")
    assert {state for state, _, _ in listed.values()} == {"quarantined"}


async def test_a_job_that_cannot_be_converted_is_repaired_into_quarantine(audited: AuditedDaemon) -> None:
    audited.source.batches = [Batch(quarantined=[Quarantined("five", {}, "no start")])]
    repairing = await audited.audit(repair=True)
    assert (repairing.repaired, repairing.complete) == (0, False), "it still has no record"
    assert repairing.discrepancies[0].detail == "it is in quarantine now: no start"
    report = await audited.audit()
    assert (states(report), report.complete, report.quarantined_beside) == ({"quarantined": 1}, False, 0)


async def test_a_repair_remembers_the_runs_that_it_stores(audited: AuditedDaemon) -> None:
    await audited.store(job(2))
    known = {"run 1": audited.now() + DAY}
    audited.source.batches = [
        Batch([job(1)], seen=known),
        Batch([job(2)], seen={"run 2": audited.now() + DAY}),
        Batch(quarantined=[Quarantined("five", {}, "no start")], seen={"run 5": audited.now() + DAY}),
    ]
    assert (await audited.audit(repair=True)).repaired == 1
    async with Spool.opened(audited.folder / "state", audited.now) as spool:
        assert await spool.find_seen("jobs", ["run 1", "run 2", "run 5"]) == {"run 1", "run 5"}


async def test_jobs_in_quarantine_that_the_source_does_not_list_are_counted(audited: AuditedDaemon) -> None:
    audited.source.batches = [Batch(quarantined=[Quarantined("five", {}, "no start")])]
    await audited.audit(repair=True)
    audited.source.batches = []
    report = await audited.audit()
    assert (report.complete, report.quarantined_beside) == (True, 1)


async def test_what_was_deleted_on_purpose_stays_deleted(audited: AuditedDaemon) -> None:
    await audited.store(job(1))
    audited.source.batches = [Batch([job(1)])]
    async with audited.acting() as actions:
        await actions.records.delete(["job-1"], Note("not ours", "alice"))
    report = await audited.audit(repair=True)
    assert (report.complete, states(report), await audited.stored()) == (True, {"deleted": 1}, {})


async def test_what_the_source_has_forgotten_is_not_extra(audited: AuditedDaemon) -> None:
    await audited.store(job(1), job(2, day=5), job(3, day=6))
    audited.source.reach = Reach(remembers=EPOCH + 5 * DAY)
    audited.source.batches = [Batch([job(3, day=6)])]
    report = await audited.audit()
    assert states(report) == {"forgotten": 1, "extra": 1, "stored": 1}
    assert report.horizon == "2026-01-06T00:00:00Z"


async def test_records_from_before_their_ids_named_the_cluster_are_no_extras(audited: AuditedDaemon) -> None:
    audited.source.prefix = "job-{cluster}"
    audited.source.reach = Reach(remembers=EPOCH)
    ids = ("job-1", "job-1-1767225600", "job-7_4-1767225600", "job-13+0-1767225600", "job-c-1-2", "job-2024a-3_1")
    await audited.store(*(make_record(each, start=EPOCH, site_id="A") for each in ids))
    report = await audited.audit()
    assert {each.record_id: each.state for each in report.discrepancies} == {
        "job-c-1-2": "extra",
        "job-2024a-3_1": "extra",
    }


async def test_where_the_source_does_not_say_its_first_job_is_the_horizon(audited: AuditedDaemon) -> None:
    await audited.store(job(1), job(3, day=6), job(4, day=7))
    audited.source.batches = [Batch([job(3, day=6)])]
    assert states(await audited.audit()) == {"forgotten": 1, "extra": 1, "stored": 1}
    audited.source.batches = []
    assert states(await audited.audit()) == {"forgotten": 3}


async def test_what_the_collector_was_never_to_read_is_not_missing(audited: AuditedDaemon) -> None:
    audited.source.reach = Reach(collects=EPOCH + 5 * DAY)
    audited.source.batches = [Batch([job(1), job(2, day=5)])]
    report = await audited.audit(repair=True)
    assert (states(report), report.repaired) == ({"earlier": 1, "missing": 1}, 1)
    assert set(await audited.stored()) == {"job-2"}


async def test_jobs_that_have_ids_of_an_earlier_prefix_are_not_missing(audited: AuditedDaemon) -> None:
    """A repair would store each of them a second time."""
    await audited.collect()
    audited.source.prefix = "work"
    later = make_record("work-2", start=EPOCH + 5 * DAY, site_id="A")
    audited.source.batches = [Batch([make_record("work-1", start=EPOCH, site_id="A"), later])]
    assert states(await audited.audit(repair=True)) == {"earlier": 2}, "no run has used the new prefix yet"
    audited.now = lambda: EPOCH + 2 * DAY
    for _ in range(2):
        await audited.collect()
    audited.now = lambda: EPOCH + 20 * DAY
    await audited.collect()
    assert states(await audited.audit(repair=True)) == {"earlier": 1, "missing": 1}
    assert set(await audited.stored()) == {"work-2"}


async def test_records_are_compared_as_they_are_kept(audited: AuditedDaemon) -> None:
    key = audited.folder / "key"
    key.write_text("0123456789abcdef0123456789abcdef")
    key.chmod(0o600)
    audited.sections = {"transforms": {"names": {"kind": "pseudonyms", "key": f"file:{key}"}}}
    audited.source.batches = [Batch([job(1, user_id="alice")])]
    assert (await audited.audit(repair=True)).repaired == 1
    [record] = (await audited.stored()).values()
    assert record.meta is not None
    assert record.meta["user_id"] != ("alice",)
    assert states(await audited.audit()) == {"stored": 1}
    audited.source.batches = [Batch([job(1, user_id="bob")])]
    assert (await audited.audit(replace="bob ran it", by="alice")).replaced == 1
    assert states(await audited.audit()) == {"stored": 1}


async def test_a_collector_runs_while_it_is_audited_and_what_it_makes_is_not_extra(audited: AuditedDaemon) -> None:
    await audited.store(job(1), job(9))
    audited.source.batches, audited.source.collects = [Batch([job(1), job(2)])], Batch([job(2), job(3)])
    async with audited.acting() as actions:

        async def run() -> None:
            assert (await actions.run(RunRequest("jobs"), SilentObserver())).error is None
            with anyio.fail_after(60):
                while "job-3" not in await audited.stored():  # noqa: ASYNC110 another task stores it
                    await anyio.sleep(0.01)

        audited.source.meanwhile = run
        report = await actions.audit(AuditRequest("jobs", WINDOW, repair=True), SilentObserver())
    assert (states(report), report.repaired) == ({"stored": 1, "missing": 1, "extra": 1}, 1)
    assert set(await audited.stored()) == {"job-1", "job-2", "job-3", "job-9"}


async def test_what_a_run_has_stored_before_it_broke_off_is_not_extra(
    audited: AuditedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is written although the run that waits for it is cancelled."""
    enqueue = Spool.enqueue

    async def enqueue_and_break_off(spool: Spool, *batch: Any) -> NoReturn:
        await enqueue(spool, *batch)
        raise StoreUnavailable("broken off")

    await audited.store(job(1))
    audited.source.batches, audited.source.collects = [Batch([job(1)])], Batch([job(3)])
    async with audited.acting() as actions:

        async def run() -> None:
            with monkeypatch.context() as patched:
                patched.setattr(Spool, "enqueue", enqueue_and_break_off)
                assert (await actions.run(RunRequest("jobs"), SilentObserver())).error == "broken off"
            with anyio.fail_after(60):
                while "job-3" not in await audited.stored():  # noqa: ASYNC110 another task stores it
                    await anyio.sleep(0.01)

        audited.source.meanwhile = run
        report = await actions.audit(AuditRequest("jobs", WINDOW), SilentObserver())
    assert states(report) == {"stored": 1}


async def test_what_a_run_holds_is_waited_for_and_not_missing(
    audited: AuditedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inventory lists a job that a run has read, and not kept yet."""
    audited.source.batches = [Batch([job(1)])]
    reading, wanted = anyio.Event(), anyio.Event()

    async def collect_slowly(_: RunConfig, __: CollectorContext) -> AsyncGenerator[Batch, None]:
        reading.set()
        await wanted.wait()
        yield Batch([job(1)])

    def borrow(turn: Turn) -> AbstractAsyncContextManager[None]:
        if reading.is_set():
            wanted.set()
        return at_last(turn)

    at_last = Turn.borrow
    monkeypatch.setattr(Turn, "borrow", borrow)
    monkeypatch.setattr(audited.source, "collect", collect_slowly)
    async with audited.acting() as actions, anyio.create_task_group() as group:
        group.start_soon(actions.run, RunRequest("jobs"), SilentObserver())
        await reading.wait()
        report = await actions.audit(AuditRequest("jobs", WINDOW), SilentObserver())
        wanted.set()
        assert report.complete
        assert states(report).keys() <= {"queued", "stored"}


async def test_an_inventory_that_breaks_off_finds_no_extras(audited: AuditedDaemon) -> None:
    await audited.store(job(1), job(2))
    audited.source.batches, audited.source.fails = [Batch([job(1)])], "sacct was killed"
    report = await audited.audit()
    assert (report.error, report.extras_sought, report.complete) == ("sacct was killed", False, False)
    assert states(report) == {"stored": 1}


async def test_a_collector_without_inventory_is_refused_by_name(audited: AuditedDaemon) -> None:
    async with audited.acting() as actions:
        for name, reason in {"dull": "kind dull cannot list its source", "blind": "set eyes"}.items():
            with pytest.raises(UnsuitableRequest, match=f"{name}: {reason}"):
                await actions.audit(AuditRequest(name, WINDOW), SilentObserver())
        with pytest.raises(UnknownInstance, match="no enabled collector 'nobody'"):
            await actions.audit(AuditRequest("nobody", WINDOW), SilentObserver())


async def test_many_findings_are_counted_and_some_are_listed(audited: AuditedDaemon) -> None:
    audited.source.batches = [Batch([job(n) for n in range(1_500)])]
    with anyio.fail_after(120):
        report = await audited.audit()
    assert (len(report.discrepancies), report.unlisted, states(report)) == (1_000, 500, {"missing": 1_500})
