"""Calls that act on the daemon: quarantine, changes to single records, and reloads of the configuration.

Changes are possible only on the control socket or with an authenticator. The list of the quarantine omits the raw
input, which may contain personal data.
"""

from collections.abc import Awaitable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, Protocol
from urllib.parse import urlencode

import msgspec
from aiohttp import web

from auditord.actions import Actions, Closing, Note, Outcome, RecordActions, Retried
from auditord.config.shown import Changes
from auditord.errors import ConfigurationError, HookError
from auditord.spool import Spool
from auditord.store.store import RecordStore
from auditord.web.answers import JSON, json_answer
from auditord.web.api import changes
from auditord.web.api.operation import BODY_PROBLEMS, COUNT, NAME, RECORD_ID, Whole, decode_body, read_given
from auditord.web.api.shapes import (
    Chosen,
    Discarded,
    NextRun,
    OptionDifference,
    QuarantinedInput,
    QuarantinePage,
    Reloaded,
    ReloadWanted,
    Retry,
    summary,
    with_input,
)
from auditord.web.listeners import peer_name
from auditord.web.operations import Operation, Parameter
from auditord.web.problems import Refused
from auditord.web.record_query import about
from auditord.web.requests import principal_name, read_target
from auditord_hookspecs import InvalidRecord, Permission
from auditord_hookspecs.wire import format_time, parse_time

DEFAULT_PAGE: Final = 100
LARGEST_PAGE: Final = 1_000

LIMIT: Final = Whole(1, LARGEST_PAGE)


ENTRY: Final = Parameter("number", "The number of an entry.", COUNT.schema, in_path=True)
QUARANTINE: Final = (
    Parameter("task", "Only entries of this collector or sender; api for bodies that clients posted.", NAME.schema),
    Parameter("after", "Only entries with a higher number.", COUNT.schema),
    Parameter(
        "limit",
        f"The largest number of entries; {DEFAULT_PAGE} if not given.",
        LIMIT.schema,
    ),
)


class QuarantineQuery(msgspec.Struct, frozen=True):
    """A query for a page of the quarantine.

    Args:
        task: the collector, sender or ``api``; None for all.
        after: only entries with a higher number.
    """

    task: str | None
    after: int
    limit: int

    def next(self, last: int) -> str:
        """Return the query string of the page after an entry."""
        task = {} if self.task is None else {"task": self.task}
        return urlencode({**task, "after": last, "limit": self.limit})


class QuarantineHandlers(msgspec.Struct, frozen=True):
    spool: Spool
    actions: Actions

    @Operation(
        "GET",
        "/api/v1/quarantine",
        "listQuarantine",
        "See jobs and records that could not be processed.",
        Permission.OPERATE,
        {200: {JSON: QuarantinePage}},
        problems=(400, 503),
        parameters=QUARANTINE,
    )
    async def browse(self, request: web.BaseRequest) -> web.StreamResponse:
        """List a page of entries, the oldest first."""
        target = read_target(request.raw_path)
        query = read_quarantine_query(target.query)
        entries = await self.spool.quarantine_summaries(query.task, after=query.after, limit=query.limit + 1)
        shown = entries[: query.limit]
        more = f"{target.path}?{query.next(shown[-1].quarantine_id)}" if len(entries) > query.limit else None
        return json_answer(QuarantinePage([summary(entry) for entry in shown], more))

    @Operation(
        "GET",
        "/api/v1/quarantine/{number}",
        "getQuarantined",
        "See one entry of the quarantine with its raw input, which may hold personal data.",
        Permission.OPERATE,
        {200: {JSON: QuarantinedInput}},
        problems=(404, 503),
        parameters=(ENTRY,),
        guarded=True,
    )
    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        """Show an entry of the quarantine with its raw input."""
        text = read_target(request.raw_path).segment(-1)
        is_number = text.isascii() and text.isdigit() and len(text) <= 18  # noqa: PLR2004 fits 63 bits
        entry = await self.spool.quarantine_get(int(text)) if is_number else None
        if entry is None:
            remedy = "GET /api/v1/quarantine lists the entries"
            raise Refused(404, f"the quarantine has no entry '{text}'", parameter="number", remedy=remedy)
        return json_answer(with_input(entry))

    @Operation(
        "POST",
        "/api/v1/quarantine/retry",
        "retryQuarantined",
        "Retry entries, each on its own.",
        Permission.OPERATE,
        {200: {JSON: Retried}},
        problems=(*BODY_PROBLEMS, 503),
        body={JSON: Retry},
        guarded=True,
    )
    async def retry(self, request: web.BaseRequest) -> web.StreamResponse:
        chosen = await decode_body(request, Retry)
        return json_answer(await self.actions.retry(chosen.ids, chosen.collector))

    @Operation(
        "POST",
        "/api/v1/quarantine/discard",
        "discardQuarantined",
        "Delete entries for good.",
        Permission.OPERATE,
        {200: {JSON: Discarded}},
        problems=(*BODY_PROBLEMS, 503),
        body={JSON: Chosen},
        guarded=True,
    )
    async def discard(self, request: web.BaseRequest) -> web.StreamResponse:
        chosen = await decode_body(request, Chosen)
        return json_answer(Discarded(await self.actions.discard(chosen.ids)))


