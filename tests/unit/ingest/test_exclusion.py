"""Queues that may hold something, without a look; and one piece of work at a time per record id."""

import anyio
import anyio.lowlevel
import pytest

from auditord.ingest.service import Claims
from auditord.spool.spool import Occupancy

pytestmark = pytest.mark.anyio


async def test_a_queue_is_empty_only_if_nothing_was_begun_since_it_was_asked_for() -> None:
    occupancy = Occupancy(["local"])
    assert occupancy.senders == {"local"}
    mark = occupancy.mark("local")
    occupancy.queueing(["local"])  # may reach the file behind the look
    occupancy.empty("local", mark)
    assert "local" in occupancy.senders
    occupancy.empty("local", occupancy.mark("local"))
    assert "local" not in occupancy.senders


async def test_work_on_one_id_waits_and_on_others_does_not() -> None:
    claims, order = Claims(), list[str]()

    async def work(name: str, ids: set[str]) -> None:
        await claims.take(ids)
        order.append(name)
        await anyio.lowlevel.checkpoint()
        claims.release(ids)

    await claims.take({"a"})
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(work, "behind a", {"a", "b"})
            group.start_soon(work, "beside", {"c"})
            while order != ["beside"]:
                await anyio.lowlevel.checkpoint()
            claims.release({"a"})
    assert order == ["beside", "behind a"]
    await claims.take({"a", "b", "c"})  # all of them are free again
