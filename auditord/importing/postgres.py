"""AUDITOR's own PostgreSQL database (0.5 and later), read while AUDITOR may be running."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Final, LiteralString

from auditord.config.model import StoreSection
from auditord.database.postgres import Connection
from auditord.database.postgres.address import address_of
from auditord.database.postgres.foreign import connected
from auditord.database.postgres.streaming import copied
from auditord.errors import StoreUnavailable
from auditord.importing.source import Page, SourceFailed, in_pages

_OVERLAP: Final = 100_000
"""Numbers before a position that are read again: AUDITOR gives a row its number before it commits it."""

_EXISTS: Final = "SELECT to_regclass('auditor_accounting') IS NOT NULL"

_COUNT: Final = "SELECT count(*), count(*) FILTER (WHERE id <= %s) FROM auditor_accounting"

# Missing meta is SQL's NULL in rows that AUDITOR has migrated, JSON's null in others; so it may be with components.
_ROWS: Final[LiteralString] = """
SELECT
    '{"id":' || id || ',"record_id":' || to_json(record_id)
    || ',"meta":' || coalesce(meta::text, 'null')
    || ',"components":' || CASE WHEN jsonb_typeof(components) <> 'null' THEN components::text ELSE '[]' END
    || ',"start_time":' || to_json(start_time)
    || ',"stop_time":' || coalesce(to_json(stop_time)::text, 'null')
    || ',"runtime":' || coalesce(runtime::text, 'null') || '}'
FROM auditor_accounting
WHERE id > %s
ORDER BY id
"""


class PostgresSource:
    """Implements :class:`auditord.importing.source.Source`."""

    def __init__(self, section: StoreSection) -> None:
        self._address = address_of(section)
        self.name = f"AUDITOR's database {self._address.where}"

    @asynccontextmanager
    async def pages(self, position: str | None) -> AsyncGenerator[AsyncIterator[Page], None]:
        """See :class:`Source`; in the order of the rows' numbers, as of the moment when the context is entered."""
        behind = -1 if position is None else max(int(position) - _OVERLAP, -1)
        try:
            async with connected(self._address) as connection:
                total, before = await self._count(connection, behind)
                rows = copied(connection, _ROWS, (behind,))
                async with rows as found, aclosing(_pages(found, before, max(total, 1))) as pages:
                    yield pages
        except StoreUnavailable as error:
            raise SourceFailed(str(error)) from error

    async def _count(self, connection: Connection, behind: int) -> tuple[int, int]:
        exists = await (await connection.execute(_EXISTS)).fetchone()
        if not (exists and exists[0]):
            raise SourceFailed(
                f"{self.name} has no table auditor_accounting: name AUDITOR's database, as its configuration has it "
                "(of an AUDITOR before 0.5, run the migrations of a later one first)"
            )
        found = await (await connection.execute(_COUNT, (behind,))).fetchone()
        return (found[0], found[1]) if found else (0, 0)


async def _pages(found: AsyncIterator[Sequence[bytes]], before: int, total: int) -> AsyncGenerator[Page, None]:
    done = before
    async with aclosing(in_pages(found)) as pages:
        async for texts in pages:
            done += len(texts)
            yield make_page(texts, done / total)


def make_page(texts: Sequence[bytes], fraction: float) -> Page:
    """A page of rows, each of which begins with its number."""
    return Page(texts, lambda place: f"row with id {_number(texts[place])}", _number(texts[-1]), fraction)


def _number(text: bytes) -> str:
    return text[len(b'{"id":') : text.index(b",")].decode()