def read_quarantine_query(raw: str) -> QuarantineQuery:
    """Parse a query string.

    Raises:
        InvalidQuery: a parameter is unknown or has an invalid value.
    """
    given = read_given(raw, ("task", "after", "limit"))
    with about("task"):
        task = NAME.read("task", given.get("task", ()))
    with about("after"):
        after = COUNT.read("after", given.get("after", ()))
    with about("limit"):
        limit = LIMIT.read("limit", given.get("limit", ()))
    return QuarantineQuery(task, after or 0, limit or DEFAULT_PAGE)


class ChangeHandlers(msgspec.Struct, frozen=True):
    """Changes records and shows their former versions."""

    records: RecordActions
    store: RecordStore

    @Operation(
        "POST",
        "/api/v1/corrections",
        "correctRecord",
        "Replace a stored record, which is kept as a former version.",
        Permission.ADMINISTER,
        {200: {JSON: changes.Outcomes}},
        problems=(*BODY_PROBLEMS, 422, 503),
        body={JSON: changes.CorrectionWanted},
        guarded=True,
    )
    async def correct(self, request: web.BaseRequest) -> web.StreamResponse:
        wanted = await decode_body(request, changes.CorrectionWanted)
        with _invalid_refused():
            note = note_of(request, wanted.reason, wanted.by)
            return _answer([await self.records.correct(wanted.record, wanted.seen, note)])

    @Operation(
        "POST",
        "/api/v1/closings",
        "closeRecords",
        "Give open records their stop times. The open versions are kept as former versions.",
        Permission.ADMINISTER,
        {200: {JSON: changes.Outcomes}},
        problems=(*BODY_PROBLEMS, 422, 503),
        body={JSON: changes.ClosingsWanted},
        guarded=True,
    )
    async def close(self, request: web.BaseRequest) -> web.StreamResponse:
        wanted = await decode_body(request, changes.ClosingsWanted)
        with _invalid_refused():
            closings = list[Closing]()
            for each in wanted.closings:
                if (each.stop_time is None) == (each.runtime is None):
                    raise InvalidRecord(f"for {each.record_id!r}, give either 'stop_time' or 'runtime'")
                runtime = timedelta(seconds=each.runtime or 0)
                stop = runtime if each.stop_time is None else parse_time(each.stop_time)
                closings.append(Closing(each.record_id, stop))
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
        wanted = await decode_body(request, changes.DeletionsWanted)
        with _invalid_refused():
            note = note_of(request, wanted.reason, wanted.by)
            return _answer(await self.records.delete(wanted.ids, note))

    @Operation(
        "GET",
        "/api/v1/records/{record_id}/versions",
        "getFormerVersions",
        "See the former versions of a record, even of a deleted one: who changed it, when and why.",
        Permission.ADMINISTER,
        {200: {JSON: changes.History}},
        problems=(404, 503),
        parameters=(RECORD_ID,),
        guarded=True,
    )
    async def history(self, request: web.BaseRequest) -> web.StreamResponse:
        """List the former versions of a record."""
        versions = await self.store.history(read_target(request.raw_path).segment(-2))
        return json_answer(changes.History([changes.former(version) for version in versions]))


def _answer(outcomes: Sequence[Outcome]) -> web.StreamResponse:
    return json_answer(changes.Outcomes(list(outcomes)))


def note_of(request: web.BaseRequest, reason: str, by: str | None) -> Note:
    """Return reason and author of a change. The author always includes an authenticated caller's name."""
    principal = principal_name(request)
    if principal is None:
        return Note(reason, by or peer_name(request))
    return Note(reason, f"{by} ({principal})" if by else principal)


@contextmanager
def _invalid_refused() -> Generator[None, None, None]:
    try:
        yield
    except InvalidRecord as error:
        raise Refused(422, str(error), parameter="body") from error


class Reload(Protocol):
    def __call__(self, *, dry_run: bool, values: Mapping[str, Any] | None) -> Awaitable[Changes]:
        """Reload the files, or only compare them or these values of other files.

        Raises:
            ConfigurationError: the files are invalid.
            HookError: a hook module failed to resolve a secret.
        """
        ...


class ConfigurationHandlers(msgspec.Struct, frozen=True):
    """Handles reloads of the configuration; None if the daemon was started without files."""

    reload: Reload | None

    @Operation(
        "POST",
        "/api/v1/configuration/reload",
        "reloadConfiguration",
        "Reload the configuration files, or only compare them.",
        Permission.OPERATE,
        {200: {JSON: Reloaded}},
        problems=(*BODY_PROBLEMS, 409, 422),
        body={JSON: ReloadWanted},
        guarded=True,
    )
    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Compare the files with the running configuration, and reload them unless an option needs a restart."""
        wanted = await decode_body(request, ReloadWanted)
        if self.reload is None:
            raise Refused(409, "this daemon was started without files that it could read again")
        if wanted.values is not None and (not wanted.dry_run or principal_name(request) is not None):
            # Their secrets are references to files that the daemon reads.
            raise Refused(422, "values need dry_run and the control socket", parameter="body")
        try:
            changes = await self.reload(dry_run=wanted.dry_run, values=wanted.values)
        except (ConfigurationError, HookError) as error:
            raise Refused(
                422, str(error), remedy="run auditord config check; the daemon keeps its running configuration"
            ) from error
        names = [".".join(each) for each in changes.instances]
        differences = [OptionDifference(each.option, each.running, each.written) for each in changes.differences]
        runs = [
            NextRun(each.instance, None if each.at is None else format_time(each.at), each.is_first, each.effect)
            for each in changes.runs
        ]
        return json_answer(
            Reloaded(changes.applied, differences, names, list(changes.restart), runs, list(changes.files))
        )
