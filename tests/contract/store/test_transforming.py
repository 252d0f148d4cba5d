"""What every record meets before it is kept, on each way into a store."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord.store.reading import StoredRecords
from auditord.testing import make_record
from auditord_hookspecs import Record, RecordQuery

pytestmark = pytest.mark.anyio

BY = Provenance(datetime(2026, 3, 1, tzinfo=UTC))


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite://{tmp_path / 'records.db'}"
    new: Callable[[], str] = request.getfixturevalue("new_postgres_url")
    return new()


def without_names(record: Record) -> Record:
    return msgspec.structs.replace(record, meta={"user_id": ("nobody",)})


async def test_one_by_one_and_in_bulk(url: str) -> None:
    async with open_store(url, counted_keys=("user_id",), transform=without_names) as store:
        await store.add(make_record("a", user_id="alice"), BY, Duplicates.SAME_RUN)
        bulk = [make_record(name, user_id="bob") for name in ("b", "c")]
        await store.add_all(bulk, BY, Duplicates.SAME_RUN, atomic=True)
        await store.add_all([make_record("d", user_id="carol")], BY, Duplicates.SAME_RUN, atomic=False)
        async with StoredRecords(store).stream(RecordQuery()) as stream:
            found = {record.record_id: record.meta async for record in stream}
        assert found == {name: {"user_id": ("nobody",)} for name in "abcd"}
