"""Slices that cannot be folded become smaller, so that folding goes on."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from auditord.errors import StoreUnavailable
from auditord.store.dialects import StoreDialect
from auditord.store.postgres.dialect import PostgresDialect
from auditord.store.rollups import upkeep
from auditord.store.rollups.upkeep import FoldingLimits, Read, Upkeep
from auditord.store.sqlite.dialect import SqliteDialect
from auditord.store.work import Work

pytestmark = pytest.mark.anyio


async def write(work: Work[Any], *, is_long: bool = False) -> Any:  # Any: what the work returns
    assert is_long
    try:
        while True:
            next(work)
    except StopIteration as ended:
        return ended.value


def upkeep_of(monkeypatch: pytest.MonkeyPatch, dialect: StoreDialect, fold_slices: Callable[..., Work[bool]]) -> Upkeep:
    def atomic(fold: Callable[[], Work[bool]]) -> Work[bool]:
        return fold()

    monkeypatch.setattr(upkeep, "fold_slices", fold_slices)
    monkeypatch.setattr(upkeep, "atomic", atomic)
    return Upkeep(write, cast("Read", None), dialect, is_ours=False)


async def test_a_slice_that_takes_too_long_is_halved_until_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def fold_slices(limit: int, *_: object) -> Work[bool]:
        yield from ()  # it is a generator
        asked.append(limit)
        if limit > 6_000:
            raise StoreUnavailable("canceling statement due to statement timeout")
        return True

    kept = upkeep_of(monkeypatch, PostgresDialect(), fold_slices)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await kept.fold()
    await kept.fold()
    assert asked == [20_000, 10_000, 5_000]


async def test_if_the_smallest_slice_takes_too_long_fewer_consumers_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, float]] = []

    def fold_slices(limit: int, _: object, share: float = 1.0) -> Work[bool]:
        yield from ()
        asked.append((limit, share))
        return len(asked) % 3 == 0

    kept = upkeep_of(monkeypatch, SqliteDialect(), fold_slices)
    kept.limits = FoldingLimits(slice_seconds=0.0)  # every slice takes too long
    await kept.fold()
    await kept.fold()  # goes on with the last size
    assert asked == [(100, share) for share in (1.0, 0.5, 0.25, 0.12, 0.06, 0.03)]
