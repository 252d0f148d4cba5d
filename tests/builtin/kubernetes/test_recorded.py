"""Recorded answers of kube-apiserver 1.20.2 with etcd 3.4 (without tolerations): a page, a watch, an old version."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from auditord_builtin.kubernetes.pods import decode_pod
from auditord_builtin.kubernetes.reading import Limits, WatchEnd, follow, pages
from tests.builtin.kubernetes.pod_maker import NOW

PATIENCE = timedelta(seconds=5)
RECORDED = Path(__file__).with_name("recorded")


class Replay:
    """Answers with recorded bytes."""

    def __init__(self, lines: Sequence[bytes] = ()) -> None:
        self._lines = lines
        self.tokens: list[str] = []

    async def page(self, scope: str, limit: int, token: str) -> bytes:
        assert (scope, limit) == ("*", 2)
        self.tokens.append(token)
        body = json.loads((RECORDED / "list.json").read_bytes())
        if token:
            body["metadata"].pop("continue")
        return json.dumps(body).encode()

    @asynccontextmanager
    async def watch(self, *_: Any) -> AsyncGenerator[AsyncIterator[bytes]]:
        async def lines() -> AsyncIterator[bytes]:
            for line in self._lines:
                yield line

        yield lines()


@pytest.mark.anyio
async def test_a_page_says_where_the_next_one_begins() -> None:
    replay: Any = Replay()
    found = [page async for page in pages(replay, "*", 2)]
    assert [(page.first, len(page.pods)) for page in found] == [(True, 2), (False, 2)]
    assert replay.tokens[0] == ""
    assert replay.tokens[1] == json.loads((RECORDED / "list.json").read_bytes())["metadata"]["continue"]
    assert found[0].version.isdigit()


@pytest.mark.anyio
async def test_events_are_pods_and_move_the_version() -> None:
    replay: Any = Replay((RECORDED / "watch.jsonl").read_bytes().splitlines())
    result = await follow(replay, "*", "1", Limits(100, PATIENCE, PATIENCE, PATIENCE), lambda: NOW)
    pods = [decode_pod(event.raw) for event in result.events]
    assert [pod.status.phase for pod in pods] == ["Running", "Failed", "Succeeded", "Running", "Succeeded"]
    assert result.version == pods[-1].metadata.resource_version
    assert all(pod.status.start_time and pod.uid for pod in pods)


@pytest.mark.anyio
async def test_a_version_that_is_too_old_is_reported_in_the_watch() -> None:
    replay: Any = Replay((RECORDED / "gone.jsonl").read_bytes().splitlines())
    result = await follow(replay, "*", "1", Limits(9, PATIENCE, PATIENCE, PATIENCE), lambda: NOW)
    assert (result.ended, result.version) == (WatchEnd.EXPIRED, "1")


@pytest.mark.anyio
@pytest.mark.parametrize(("pause", "known"), [(timedelta(), NOW), (timedelta(days=1), None)])
async def test_an_event_that_was_waited_for_says_that_all_before_it_is_known(
    pause: timedelta, known: datetime | None
) -> None:
    replay: Any = Replay((RECORDED / "watch.jsonl").read_bytes().splitlines())
    result = await follow(replay, "*", "1", Limits(100, PATIENCE, PATIENCE, pause), lambda: NOW)
    assert (result.ended, result.known_until) == (WatchEnd.CLOSED, known)


@pytest.mark.anyio
async def test_the_first_event_may_be_old_however_long_it_took() -> None:
    replay: Any = Replay((RECORDED / "watch.jsonl").read_bytes().splitlines()[:1])
    result = await follow(replay, "*", "1", Limits(100, PATIENCE, PATIENCE, timedelta()), lambda: NOW)
    assert result.known_until is None
