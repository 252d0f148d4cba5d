"""Slices that cannot be folded become smaller, so that folding goes on."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from auditord.errors import StoreUnavailable
from auditord.store.postgres.dialect import PostgresDialect
from auditord.store.rollups import upkeep
from auditord.store.rollups.upkeep import Read, Upkeep
from auditord.store.work import Work

pytestmark = pytest.mark.anyio


async def test_a_slice_that_takes_too_long_is_halved_until_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def fold_slices(limit: int, _: object) -> Work[bool]:
        yield from ()  # it is a generator
        asked.append(limit)
        if limit > 6_000:
            raise StoreUnavailable("canceling statement due to statement timeout")
        return True

    async def write(work: Work[Any], *, is_long: bool = False) -> Any:  # Any: what the work returns
        assert is_long
        try:
            while True:
                next(work)
        except StopIteration as ended:
            return ended.value

    def atomic(fold: Callable[[], Work[bool]]) -> Work[bool]:
        return fold()

    monkeypatch.setattr(upkeep, "fold_slices", fold_slices)
    monkeypatch.setattr(upkeep, "atomic", atomic)
    kept = Upkeep(write, cast("Read", None), PostgresDialect(), is_ours=False)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await kept.fold()
    await kept.fold()
    assert asked == [20_000, 10_000, 5_000]
