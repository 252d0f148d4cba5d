"""The reported state: for each site and month (or day), APEL's rows, the last report, and waiting messages.

It is saved before and after each message. A row is saved in ``there`` before it is first sent, so that every row at
APEL can be withdrawn, even after a crash.
"""

import base64
import zlib
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final, TypeVar

import msgspec

from auditord_builtin.apel.messages import Message, SummaryRow
from auditord_hookspecs import AuditordError, PluginContext
from auditord_hookspecs.months import Month

T = TypeVar("T")

VERSION: Final = 1


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """The number of rows or messages, and their JSON, compressed (they repeat themselves a lot) in base64."""

    text: str = ""
    size: int = 0


def pack(things: Sequence[SummaryRow | Message]) -> Packed:
    """Compress rows or messages."""
    return Packed(base64.b64encode(zlib.compress(msgspec.json.encode(things))).decode(), len(things))


def unpack(packed: Packed, kind: type[T]) -> Sequence[T]:
    """Read rows or messages."""
    if not packed.size:
        return ()
    data = zlib.decompress(base64.b64decode(packed.text))
    return msgspec.json.decode(data, type=list[kind])  # type: ignore[valid-type] # a type in a variable


class Outbox(msgspec.Struct, frozen=True, kw_only=True):
    """A complete report of one month of one site that waits to be sent.

    Args:
        digest: of the summary that it reports.
        jobs: the number of jobs in that summary.
        rows: the rows that APEL has after all messages, without amounts.
        messages: the messages that are not acknowledged, in order.
        ids: the broker's ids of acknowledged messages.
    """

    digest: str
    jobs: int
    rows: Packed
    messages: tuple[Packed, ...]
    ids: tuple[str, ...] = ()


class MonthState(msgspec.Struct, frozen=True, kw_only=True):
    """One month of one site. ``digest`` to ``acknowledged`` describe the last fully acknowledged report.

    Args:
        there: the rows that APEL may hold with amounts, without their amounts.
        ids: the broker's ids of its messages.
        stored: the number of stored jobs in the last run.
        reportable: the number of them in the summary.
        problems: the reasons why others could not be reported.
        outbox: the report that waits.
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


class DayState(msgspec.Struct, frozen=True, kw_only=True):
    """The individual jobs of one site that ended on one day of UTC.

    Args:
        totals: digest of the store's sums when all its jobs were last sent (``figures`` in the saved state).
        jobs: the number of acknowledged jobs.
        marks: eight bytes for each acknowledged job; None when they were dropped.
        stored: the number of stored jobs in the last run.
        reportable: the number of them that could be reported.
        settings: a digest of the options with which some of them were left out; None if none were.
    """

    totals: str | None = msgspec.field(default=None, name="figures")
    jobs: int = 0
    marks: str | None = ""
    stored: int = 0
    reportable: int = 0
    settings: str | None = None


class SiteState(msgspec.Struct, frozen=True, kw_only=True):
    """One site: summaries by month, individual jobs by day, and the day (UTC) of the last full check."""

    looked: date | None = None
    months: Mapping[str, MonthState] = msgspec.field(default_factory=dict[str, MonthState])
    days: Mapping[str, DayState] = msgspec.field(default_factory=dict[str, DayState])


class ReportedState(msgspec.Struct, frozen=True, kw_only=True):
    """All of the state.

    Args:
        since: the last ``publish_since``, in case the option is removed.
        sent: the number of messages ever published, for their labels.
        sites: by their names in GOCDB.
    """

    version: int = VERSION
    since: datetime | None = None
    sent: int = 0
    sites: Mapping[str, SiteState] = msgspec.field(default_factory=dict[str, SiteState])


def read_state(state: Any) -> ReportedState:  # Any: the JSON that was saved
    """Return the saved state.

    Raises:
        AuditordError: a newer version of the program saved it.
    """
    if state is None:
        return ReportedState()
    if state.get("version") != VERSION:
        raise AuditordError("the state of this plugin was written by a newer auditord: update this one")
    return msgspec.convert(state, ReportedState)


class SavedState:
    """The state of one run, saved with each change."""

    def __init__(self, context: PluginContext) -> None:
        self._context = context
        self.reported = read_state(context.state)

    def site(self, site: str) -> SiteState:
        """Return the state of a site."""
        return self.reported.sites.get(site, SiteState())

    def month(self, site: str, month: Month) -> MonthState:
        """Return the state of a month."""
        return self.site(site).months.get(str(month), MonthState())

    def day(self, site: str, day: date) -> DayState:
        """Return the state of a day."""
        return self.site(site).days.get(str(day), DayState())

    async def save_month(self, site: str, month: Month, state: MonthState, *, sent: int = 0) -> None:
        """Save a month, and add ``sent`` to the number of published messages."""
        await self.save_site(site, sent, months={**self.site(site).months, str(month): state})

    async def save_site(self, site: str, sent: int = 0, **changes: Any) -> None:  # Any: fields
        """Save changes of a site, and add ``sent`` to the number of published messages."""
        changed = msgspec.structs.replace(self.site(site), **changes)
        await self.save(sites={**self.reported.sites, site: changed}, sent=self.reported.sent + sent)

    async def save(self, **changes: Any) -> None:  # Any: fields
        """Save changes."""
        reported = msgspec.structs.replace(self.reported, **changes)
        await self._context.save_state(msgspec.to_builtins(reported))
        self.reported = reported
