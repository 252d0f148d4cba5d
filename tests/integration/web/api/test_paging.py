"""Paging while records are added and closed: each record is met exactly once."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auditord.duplicates import Duplicates
from auditord.store import Provenance
from auditord_hookspecs import Record
from auditord_hookspecs.wire import parse_time
from tests.api_server import NOW, Api, api_server

pytestmark = pytest.mark.anyio

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
PROVENANCE = Provenance(NOW)

# Few instants, so that ties are the rule, and ids that sort differently in most collations.
STARTS = st.integers(0, 4).map(lambda seconds: EPOCH + timedelta(milliseconds=seconds * 250))
IDS = st.text("aAbZé,&%+ /", min_size=1, max_size=3).filter(lambda text: not text.isspace())
STOPS = st.none() | st.integers(-1, 3).map(lambda hours: EPOCH + timedelta(hours=hours))
RECORDS = st.lists(
    st.builds(Record, IDS, STARTS, st.just(()), STOPS), min_size=1, max_size=20, unique_by=lambda each: each.record_id
)


async def store(api: Api, records: Sequence[Record]) -> None:
    await api.store.add_all(records, PROVENANCE, Duplicates.SAME_RUN, atomic=False)


async def close(api: Api, records: Sequence[Record], stop: datetime) -> None:
    closed = [Record(each.record_id, each.start_time, (), stop) for each in records if each.stop_time is None]
    await store(api, closed)


@given(
    first=RECORDS,
    later=st.lists(RECORDS, max_size=6),
    limit=st.integers(1, 4),
    descending=st.booleans(),
    stop=st.integers(-2, 5),
)
@settings(deadline=None, max_examples=40)
async def test_each_record_is_met_exactly_once(
    first: list[Record],
    later: list[list[Record]],
    limit: int,
    descending: bool,  # noqa: FBT001 as hypothesis gives it
    stop: int,
) -> None:
    known = {each.record_id for each in first}
    with TemporaryDirectory() as folder:
        async with api_server(Path(folder)) as api:
            await store(api, first)
            order, met, changes = "desc" if descending else "asc", list[tuple[str, str]](), iter(later)
            target = f"/api/v1/records?limit={limit}&sort_by[{order}]=start_time"
            while target:
                page = (await api.get(target)).json
                assert 1 <= len(page["records"]) <= limit
                met += [(each["start_time"], each["record_id"]) for each in page["records"]]
                target = page["next"]
                added = [each for each in next(changes, list[Record]()) if each.record_id not in known]
                await store(api, added)
                await close(api, [*first, *added], EPOCH + timedelta(hours=stop))
    ids = [record_id for _, record_id in met]
    assert len(set(ids)) == len(ids)
    assert known <= set(ids)
    places = [(parse_time(start), name.encode()) for start, name in met]
    assert places == sorted(places, reverse=descending)


async def test_every_job_of_an_array_that_started_at_once_is_met(tmp_path: Path) -> None:
    async with api_server(tmp_path) as api:
        await store(api, [Record(f"array_{number}", EPOCH, ()) for number in range(500)])
        target, met = "/api/v1/records?limit=7&open=true", list[str]()
        while target:
            page = (await api.get(target)).json
            met += [each["record_id"] for each in page["records"]]
            target = page["next"]
        assert len(met) == len(set(met)) == 500
