"""A restriction by site holds for the stored record, too, also where that cannot be looked at when a post comes."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from auditord.ingest import StoreSink
from auditord.spool import retry
from auditord.web.access.authorisation import Authorisation
from auditord_hookspecs import Credentials, Identity, Insert, Permission, Provenance, Role
from auditord_hookspecs.wire import decode_record
from tests.api_server import AWAY, NOW, Answer, Api, api_server, record
from tests.quarantined_entries import read_quarantine

pytestmark = pytest.mark.anyio

WRITING = frozenset({Permission.WRITE, Permission.UPDATE})
SHARED = ("shared-",)
ROLES = {
    "a": Role(WRITING, sites=("A",), prefixes=SHARED),
    "b": Role(WRITING, sites=("B",), prefixes=SHARED),
    "prefix": Role(WRITING, prefixes=SHARED),
    "all": Role(frozenset(Permission)),
}
STOP = "2026-01-01T02:00:00Z"
UPDATE: object = {"record_id": "shared-1", "components": list[object](), "stop_time": STOP}


async def by_token(credentials: Credentials) -> Identity | None:
    return None if credentials.token is None else Identity(credentials.token, (credentials.token,))


@asynccontextmanager
async def shared(folder: Path) -> AsyncGenerator[Api, None]:
    async with api_server(folder, authorisation=Authorisation({"tokens": by_token}, ROLES)) as api:
        yield api


async def ask(api: Api, who: str, method: str, target: str, body: object) -> Answer:
    """One request; a refused POST is cut short on purpose, so that clients notice."""
    headers = {"Authorization": f"Bearer {who}", "Content-Type": "application/json"}
    data = msgspec.json.encode(body)
    async with api.session.request(method, target, data=data, headers=headers) as got:
        try:
            return Answer(got.status, got.headers, await got.read())
        except aiohttp.ClientPayloadError:
            return Answer(got.status, got.headers, b"")


def job(site: str, **more: object) -> dict[str, object]:
    return record("shared-1", meta={"site_id": [site]}, **more)


async def drain(api: Api) -> None:
    sink = StoreSink(api.store, lambda: NOW)
    while claimed := await api.spool.claim("local", 10):
        refused = await sink.deliver([one.entry for one in claimed])
        delivered = [one.entry_id for at, one in enumerate(claimed) if at not in refused]
        await api.spool.settle("local", delivered, {claimed[at].entry_id: why for at, why in refused.items()})


async def stored(api: Api) -> Any:  # Any: JSON
    document = await api.store.get("shared-1")
    return None if document is None else msgspec.json.decode(document)


async def test_a_post_takes_over_no_open_record_of_a_site_that_shares_the_prefix(tmp_path: Path) -> None:
    async with shared(tmp_path) as api:
        assert (await ask(api, "b", "POST", "/record", job("B", stop_time=None))).status == 200
        assert (await ask(api, "a", "POST", "/record", job("A"))).status == 403
        assert (await ask(api, "a", "POST", "/records", [job("A")])).status == 403
        answer = await ask(api, "a", "POST", "/api/v1/records", [job("A")])
        assert [each["verdict"] for each in answer.json["verdicts"]] == ["forbidden"]
        assert (await stored(api))["meta"] == {"site_id": ["B"]}
        assert (await ask(api, "b", "POST", "/record", job("B"))).status == 200


@pytest.mark.parametrize("target", ["/record", "/records", "/api/v1/records"])
async def test_while_the_store_is_away_it_waits_and_is_classified_on_the_drain(tmp_path: Path, target: str) -> None:
    async with shared(tmp_path) as api:
        assert (await ask(api, "b", "POST", "/record", job("B", stop_time=None))).status == 200
        api.faults.store = AWAY
        body = job("A") if target == "/record" else [job("A")]
        assert (await ask(api, "a", "POST", target, body)).status == 200
        api.faults.store = None
        await drain(api)
        [entry] = await read_quarantine(api.spool)
        assert "belongs to a site that tokens:a may not change" in entry.reason
        assert ((await stored(api))["meta"], (await stored(api))["stop_time"]) == ({"site_id": ["B"]}, None)
        await retry(api.spool, entry, None, ["local"])  # the same check is made again
        await drain(api)
        assert (await stored(api))["meta"] == {"site_id": ["B"]}


async def test_an_update_while_the_store_is_away_is_classified_on_the_drain(tmp_path: Path) -> None:
    async with shared(tmp_path) as api:
        assert (await ask(api, "b", "POST", "/record", job("B", stop_time=None))).status == 200
        api.faults.store = AWAY
        assert (await ask(api, "a", "PUT", "/record", UPDATE)).status == 200
        api.faults.store = None
        await drain(api)
        assert (await stored(api))["stop_time"] is None
        api.faults.store = AWAY
        assert (await ask(api, "b", "PUT", "/record", UPDATE)).status == 200
        api.faults.store = None
        await drain(api)
        assert (await stored(api))["stop_time"] == STOP
        [entry] = await read_quarantine(api.spool)
        assert (entry.operation, "tokens:a may not change" in entry.reason) == ("close", True)


async def test_what_waits_is_protected_like_what_is_stored(tmp_path: Path) -> None:
    async with shared(tmp_path) as api:
        api.faults.store = AWAY
        assert (await ask(api, "b", "POST", "/record", job("B", stop_time=None))).status == 200
        for _ in ("store away", "store back, queue not drained"):
            assert (await ask(api, "a", "POST", "/record", job("A"))).status == 403
            assert (await ask(api, "a", "PUT", "/record", UPDATE)).status == 404
            api.faults.store = None
        await drain(api)
        assert (await stored(api))["meta"] == {"site_id": ["B"]}
        assert await read_quarantine(api.spool) == []


async def test_entries_of_one_record_are_classified_one_after_the_other(tmp_path: Path) -> None:
    """In one batch of the queue, too: the second one of a record finds there what the first one has left."""
    async with shared(tmp_path) as api:
        entries = [
            Insert(decode_record(msgspec.json.encode(record(f"shared-{number}", meta=meta, stop_time=stop))), limits=by)
            for number in range(5)
            for meta, stop, by in (
                ({"site_id": ["B"]}, None, (ROLES["b"],)),
                ({"site_id": ["A"]}, STOP, (ROLES["a"],)),
                ({"site_id": ["B"]}, STOP, (ROLES["b"],)),
            )
        ]
        await api.spool.accept(entries, Provenance(NOW, "tokens:x"), ["local"])
        await drain(api)
        refused = await read_quarantine(api.spool)
        assert [entry.source_id for entry in refused] == [f"shared-{number}" for number in range(5)]
        for number in range(5):
            found: Any = msgspec.json.decode(await api.store.get(f"shared-{number}") or b"")  # Any: JSON
            assert (found["meta"], found["stop_time"]) == ({"site_id": ["B"]}, STOP)


async def test_a_role_that_is_limited_by_ids_alone_leaves_nothing_to_check(tmp_path: Path) -> None:
    async with shared(tmp_path) as api:
        for who in ("prefix", "all"):
            api.faults.store = AWAY
            assert (await ask(api, who, "POST", "/record", job("A"))).status == 200
            [queued] = await api.spool.claim("local", 10)
            assert getattr(queued.entry, "limits", None) is None
            api.faults.store = None
            await drain(api)
