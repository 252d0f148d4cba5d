"""Numbers for principals and scores: looked up once, given in the order of asking, and nobody waits in a long line."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from auditord.errors import StoreDamaged, StoreUnavailable
from auditord.store import Provenance
from auditord.store import origins as module
from auditord.store.origins import Origins
from auditord.store.rows import scores_text
from auditord.store.work import Statement, Work
from auditord_hookspecs import Component, Score

pytestmark = pytest.mark.anyio

NOW = datetime(2024, 2, 3, tzinfo=UTC)


def scored(value: float) -> str | None:
    return scores_text((Component("Cores", 1, (Score("HEPSPEC06", value),)),))


class Tables:
    """Two tables, and how often they were asked."""

    def __init__(self) -> None:
        self.kept: list[Mapping[str, object]] = []
        self.asked = 0
        self.fault: Exception | None = None
        self.going = asyncio.Event()
        self.going.set()

    async def look_up(self, work: Work[Any]) -> Any:
        self.asked += 1
        await self.going.wait()
        if self.fault is not None:
            raise self.fault
        answer = None
        try:
            while True:
                answer = self._answer(work.send(answer))
        except StopIteration as end:
            return end.value

    def _answer(self, step: object) -> Any:
        assert isinstance(step, Statement)
        if step.name.startswith("insert"):
            self.kept.append(step.parameters)
        return [(self.kept.index(step.parameters),)] if step.parameters in self.kept else []


async def test_each_is_looked_up_once() -> None:
    tables = Tables()
    origins = Origins(tables.look_up)
    by = Provenance(NOW, "client", "x" * 300 + "\0")
    scores = [scored(1), scored(2), scored(1), None]
    origin, score_sets = await origins.numbers(by, scores)
    assert len({origin, *score_sets}) == 4
    assert (score_sets[0], score_sets[3]) == (score_sets[2], None)
    assert tables.kept[0] == {"principal": "client", "agent": "x" * 200}
    assert await origins.numbers(by, scores) == (origin, score_sets)
    assert (tables.asked, len(tables.kept)) == (1, 3)


async def test_many_texts_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 2)
    origins = Origins(Tables().look_up)
    by = Provenance(NOW)
    found = [await origins.numbers(by, [scored(value), scored(0)]) for value in range(5)]
    assert await origins.numbers(by, [scored(2), scored(0)]) == found[2]


async def test_those_who_ask_go_on_in_their_order() -> None:
    tables = Tables()
    origins = Origins(tables.look_up)
    await origins.number(Provenance(NOW, "known"))
    tables.going.clear()
    done: list[str] = []

    async def ask(name: str) -> None:
        await origins.number(Provenance(NOW, name))
        done.append(name)

    tasks = [asyncio.create_task(ask(name)) for name in ("new", "known", "newer")]
    await asyncio.sleep(0)
    assert done == []
    tables.going.set()
    await origins.wait()
    await asyncio.gather(*tasks)
    assert done == ["new", "known", "newer"]


@pytest.mark.parametrize("fault", [StoreUnavailable("away"), StoreDamaged("damaged")])
async def test_those_who_wait_for_a_database_that_is_away_fail_together(fault: StoreUnavailable) -> None:
    tables = Tables()
    origins = Origins(tables.look_up)
    tables.going.clear()
    tasks = [asyncio.create_task(origins.number(Provenance(NOW, f"client {each}"))) for each in range(20)]
    await asyncio.sleep(0)
    tables.fault = fault
    tables.going.set()
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert {(type(error), str(error)) for error in errors} == {(type(fault), str(fault))}
    assert tables.asked == 1
    tables.fault = None
    assert await origins.number(Provenance(NOW, "client 7")) == 0
