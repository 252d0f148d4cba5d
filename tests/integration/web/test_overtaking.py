"""Acknowledged records that wait in the spool decide as if they were in the store: same verdicts, same order."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from auditord.actions import Note
from auditord.duplicates import Duplicates
from auditord.ingest import Ingest, StoreSink
from auditord.tasks.demands import RecordEditor
from tests.api_server import AWAY, NOW, Api, api_server, record
from tests.quarantined_entries import read_quarantine

pytestmark = pytest.mark.anyio

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-01T00:30:00Z"
STOP = "2026-01-01T01:00:00Z"
COMPONENTS = record("any")["components"]


@dataclass(frozen=True)
class InterruptedServer:
    """A server whose store goes away and comes back; the queue moves when the test says so."""

    api: Api
    duplicates: Duplicates = Duplicates.SAME_RUN

    def away(self) -> None:
        self.api.faults.store = AWAY

    def back(self) -> None:
        self.api.faults.store = None

    async def post(self, *records: Mapping[str, object]) -> tuple[int, bytes]:
        path, body = ("/record", records[0]) if len(records) == 1 else ("/records", list(records))
        answer = await self.api.ask("POST", path, body)
        return answer.status, answer.body

    async def put(self, record_id: str, stop: str = STOP) -> int:
        body: object = {"record_id": record_id, "components": list[object](), "stop_time": stop}
        return (await self.api.ask("PUT", "/record", body)).status

    async def verdicts(self, *records: Mapping[str, object]) -> list[str]:
        answer = await self.api.post(list(records))
        assert answer.status in {200, 207}, answer.body
        return [each["verdict"] for each in answer.json["verdicts"]]

    async def drain(self) -> None:
        """Move the whole queue into the store, as the sender does."""
        sink = StoreSink(self.api.store, lambda: NOW, self.duplicates)
        while claimed := await self.api.spool.claim("local", 2):
            refused = await sink.deliver([one.entry for one in claimed])
            kept = [one.entry_id for at, one in enumerate(claimed) if at not in refused]
            await self.api.spool.settle("local", kept, {claimed[at].entry_id: why for at, why in refused.items()})

    async def stored(self) -> dict[str, tuple[str, str | None]]:
        """Start and stop of every record in the store, by id; nothing may be in quarantine."""
        assert await read_quarantine(self.api.spool) == []
        answer = await self.api.get("/records")
        found: dict[str, tuple[str, str | None]] = {}
        for line in answer.body.replace(b"}{", b"}\n{").splitlines():
            one: Any = msgspec.json.decode(line)  # Any: JSON
            found[one["record_id"]] = (one["start_time"], one["stop_time"])
        return found


@pytest.fixture
async def trial(
    tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[InterruptedServer, None]:
    # On a busy machine a real write may take longer than clients wait: another run of a record that only the silent
    # store knows would then be queued. Here the store is away when the test says so, and never else.
    monkeypatch.setattr("auditord.store.postgres.store.WRITE_WITHIN", 120.0)
    async with api_server(tmp_path, store_url=store_url) as api:
        yield InterruptedServer(api)


def run(record_id: str = "x", start: str = EARLY, stop: str | None = STOP, **more: object) -> dict[str, object]:
    return record(record_id, start_time=start, stop_time=stop, **more)


EXISTS = (500, b"RECORD_EXISTS")
STORED = (200, b"")


@pytest.mark.parametrize("back", [True, False], ids=["store back, queue not drained", "store still away"])
async def test_another_run_does_not_overtake_a_post_in_the_spool(trial: InterruptedServer, *, back: bool) -> None:
    trial.away()
    assert await trial.post(run(start=EARLY)) == STORED
    if back:
        trial.back()
    assert await trial.post(run(start=LATE)) == EXISTS
    assert await trial.post(run("y"), run(start=LATE)) == EXISTS
    assert await trial.verdicts(run("z"), run(start=LATE)) == ["added" if back else "queued", "exists"]
    trial.back()
    await trial.drain()
    assert await trial.stored() == {"x": (EARLY, STOP), "z": (EARLY, STOP)}


async def test_the_verdicts_are_those_of_the_store(trial: InterruptedServer) -> None:
    trial.away()
    assert await trial.post(run("open", stop=None), run("done")) == STORED
    trial.back()
    submitted = [
        run("done"),
        run("done", components=[]),
        run("done", start=LATE),
        run("open", start=LATE, stop=None),
        run("open"),
        run("open", start=LATE, stop=None),
        run("new"),
    ]
    assert await trial.verdicts(*submitted) == ["same", "different", "exists", "same", "closed", "exists", "added"]
    await trial.drain()
    assert await trial.stored() == dict.fromkeys(("open", "done", "new"), (EARLY, STOP))


async def test_a_batch_is_all_or_nothing_over_store_and_spool(trial: InterruptedServer) -> None:
    assert await trial.post(run("stored")) == STORED
    trial.away()
    assert await trial.post(run("waiting")) == STORED
    trial.back()
    assert await trial.post(run("a"), run("waiting"), run("stored", start=LATE)) == EXISTS
    assert await trial.post(run("b"), run("waiting", start=LATE), run("stored")) == EXISTS
    assert await trial.post(run("c"), run("waiting"), run("stored")) == STORED
    await trial.drain()
    assert set(await trial.stored()) == {"stored", "waiting", "c"}


async def test_a_full_record_waits_behind_the_open_one_that_it_closes(trial: InterruptedServer) -> None:
    assert await trial.post(run(stop=None)) == STORED
    trial.away()
    assert await trial.put("x", "2026-01-01T02:00:00Z") == 200
    trial.back()
    assert await trial.put("x", "2026-01-01T03:00:00Z") == 200
    assert await trial.post(run(start=LATE, stop=None)) == EXISTS
    await trial.drain()
    assert await trial.stored() == {"x": (EARLY, "2026-01-01T03:00:00Z")}


async def test_an_update_while_the_store_is_away_waits_behind_the_insert(trial: InterruptedServer) -> None:
    trial.away()
    assert await trial.post(run(stop=None)) == STORED
    assert await trial.put("x") == 200
    trial.back()
    assert await trial.put("nobody") == 404
    await trial.drain()
    assert await trial.stored() == {"x": (EARLY, STOP)}


async def test_an_update_of_what_nobody_knows_yet_is_classified_on_the_drain(trial: InterruptedServer) -> None:
    assert await trial.post(run("there", stop=None)) == STORED
    trial.away()
    assert await trial.put("there") == 200
    assert await trial.put("nobody") == 200
    trial.back()
    await trial.drain()
    [entry] = await read_quarantine(trial.api.spool)
    assert (entry.source_id, entry.operation) == ("nobody", "close")
    assert "no record 'nobody'" in entry.reason
    await trial.api.spool.quarantine_discard([entry.quarantine_id])
    assert await trial.stored() == {"there": (EARLY, STOP)}


async def test_updates_of_the_unknown_can_be_refused_while_the_store_is_away(tmp_path: Path) -> None:
    async with api_server(tmp_path, options={"updates_while_away": "refuse"}) as api:
        trial = InterruptedServer(api)
        trial.away()
        assert await trial.post(run(stop=None)) == STORED
        assert await trial.put("x") == 200
        assert await trial.put("nobody") == 500
        trial.back()
        await trial.drain()
        assert await trial.stored() == {"x": (EARLY, STOP)}


@pytest.mark.parametrize("duplicates", [Duplicates.REFUSE, Duplicates.IGNORE])
async def test_other_meanings_of_duplicates_hold_as_well(tmp_path: Path, duplicates: Duplicates) -> None:
    async with api_server(tmp_path, duplicates=duplicates) as api:
        trial = InterruptedServer(api, duplicates)
        trial.away()
        assert (await trial.post(run()))[0] == 200
        trial.back()
        again = await trial.post(run()), await trial.post(run(start=LATE))
        assert [status for status, _ in again] == ([500, 500] if duplicates is Duplicates.REFUSE else [200, 200])
        await trial.drain()
        assert await trial.stored() == {"x": (EARLY, STOP)}


async def test_concurrent_posts_of_one_id_agree_on_one_run(trial: InterruptedServer) -> None:
    """The store comes back and the queue moves between any two steps of what is answered."""
    starts = [f"2026-01-01T00:{minute:02d}:00Z" for minute in range(30)]

    async def come_back(steps: int) -> None:
        for _ in range(steps):
            await asyncio.sleep(0)
        trial.back()
        while True:
            await trial.drain()
            await asyncio.sleep(0)

    accepted: dict[str, list[str]] = {}
    for steps in range(0, 200, 8):
        trial.away()
        moving = asyncio.create_task(come_back(steps))
        answers = await asyncio.gather(*(trial.post(run(f"x{steps}", start=start)) for start in starts))
        accepted[f"x{steps}"] = [start for start, answer in zip(starts, answers, strict=True) if answer == STORED]
        moving.cancel()
        await asyncio.wait([moving])
    trial.back()
    await trial.drain()
    assert {name: [start] for name, (start, _) in (await trial.stored()).items()} == accepted


async def test_what_still_waits_in_the_spool_is_not_corrected_before_it_has_arrived(trial: InterruptedServer) -> None:
    """A deletion would be undone by what arrives later."""
    assert await trial.post(run("x"), run("y")) == STORED
    trial.away()
    assert await trial.put("x", "2026-01-01T02:00:00Z") == 200
    trial.back()
    ingest = Ingest(trial.api.store, trial.api.spool, ("local",))
    editor, note = RecordEditor(trial.api.store, lambda: NOW, None, ingest.waiting), Note("a mistake", "root")
    outcomes = await editor.delete(["x", "y"], note)
    assert [(each.record_id, each.outcome) for each in outcomes] == [("x", "refused"), ("y", "done")]
    await trial.drain()
    assert await trial.stored() == {"x": (EARLY, "2026-01-01T02:00:00Z")}
    (again,) = await editor.delete(["x"], note)
    assert again.outcome == "done"
