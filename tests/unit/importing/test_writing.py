"""Pages that are worked on ahead, and the position of an import."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from auditord.importing.writing import BadPosition, PositionFile, Progressed, Writer, in_order
from auditord.store import Provenance
from auditord.store.opening import open_store
from auditord.store.rollups.upkeep import FoldingLimits, Upkeep
from auditord.testing import make_record
from auditord_hookspecs import ImportPage, ImportRow, Table


async def numbered(count: int) -> AsyncGenerator[ImportPage, None]:
    for number in range(count):
        yield ImportPage([], str(number), 0.0, lambda _: ImportRow("", b""))


@pytest.mark.anyio
async def test_pages_come_in_their_order_whichever_is_done_first() -> None:
    done: list[str] = []
    second = asyncio.Event()

    async def work(page: ImportPage) -> str:
        if page.position == "0":
            await second.wait()
        if page.position == "1":
            second.set()
        done.append(page.position)
        return page.position

    assert [(page.position, result) async for page, result in in_order(numbered(4), work)] == [
        (str(number), str(number)) for number in range(4)
    ]
    assert done.index("1") < done.index("0")


@pytest.mark.anyio
async def test_a_fault_is_raised_in_its_place_and_nothing_goes_on_behind_it() -> None:
    ended: list[str] = []

    async def work(page: ImportPage) -> None:
        if page.position == "1":
            raise ValueError("one")
        try:
            await asyncio.sleep(0 if page.position == "0" else 60)
        finally:
            ended.append(page.position)

    pages = in_order(numbered(9), work)
    assert (await anext(pages))[0].position == "0"
    with pytest.raises(ValueError, match="one"):
        await anext(pages)
    assert set(ended) == {"0", "2"}


class Numbered:
    """An importer of as many pages of one record."""

    name = "numbers"

    def __init__(self, count: int) -> None:
        self._count = count

    async def pages(self, position: str | None) -> AsyncGenerator[ImportPage, None]:
        for number in range(int(position or 0), self._count):
            yield ImportPage([make_record(f"job-{number}")], str(number + 1), 0.0, lambda _: ImportRow("", b""))

    def remarks(self) -> list[str | Table]:
        return []


@pytest.mark.anyio
async def test_nothing_is_folded_while_records_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    folded_after: list[int] = []
    fold, folded_behind = Upkeep.fold, asyncio.Event()

    async def note_fold(upkeep: Upkeep) -> None:
        folded_after.append(len(written))
        await fold(upkeep)
        if len(written) == 50:
            folded_behind.set()

    monkeypatch.setattr(Upkeep, "fold", note_fold)
    async with open_store(f"sqlite://{tmp_path}/records.db", counted_keys=()) as store, asyncio.timeout(60):
        store.rollups.limits = eager = FoldingLimits(unread=1)
        writer = Writer(store, Provenance(make_record("a").start_time), None, pytest.fail)
        await writer.write_all(Numbered(50), PositionFile.of(tmp_path, "a"), lambda count, _: written.append(count))
        await folded_behind.wait()
    assert set(folded_after) <= {0, 50}
    assert store.rollups.limits == eager


def test_it_begins_at_the_beginning_and_goes_on_where_it_was(tmp_path: Path) -> None:
    file = PositionFile.of(tmp_path, "source", "target")
    assert file.read() == Progressed()
    file.write(Progressed("42"))
    file.write(Progressed("43", written=True))
    assert PositionFile.of(tmp_path, "source", "target").read() == Progressed("43", written=True)
    file.forget()
    file.forget()
    assert file.read() == Progressed()
    assert list(tmp_path.iterdir()) == []


def test_every_import_has_its_own(tmp_path: Path) -> None:
    PositionFile.of(tmp_path, "source", "target").write(Progressed("42"))
    assert PositionFile.of(tmp_path, "sourcetarget", "").read() == Progressed()


def test_a_version_that_was_not_finished_does_no_harm(tmp_path: Path) -> None:
    file = PositionFile.of(tmp_path, "source")
    file.write(Progressed("42"))
    file.path.with_name(f".{file.path.name}.draft").write_bytes(b'{"posi')
    assert file.read() == Progressed("42")


def test_what_somebody_else_has_written_is_refused_with_a_remedy(tmp_path: Path) -> None:
    file = PositionFile.of(tmp_path, "source")
    file.path.write_text("nonsense")
    with pytest.raises(BadPosition, match="--restart"):
        file.read()


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadPosition, match="No such file"):
        PositionFile.of(tmp_path / "gone", "source").write(Progressed("1"))
