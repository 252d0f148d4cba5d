"""The reference of all routes as Markdown, made of the tables that the server routes by."""

from collections.abc import Iterator
from typing import Final

from auditord.web.api.adding import AddHandler
from auditord.web.api.amending import ChangeHandlers
from auditord.web.api.operation import Operation, operations_of
from auditord.web.api.quarantine import QuarantineHandlers
from auditord.web.api.records import RecordHandlers
from auditord.web.api.runs import RunHandler
from auditord.web.api.sites import SiteReportHandlers
from auditord.web.api.status import StatusHandlers
from auditord.web.api.sums import SumsHandler

_BEGINNING: Final = """\
# Every route

## AUDITOR's, at the root

| request | permission | |
|---|---|---|
| `POST /record` | write | add a record |
| `PUT /record` | update | set a record's stop time |
| `POST /records` | write | add records, all or none |
| `GET /record/{record_id}` | read | a record |
| `GET /records?…` | read | records, one object behind the other |
| `GET /health_check` | | 200 as long as a POST would be durable |
| `GET /metrics` | metrics | Prometheus' text format |
| `GET /openapi.json` | read | the calls below, for programs |

## Ours
"""

HANDLERS: Final = (
    *(RecordHandlers, AddHandler, SumsHandler, StatusHandlers),
    *(RunHandler, QuarantineHandlers, ChangeHandlers, SiteReportHandlers),
)


def markdown() -> str:
    """The whole reference."""
    return "\n".join(
        [_BEGINNING, *(line for made in HANDLERS for each in operations_of(made) for line in _lines(each))]
    )


def _lines(operation: Operation) -> Iterator[str]:
    guarded = ", and where nobody is asked who they are, the control socket" if operation.guarded else ""
    yield from (f"### {operation.method} {operation.path}", "", operation.summary, "")
    yield from (f"Needs the permission {operation.permission.value}{guarded}.", "")
    yield from (f"- `{each.name}`: {each.description}" for each in operation.parameters)
    yield ""
