"""The calls that change single records, and show what they were before; on the control socket only."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
from aiohttp import web

from auditord.actions import Closing, Note, Outcome
from auditord.store import RecordStore, Version
from auditord.web.access import principal_name
from auditord.web.answers import JSON, Answer
from auditord.web.api import bodies
from auditord.web.api.changing import (
    ClosingsWanted,
    ClosingWanted,
    CorrectionWanted,
    DeletionsWanted,
    FormerVersion,
    History,
    Outcomes,
)
from auditord.web.api.inside import Inside
from auditord.web.api.problems import Refused
from auditord.web.api.shapes import StoredRecord
from auditord.web.control import peer_name
from auditord.web.targets import read_target
from auditord_hookspecs import InvalidRecord
from auditord_hookspecs.wire import format_time, parse_time


@dataclass(frozen=True, slots=True)
class AmendingDesk:
    """Changes records, and shows what they were.

    Args:
        inside: who acts.
        store: where records are.
    """

    inside: Inside
    store: RecordStore

    async def correct(self, request: web.BaseRequest) -> web.StreamResponse:
        """Put a record in the place of the stored one."""
        wanted = await bodies.decoded(request, CorrectionWanted)
        with _invalid_refused():
            note = _note(request, wanted.reason, wanted.by)
            return _answer([await self.inside.actions.records.correct(wanted.record, wanted.seen, note)])

    async def close(self, request: web.BaseRequest) -> web.StreamResponse:
        """Close open records."""
        wanted = await bodies.decoded(request, ClosingsWanted)
        with _invalid_refused():
            closings = [Closing(each.record_id, _stop(each)) for each in wanted.closings]
            note = _note(request, wanted.reason, wanted.by)
            return _answer(await self.inside.actions.records.close(closings, note))

    async def delete(self, request: web.BaseRequest) -> web.StreamResponse:
        """Delete records."""
        wanted = await bodies.decoded(request, DeletionsWanted)
        with _invalid_refused():
            note = _note(request, wanted.reason, wanted.by)
            return _answer(await self.inside.actions.records.delete(wanted.ids, note))

    async def history(self, request: web.BaseRequest) -> web.StreamResponse:
        """What a record was before."""
        versions = await self.store.history(read_target(request.raw_path).segment(-2))
        return Answer(200, msgspec.json.encode(History([former(version) for version in versions])), JSON)


def former(version: Version) -> FormerVersion:
    """A former version as it is shown."""
    return FormerVersion(
        number=version.number,
        action=version.action,
        reason=version.reason,
        changed_at=format_time(version.changed_at),
        changed_by=version.changed_by,
        record=msgspec.json.decode(version.document, type=StoredRecord),
        received_at=format_time(version.received_at),
        updated_at=None if version.updated_at is None else format_time(version.updated_at),
        principal=version.principal,
    )


def _answer(outcomes: Sequence[Outcome]) -> Answer:
    return Answer(200, msgspec.json.encode(Outcomes(list(outcomes))), JSON)


def _note(request: web.BaseRequest, reason: str, by: str | None) -> Note:
    """Who wants it: of a caller who logged in, never only what they say of themselves."""
    principal = principal_name(request)
    if principal is None:
        return Note(reason, by or peer_name(request))
    return Note(reason, f"{by} ({principal})" if by else principal)


def _stop(wanted: ClosingWanted) -> datetime | timedelta:
    if (wanted.stop_time is None) == (wanted.runtime is None):
        raise InvalidRecord(f"of {wanted.record_id!r}, say either 'stop_time' or 'runtime'")
    return timedelta(seconds=wanted.runtime or 0) if wanted.stop_time is None else parse_time(wanted.stop_time)


@contextmanager
def _invalid_refused() -> Generator[None, None, None]:
    try:
        yield
    except InvalidRecord as error:
        raise Refused(422, str(error), parameter="body") from error
