"""Every call of the API; routes and ``/openapi.json`` are made from it."""

from collections.abc import Sequence
from typing import Final

from auditord.actions import Retried
from auditord.web.answers import JSON
from auditord.web.api.acting import ActingDesk
from auditord.web.api.adding import AddingDesk
from auditord.web.api.amending import AmendingDesk
from auditord.web.api.browsing import QuarantineDesk
from auditord.web.api.changing import ClosingsWanted, CorrectionWanted, DeletionsWanted, History, Outcomes
from auditord.web.api.events import RunEvent, RunWanted
from auditord.web.api.inside import Inside
from auditord.web.api.listing import NDJSON
from auditord.web.api.operation import Operation
from auditord.web.api.parameters import ENTRY, FILTERS, INSTANCE, PAGING, QUARANTINE, RECORD_ID, SUMS, VERDICTS
from auditord.web.api.records import RecordsDesk
from auditord.web.api.shapes import (
    Chosen,
    Discarded,
    QuarantinedInput,
    QuarantinePage,
    RecordPage,
    StoredRecord,
    Sums,
    Verdicts,
)
from auditord.web.api.status import StatusDesk
from auditord.web.api.status_shapes import HealthReport, Instances
from auditord.web.api.sums import SumsDesk
from auditord_hookspecs import Permission, Record

_BODY: Final = (400, 413, 415)


def record_operations(reading: RecordsDesk, adding: AddingDesk, sums: SumsDesk) -> Sequence[Operation]:
    """What is about records."""
    return (
        Operation(
            "GET",
            "/api/v1/records",
            "listRecords",
            "Read records, filtered, in pages or as lines.",
            reading.browse,
            Permission.READ,
            {200: {JSON: RecordPage, NDJSON: StoredRecord}},
            problems=(400, 503),
            parameters=(*FILTERS, *PAGING),
        ),
        Operation(
            "POST",
            "/api/v1/records",
            "addRecords",
            "Add records, each with a verdict of its own: those that are refused harm no others.",
            adding.add,
            Permission.WRITE,
            {200: {JSON: Verdicts}, 207: {JSON: Verdicts}},
            problems=(*_BODY, 503),
            parameters=(VERDICTS,),
            body={JSON: list[Record], NDJSON: Record},
        ),
        Operation(
            "GET",
            "/api/v1/records/{record_id}",
            "getRecord",
            "Read one record.",
            reading.show,
            Permission.READ,
            {200: {JSON: StoredRecord}},
            problems=(404, 503),
            parameters=(RECORD_ID,),
        ),
        Operation(
            "GET",
            "/api/v1/aggregates",
            "sumUpRecords",
            "Sum records up, grouped by whatever they have.",
            sums.show,
            Permission.READ,
            {200: {JSON: Sums}},
            problems=(400, 503),
            parameters=(*FILTERS, *SUMS),
        ),
    )


def amending_operations(desk: AmendingDesk) -> Sequence[Operation]:
    """What changes single records."""
    return (
        Operation(
            "POST",
            "/api/v1/corrections",
            "correctRecord",
            "Put a record in the place of the stored one, which is kept as a former version.",
            desk.correct,
            Permission.ADMINISTER,
            {200: {JSON: Outcomes}},
            problems=(*_BODY, 422, 503),
            body={JSON: CorrectionWanted},
            guarded=True,
        ),
        Operation(
            "POST",
            "/api/v1/closings",
            "closeRecords",
            "Give open records their stop times; as they were, they are kept as former versions.",
            desk.close,
            Permission.ADMINISTER,
            {200: {JSON: Outcomes}},
            problems=(*_BODY, 422, 503),
            body={JSON: ClosingsWanted},
            guarded=True,
        ),
        Operation(
            "POST",
            "/api/v1/deletions",
            "deleteRecords",
            "Delete records; they are kept as former versions.",
            desk.delete,
            Permission.ADMINISTER,
            {200: {JSON: Outcomes}},
            problems=(*_BODY, 422, 503),
            body={JSON: DeletionsWanted},
            guarded=True,
        ),
        Operation(
            "GET",
            "/api/v1/records/{record_id}/versions",
            "getFormerVersions",
            "See what a record was before each change on purpose, who made it, when and why; also of a deleted one.",
            desk.history,
            Permission.ADMINISTER,
            {200: {JSON: History}},
            problems=(404, 503),
            parameters=(RECORD_ID,),
            guarded=True,
        ),
    )


def inside_operations(inside: Inside, status: StatusDesk) -> Sequence[Operation]:
    """What is about the daemon itself."""
    acting, quarantine = ActingDesk(inside), QuarantineDesk(inside.spool)
    return (
        Operation(
            "GET",
            "/api/v1/health",
            "getHealth",
            "See how the daemon fares; 503 if a post would not be durable now.",
            status.health,
            Permission.METRICS,
            {200: {JSON: HealthReport}, 503: {JSON: HealthReport}},
        ),
        Operation(
            "GET",
            "/api/v1/instances",
            "listInstances",
            "See how each collector, plugin and sender fares.",
            status.instances,
            Permission.OPERATE,
            {200: {JSON: Instances}},
            problems=(503,),
        ),
        Operation(
            "POST",
            "/api/v1/instances/{instance}/runs",
            "runInstance",
            "Run a collector or a plugin now, after a run that is going on; leaving ends the run.",
            acting.run,
            Permission.OPERATE,
            {200: {NDJSON: RunEvent}},
            problems=(*_BODY, 404, 422, 503),
            parameters=(INSTANCE,),
            body={JSON: RunWanted},
            guarded=True,
        ),
        Operation(
            "GET",
            "/api/v1/quarantine",
            "listQuarantine",
            "See what could not be handled.",
            quarantine.browse,
            Permission.OPERATE,
            {200: {JSON: QuarantinePage}},
            problems=(400, 503),
            parameters=QUARANTINE,
        ),
        Operation(
            "GET",
            "/api/v1/quarantine/{number}",
            "getQuarantined",
            "See one entry of the quarantine with its raw input, which may hold personal data.",
            acting.show,
            Permission.OPERATE,
            {200: {JSON: QuarantinedInput}},
            problems=(404, 503),
            parameters=(ENTRY,),
            guarded=True,
        ),
        Operation(
            "POST",
            "/api/v1/quarantine/retry",
            "retryQuarantined",
            "Try entries again, each on its own.",
            acting.retry,
            Permission.OPERATE,
            {200: {JSON: Retried}},
            problems=(*_BODY, 503),
            body={JSON: Chosen},
            guarded=True,
        ),
        Operation(
            "POST",
            "/api/v1/quarantine/discard",
            "discardQuarantined",
            "Forget entries for good.",
            acting.discard,
            Permission.OPERATE,
            {200: {JSON: Discarded}},
            problems=(*_BODY, 503),
            body={JSON: Chosen},
            guarded=True,
        ),
    )
