"""The calls that change single records, and show what they were before; on the control socket only."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from aiohttp import web

from auditord.actions import Closing, Note, Outcome, RecordActions
from auditord.store import RecordStore
from auditord.web.answers import JSON, json_answer
from auditord.web.api import changes
from auditord.web.api.operation import BODY_PROBLEMS, Operation, decoded
from auditord.web.api.parameters import RECORD_ID
from auditord.web.control import peer_name
from auditord.web.problems import Refused
from auditord.web.requests import principal_name, read_target
from auditord_hookspecs import InvalidRecord, Permission
from auditord_hookspecs.wire import parse_time


@dataclass(frozen=True, slots=True)
class ChangeHandlers:
    """Changes records, and shows what they were."""

    records: RecordActions
    store: RecordStore

    @Operation(
        "POST",
        "/api/v1/corrections",
        "correctRecord",
        "Put a record in the place of the stored one, which is kept as a former version.",
        Permission.ADMINISTER,
        {200: {JSON: changes.Outcomes}},
        problems=(*BODY_PROBLEMS, 422, 503),
        body={JSON: changes.CorrectionWanted},
        guarded=True,
    )
    async def correct(self, request: web.BaseRequest) -> web.StreamResponse:
        """Put a record in the place of the stored one."""
        wanted = await decoded(request, changes.CorrectionWanted)
        with _invalid_refused():
            note = note_of(request, wanted.reason, wanted.by)
            return _answer([await self.records.correct(wanted.record, wanted.seen, note)])

    @Operation(
        "POST",
        "/api/v1/closings",
        "closeRecords",
        "Give open records their stop times; as they were, they are kept as former versions.",
        Permission.ADMINISTER,
        {200: {JSON: changes.Outcomes}},
        problems=(*BODY_PROBLEMS, 422, 503),
        body={JSON: changes.ClosingsWanted},
        guarded=True,
    )
    async def close(self, request: web.BaseRequest) -> web.StreamResponse:
        """Close open records."""
        wanted = await decoded(request, changes.ClosingsWanted)
        with _invalid_refused():
            closings = [Closing(each.record_id, _stop(each)) for each in wanted.closings]
            note = note_of(request, wanted.reason, wanted.by)
            return _answer(await self.records.close(closings, note))

    @Operation(
        "POST",
        "/api/v1/deletions",
        "deleteRecords",
        "Delete records; they are kept as former versions.",
        Permission.ADMINISTER,
        {200: {JSON: changes.Outcomes}},
        problems=(*BODY_PROBLEMS, 422, 503),
        body={JSON: changes.DeletionsWanted},
        guarded=True,
    )
    async def delete(self, request: web.BaseRequest) -> web.StreamResponse:
        """Delete records."""
        wanted = await decoded(request, changes.DeletionsWanted)
        with _invalid_refused():
            note = note_of(request, wanted.reason, wanted.by)
            return _answer(await self.records.delete(wanted.ids, note))

    @Operation(
        "GET",
        "/api/v1/records/{record_id}/versions",
        "getFormerVersions",
        "See a record before each change on purpose, who made it, when and why; also a deleted one.",
        Permission.ADMINISTER,
        {200: {JSON: changes.History}},
        problems=(404, 503),
        parameters=(RECORD_ID,),
        guarded=True,
    )
    async def history(self, request: web.BaseRequest) -> web.StreamResponse:
        """The former versions of a record."""
        versions = await self.store.history(read_target(request.raw_path).segment(-2))
        return json_answer(changes.History([changes.former(version) for version in versions]))


def _answer(outcomes: Sequence[Outcome]) -> web.StreamResponse:
    return json_answer(changes.Outcomes(list(outcomes)))


def note_of(request: web.BaseRequest, reason: str, by: str | None) -> Note:
    """The reason and the author of a change: of an authenticated caller never the given name alone."""
    principal = principal_name(request)
    if principal is None:
        return Note(reason, by or peer_name(request))
    return Note(reason, f"{by} ({principal})" if by else principal)


def _stop(wanted: changes.ClosingWanted) -> datetime | timedelta:
    if (wanted.stop_time is None) == (wanted.runtime is None):
        raise InvalidRecord(f"of {wanted.record_id!r}, say either 'stop_time' or 'runtime'")
    return timedelta(seconds=wanted.runtime or 0) if wanted.stop_time is None else parse_time(wanted.stop_time)


@contextmanager
def _invalid_refused() -> Generator[None, None, None]:
    try:
        yield
    except InvalidRecord as error:
        raise Refused(422, str(error), parameter="body") from error
