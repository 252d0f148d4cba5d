"""Changes of one record from the page: correct, close, delete; each is confirmed, with a reason that is kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import web

from auditord.actions import Closing, Note, Outcome, RecordActions
from auditord.web.api.amending import note_of
from auditord.web.page.forms import Form, Forms
from auditord.web.page.jobs import PATH, job_link
from auditord.web.page.rendering import Renderer
from auditord.web.page.visitors import Visitors
from auditord.web.problems import Refused
from auditord.web.requests import RecordsFor, read_target
from auditord_hookspecs import InvalidRecord, Record
from auditord_hookspecs.records import check_name
from auditord_hookspecs.wire import decode_record, encode_record

RECORD_ACT: Final = f"{PATH}/{{record_id}}/{{act}}"

_ACTS: Final = ("correct", "close", "delete")
_GOOD: Final = frozenset({"done", "same"})


@dataclass(frozen=True, slots=True)
class ChangingPages:
    """The pages on which administrators change a record.

    Args:
        changes: are made by this.
        records: those that a visitor may see.
        renderer: makes pages.
        visitors: knows who sees what.
        forms: checks what was sent.
    """

    changes: RecordActions
    records: RecordsFor
    renderer: Renderer
    visitors: Visitors
    forms: Forms

    async def ask(self, request: web.BaseRequest) -> web.StreamResponse:
        """Say what would be changed, above the form for it."""
        act, record = await self._chosen(request)
        self.forms.require()
        text = msgspec.json.format(encode_record(record), indent=2).decode()
        return self._form(request, act, record, {"record": text, "seen": text})

    async def change(self, request: web.BaseRequest) -> web.StreamResponse:
        """Change the record; a correction is shown once more before, with all that it changes."""
        fields = await self.forms.read(request)
        act, record = await self._chosen(request)
        try:
            note = note_of(request, fields.get("reason", ""), None)
            if act == "correct" and "confirmed" not in fields:
                return self._form(request, act, record, fields, differences=_differences(fields))
            outcome = await self._changed(act, record, fields, note)
        except (InvalidRecord, ValueError) as error:
            return self._form(request, act, record, fields, str(error))
        if outcome.outcome not in _GOOD:
            text = self.renderer.text(f"change.{outcome.outcome}", detail=outcome.detail or "")
            return self._form(request, act, record, fields, text, status=HTTPStatus.CONFLICT)
        values = {
            "title": self.renderer.text("act.done"),
            "text": self.renderer.text(f"change.{act}.done"),
            "back": PATH if act == "delete" else job_link(record.record_id),
        }
        return self.renderer.answer("confirm.html", values, self.visitors.navigation(request, PATH))

    async def _changed(self, act: str, record: Record, fields: Form, note: Note) -> Outcome:
        if act == "delete":
            (outcome,) = await self.changes.delete([record.record_id], note)
        elif act == "close":
            (outcome,) = await self.changes.close([Closing(record.record_id, _moment(fields.get("stop", "")))], note)
        else:
            corrected, seen = (decode_record(fields.get(name, "").encode()) for name in ("record", "seen"))
            outcome = await self.changes.correct(corrected, seen, note)
        return outcome

    async def _chosen(self, request: web.BaseRequest) -> tuple[str, Record]:
        target = read_target(request.raw_path)
        try:
            record_id, act = target.segment(1), target.segment(2)
            check_name(record_id)
        except (InvalidRecord, UnicodeDecodeError) as error:
            raise Refused(HTTPStatus.NOT_FOUND, str(error)) from error
        text = await self.records(request).get(record_id) if act in _ACTS else None
        if text is None:
            raise Refused(HTTPStatus.NOT_FOUND, self.renderer.text("job.missing", record_id=record_id))
        record = decode_record(text)
        if act == "close" and record.stop_time is not None:
            raise Refused(HTTPStatus.CONFLICT, self.renderer.text("change.closed"))
        return act, record

    def _form(
        self,
        request: web.BaseRequest,
        act: str,
        record: Record,
        fields: Mapping[str, str],
        error: str | None = None,
        *,
        status: HTTPStatus | None = None,
        differences: list[tuple[str, str, str]] | None = None,
    ) -> web.StreamResponse:
        values = {
            "act": act,
            "record": record,
            "link": job_link(record.record_id),
            "given": {"reason": "", "stop": "", "record": "", "seen": "", **fields},
            "error": error,
            "differences": differences,
        }
        status = status or (HTTPStatus.OK if error is None else HTTPStatus.UNPROCESSABLE_ENTITY)
        return self.renderer.answer("change.html", values, self.visitors.navigation(request, PATH), status)


def _differences(fields: Form) -> list[tuple[str, str, str]]:
    """Member, value before and value after, of each member that a correction changes.

    Raises:
        InvalidRecord: the correction is no record.
    """
    before, after = (
        msgspec.json.decode(encode_record(decode_record(fields.get(name, "").encode())), type=dict[str, object])
        for name in ("seen", "record")
    )
    names = dict.fromkeys([*before, *after])
    texts = ((name, _shown(before.get(name)), _shown(after.get(name))) for name in names)
    return [each for each in texts if each[1] != each[2]]


def _shown(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _moment(text: str) -> datetime:
    """A time as browsers send it, in UTC.

    Raises:
        ValueError: it is none.
    """
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError as error:
        raise ValueError(f"'{text[:40]}' is no time such as 2026-01-31T12:00") from error
