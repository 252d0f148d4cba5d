"""What the plugin remembers of what APEL holds: its state, written before and after each message.

For each site and month: what may be there, what the last complete report said, and what still waits to be sent. A row
is written down as *there* before the first message with it goes out, so that a crash never leaves a row at APEL that
nobody would withdraw.
"""

import base64
import zlib
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final

import msgspec

from auditord_builtin.apel.messages import Message, SummaryRow
from auditord_builtin.apel.months import Month
from auditord_hookspecs import AuditordError, PluginContext

VERSION: Final = 1


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """JSON, compressed, as text: rows and messages repeat themselves a lot.

    Args:
        text: base64.
        size: how many things are in it.
    """

    text: str = ""
    size: int = 0


def pack(things: Sequence[Any]) -> Packed:  # Any: what msgspec encodes
    """Make many things small."""
    return Packed(base64.b64encode(zlib.compress(msgspec.json.encode(things))).decode(), len(things))


def unpack_rows(packed: Packed) -> Sequence[SummaryRow]:
    """The rows again."""
    rows: tuple[SummaryRow, ...] = _unpack(packed, tuple[SummaryRow, ...])
    return rows


def unpack_message(packed: Packed) -> Message:
    """The message again."""
    messages: tuple[Message] = _unpack(packed, tuple[Message])
    return messages[0]


def _unpack(packed: Packed, kind: Any) -> Any:  # Any: a type, and a value of it
    return msgspec.json.decode(zlib.decompress(base64.b64decode(packed.text)), type=kind) if packed.size else ()


class Outbox(msgspec.Struct, frozen=True, kw_only=True):
    """What waits to be sent for one month of one site, complete in itself.

    Args:
        digest: of the summary that it reports.
        jobs: how many that summary has.
        rows: what APEL holds once all is sent, without figures.
        messages: those not yet acknowledged, in their order.
        ids: what the broker called those that were.
    """

    digest: str
    jobs: int
    rows: Packed
    messages: tuple[Packed, ...]
    ids: tuple[str, ...] = ()


class MonthBook(msgspec.Struct, frozen=True, kw_only=True):
    """One month of one site.

    Args:
        there: the rows that APEL may hold with figures, without their figures.
        digest: of the last summary of which every message was acknowledged.
        jobs: how many it had.
        ids: what the broker called its messages.
        acknowledged: when the last of them was.
        stored: how many jobs the store had at the last look.
        reportable: how many of them the summary had.
        problems: what was wrong with the others, in words.
        outbox: what waits.
    """

    there: Packed = Packed()
    digest: str | None = None
    jobs: int = 0
    ids: tuple[str, ...] = ()
    acknowledged: datetime | None = None
    stored: int = 0
    reportable: int = 0
    problems: tuple[str, ...] = ()
    outbox: Outbox | None = None


class DayBook(msgspec.Struct, frozen=True, kw_only=True):
    """The individual jobs of one site that ended on one day of UTC.

    Args:
        figures: what the store's sums said when all its jobs were last sent.
        jobs: how many were acknowledged.
        marks: of each of them, eight bytes; None once they are too old to be kept.
        stored: how many jobs the store had at the last look.
        reportable: how many of them could be reported.
        settings: a digest of the options with which some of them were left out; None if none were.
    """

    figures: str | None = None
    jobs: int = 0
    marks: str | None = ""
    stored: int = 0
    reportable: int = 0
    settings: str | None = None


class SiteBook(msgspec.Struct, frozen=True, kw_only=True):
    """One site.

    Args:
        looked: the last day (UTC) on which every month was looked at and reported.
        months: summaries, by month.
        days: individual jobs, by day.
    """

    looked: date | None = None
    months: Mapping[str, MonthBook] = msgspec.field(default_factory=dict[str, MonthBook])
    days: Mapping[str, DayBook] = msgspec.field(default_factory=dict[str, DayBook])


def reported_as_jobs(book: SiteBook, first: date) -> date | None:
    """The last day from this one on of which individual jobs were reported."""
    days = [date.fromisoformat(text) for text, day in book.days.items() if day.jobs]
    return max((day for day in days if day >= first), default=None)


def reported_as_summary(book: SiteBook, first: date) -> Month | None:
    """The last month with this day, or behind it, that was reported as a summary, or in part."""
    sent = [month for month, each in book.months.items() if each.ids or (each.outbox is not None and each.outbox.ids)]
    months = [Month.parse(text) for text in sent]
    return max((month for month in months if month.next.start.date() > first), default=None)


class Books(msgspec.Struct, frozen=True, kw_only=True):
    """All of the state.

    Args:
        version: of this layout.
        since: the ``publish_since`` of the first run, for the day on which the option is gone.
        sent: how many messages were ever published; numbers their labels.
        sites: by their names in GOCDB.
    """

    version: int = VERSION
    since: datetime | None = None
    sent: int = 0
    sites: Mapping[str, SiteBook] = msgspec.field(default_factory=dict[str, SiteBook])


def read_books(state: Any) -> Books:  # Any: the JSON that was saved
    """The state as it was saved.

    Raises:
        AuditordError: it is that of a newer version.
    """
    if state is None:
        return Books()
    if state.get("version") != VERSION:
        raise AuditordError("the state of this plugin was written by a newer auditord: update this one")
    return msgspec.convert(state, Books)


class Ledger:
    """The books of one run, saved with each change.

    Args:
        context: of the run.
    """

    def __init__(self, context: PluginContext) -> None:
        self._context = context
        self.books = read_books(context.state)

    def site(self, site: str) -> SiteBook:
        """What is known of a site."""
        return self.books.sites.get(site, SiteBook())

    def month(self, site: str, month: Month) -> MonthBook:
        """What is known of a month."""
        return self.site(site).months.get(str(month), MonthBook())

    async def keep_month(self, site: str, month: Month, book: MonthBook, *, sent: int = 0) -> None:
        """Write a month down, durably, and that so many messages went out."""
        known = self.site(site)
        changed = msgspec.structs.replace(known, months={**known.months, str(month): book})
        await self._keep(site, changed, sent)

    async def keep_days(self, site: str, days: Mapping[str, DayBook], *, sent: int = 0) -> None:
        """The same for days of individual jobs: all that are known."""
        await self._keep(site, msgspec.structs.replace(self.site(site), days=days), sent)

    async def keep_look(self, site: str, day: date) -> None:
        """Write down that every month of a site was looked at."""
        await self._keep(site, msgspec.structs.replace(self.site(site), looked=day), 0)

    async def keep_since(self, since: datetime) -> None:
        """Write down from when on jobs are reported."""
        await self._save(msgspec.structs.replace(self.books, since=since))

    async def _keep(self, site: str, book: SiteBook, sent: int) -> None:
        sites = {**self.books.sites, site: book}
        await self._save(msgspec.structs.replace(self.books, sites=sites, sent=self.books.sent + sent))

    async def _save(self, books: Books) -> None:
        await self._context.save_state(msgspec.to_builtins(books))
        self.books = books
