"""The stores that the contract suite is run against: each factory opens the same records again at every call."""

from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from os import environ
from pathlib import Path
from typing import Protocol
from unittest.mock import patch

import pytest
from _pytest.mark.structures import ParameterSet

from auditord.store.opening import open_store
from auditord.store.store import RecordStore
from tests.contract.store.engines import LakeEngine
from tests.contract.store.in_memory import MemoryDatabase, MemoryRecordStore

PLANNED = {"test_adding", "test_changing", "test_amending"}
"""Modules about the plans of changes, which are also run without a database."""

SUMMED = {
    "test_answers_equal_a_plain_evaluation",
    "test_several_components_of_one_name_keep_their_own_scores",
    "test_the_first_of_two_scores_with_one_name_counts",
    "test_a_million_years_of_exabytes_in_microseconds",
    "test_windows_that_follow_each_other_count_everything_once",
    "test_more_groups_than_a_page_has_come_in_order",
    "test_an_empty_store_has_no_groups",
    "test_names_that_no_record_has_are_simply_not_there",
}
"""Tests of sums that the lake's engine is put to as well; with LAKE_TEST_ALL set, to all of them, for two minutes."""

LISTED = {
    "test_answers_equal_a_plain_evaluation",
    "test_filters_on_meta_in_every_corner",
    "test_filters_on_components_in_every_corner",
    "test_many_pages_in_every_order",
    "test_pages_are_bounded_by_bytes",
}
"""Tests of records in order, likewise."""

COUNTED_KEYS = ("site_id", "group_id", "user_id", "project")


class StoreFactory(Protocol):
    def __call__(self, *, outbox: bool = False) -> AbstractAsyncContextManager[RecordStore]: ...


def sqlite_stores(folder: Path) -> StoreFactory:
    url = f"sqlite://{folder / 'records.db'}"
    return lambda *, outbox=False: open_store(url, counted_keys=COUNTED_KEYS, outbox=outbox)


def postgres_stores(new_url: Callable[[], str]) -> Callable[[Path], StoreFactory]:
    """A database of its own stands in for each folder."""
    urls: dict[Path, str] = {}

    def stores(folder: Path) -> StoreFactory:
        url = urls.setdefault(folder, new_url())
        return lambda *, outbox=False: open_store(url, counted_keys=COUNTED_KEYS, outbox=outbox)

    return stores


def lake_stores(folder: Path, *, lists: bool = False) -> StoreFactory:
    """A store whose sums, and records that are listed, are those that the lake's engine makes of its records."""
    sqlite, engine = sqlite_stores(folder), LakeEngine(folder)

    @asynccontextmanager
    async def opened(*, outbox: bool = False) -> AsyncGenerator[RecordStore, None]:
        async with sqlite(outbox=outbox) as store:
            if lists:
                with patch.object(store, "stream", partial(engine.stream, store.stream)):
                    yield store
                return
            with patch.object(store, "aggregate", partial(engine.aggregate, store)):
                yield store

    return opened


def memory_stores() -> Callable[[Path], StoreFactory]:
    """Tables of their own for each folder."""
    databases: defaultdict[Path, MemoryDatabase] = defaultdict(MemoryDatabase)

    def stores(folder: Path) -> StoreFactory:
        @asynccontextmanager
        async def opened(*, outbox: bool = False) -> AsyncGenerator[RecordStore, None]:
            del outbox  # the feed is tested with the databases
            yield MemoryRecordStore(databases[folder], COUNTED_KEYS)

        return opened

    return stores


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store_factory" in metafunc.fixturenames:
        has_plans = metafunc.definition.path.stem in PLANNED
        needs_database = metafunc.definition.get_closest_marker("needs_database") is not None
        kinds = ["sqlite", "postgresql", *(["plan"] if has_plans and not needs_database else [])]
        lake = _asks_lake(metafunc.definition.path.stem, metafunc.function.__name__)
        metafunc.parametrize("store_factory", [*kinds, *lake], indirect=True)


def _asks_lake(module: str, test: str) -> Sequence[ParameterSet | str]:
    if module == "test_streaming" and test in LISTED:
        return [pytest.param("listing lake", marks=pytest.mark.slow)]
    if module == "test_columns":
        return ["lake", "listing lake"]
    if module != "test_aggregates" or (test not in SUMMED and "LAKE_TEST_ALL" not in environ):
        return ()
    return [pytest.param("lake", marks=pytest.mark.slow if test == "test_answers_equal_a_plain_evaluation" else ())]


@pytest.fixture
def store_factory(request: pytest.FixtureRequest) -> Callable[[Path], StoreFactory]:
    match request.param:
        case "sqlite":
            return sqlite_stores
        case "plan":
            return memory_stores()
        case "lake":
            return lake_stores
        case "listing lake":
            return partial(lake_stores, lists=True)
        case _:
            return postgres_stores(request.getfixturevalue("new_postgres_url"))


@pytest.fixture
def stores(store_factory: Callable[[Path], StoreFactory], tmp_path: Path) -> StoreFactory:
    return store_factory(tmp_path)


@pytest.fixture
async def store(stores: StoreFactory) -> AsyncIterator[RecordStore]:
    async with stores() as opened:
        yield opened
