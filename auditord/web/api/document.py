"""Descriptions of the API, generated from the declarations of its calls: OpenAPI 3.1 and the manual's reference."""

from collections.abc import Iterable, Mapping
from functools import cache
from http import HTTPStatus
from inspect import cleandoc
from typing import Any, Final

import msgspec
from aiohttp import web

from auditord import __version__
from auditord.web.answers import json_answer
from auditord.web.api.handlers import API, WIRE
from auditord.web.api.shapes import DOCUMENT_PATH, LABELS
from auditord.web.dispatch import Handler
from auditord.web.operations import Operation, Shape, list_operations
from auditord.web.problem_shapes import Problem
from auditord.web.problems import PROBLEM

DESCRIPTION: Final = """\
Accounting of computing resources: the records of jobs, and the state of the daemon that keeps them.

Errors are problems (RFC 9457) with the members `parameter` (the part of the request at fault) and `remedy` (the action
to take). An answer whose JSON or chunked encoding has no end was cut off and is incomplete: ask again.

If the daemon has authenticators, every call needs a permission, which a bearer token or a client certificate gives.
Without the permission the answer is 401 or 403, also for paths that do not exist. A caller who may see only some
records gets an API in which the others do not exist. If the daemon has no authenticators, it offers calls that act, and
the raw input of the quarantine, on its control socket only (`curl --unix-socket …/control.sock
http://localhost/api/v1/…`, as root or the daemon's user); elsewhere they answer 403.

`x-labels` in `info` names the labels (meta keys) that this server calls site, group and user.

At the root the same server speaks AUDITOR's protocol for AUDITOR's own clients: `POST /record`, `PUT /record`,
`POST /records` (all or nothing), `GET /record/{record_id}`, `GET /records?…` (consecutive objects without a
separator), `GET /health_check` and `GET /metrics` (Prometheus). Those paths are AUDITOR's and are not described here.
"""

MEMBERS: Final[Mapping[str, Mapping[str, str]]] = {
    "Record": {
        "record_id": "unique in the store, stable over restarts and re-collection.",
        "meta": "lists of texts by key (``site_id``, ``group_id``, ``user_id``, …), or null where there are none.",
        "components": "the resources that the job held; may be empty.",
        "start_time": "with a zone; kept in UTC with microseconds.",
        "stop_time": "likewise, or null while the job runs. It may be before the start time: such records are stored, "
        "but left out of sums.",
    },
    "Component": {
        "name": "the resource's name, which implies the unit.",
        "amount": "a whole number.",
        "scores": "benchmark values.",
    },
    "Score": {
        "name": "the benchmark's name, such as HEPscore23.",
        "value": "the score per unit of the component.",
    },
    "Outcome": {
        "record_id": "the record's id.",
        "outcome": "``done``; ``same`` (nothing to change); ``changed`` (refused: the record changed after the caller "
        "read it); ``missing`` (refused: there is no such record); ``refused`` (for the reason in ``detail``).",
        "detail": "why it was refused, if there is more to say.",
    },
    "Retried": {
        "settled": "the number of entries that left quarantine (some jobs make no record with today's configuration).",
        "queued": "the number of queued records.",
        "failed": "the errors of the remaining entries, by the entry's number.",
    },
    "RunReport": {
        "task": "the instance's name.",
        "kind": "the instance's kind.",
        "started": "the start of the run.",
        "duration": "the duration of the run.",
        "error": "the error in one line, or null after success.",
        "records": "the number of records that reached the spool for the first time in this run.",
        "quarantined": "the number of jobs that went to quarantine.",
        "skipped": "the number of jobs that made no record on purpose, by reason.",
        "waits": "true if the run did nothing, since it has to wait for another instance.",
        "remarks": "what to look at although the run succeeded, one line each.",
    },
}
"""Descriptions of the members of types that are defined outside the API."""

_LOGINS: Final = {"token": {"type": "http", "scheme": "bearer"}, "certificate": {"type": "mutualTLS"}}
_REF: Final = "#/components/schemas/{name}"


def describe(operations: Iterable[Operation], labels: Mapping[str, str]) -> Mapping[str, Any]:  # Any: JSON
    """Return the OpenAPI document of calls; ``labels`` are the meta keys behind the names site, group and user."""
    known = list(operations)
    paths: dict[str, dict[str, Any]] = {}
    for operation in known:
        problems = sorted({*operation.problems, 401, 403})
        parameters = list[dict[str, Any]]()
        for each in operation.parameters:
            form: dict[str, Any] = {"in": "path", "required": True} if each.in_path else {"in": "query"}
            if each.deep:
                form |= {"style": "deepObject", "explode": True}
            parameters.append({"name": each.name, "description": each.description, "schema": each.schema, **form})
        call: dict[str, Any] = {
            "operationId": operation.name,
            "summary": operation.summary,
            "parameters": parameters,
            "responses": {
                **{str(status): _content(status, shapes) for status, shapes in operation.answers.items()},
                **{str(status): _content(status, {PROBLEM: Problem}) for status in problems},
            },
        }
        call["description"] = _needs(operation)
        if operation.guarded:
            call["description"] += " Without authenticators, the call is offered on the control socket only."
        if operation.body:
            call["requestBody"] = {"required": True, "content": _media(operation.body)}
        paths.setdefault(operation.path, {})[operation.method.lower()] = call
    shapes = [
        shape
        for operation in known
        for media in (operation.body, *operation.answers.values())
        for shape in media.values()
    ]
    _, components = msgspec.json.schema_components([*shapes, Problem], ref_template=_REF)
    for name in MEMBERS.keys() & components.keys():
        schema, words = components[name], MEMBERS[name]
        schema["description"] = cleandoc(schema.get("description", "")).partition("\n\n")[0]
        for member, each in schema["properties"].items():
            each["description"] = words[member]
    return {
        "openapi": "3.1.0",
        "info": {"title": "auditord", "version": __version__, "description": DESCRIPTION, LABELS: labels},
        "servers": [{"url": "/"}],
        "security": [{}, {"token": []}, {"certificate": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": _LOGINS,
        },
    }


def answering(operations: Iterable[Operation], labels: Mapping[str, str]) -> Handler:
    """Return a handler that answers with the document. It is generated at the first request."""
    known = list(operations)
    document = cache(lambda: json_answer(describe(known, labels)))

    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        return document()

    return handler


def _content(status: int, shapes: Mapping[str, Shape]) -> dict[str, Any]:  # Any: JSON
    return {"description": HTTPStatus(status).phrase, "content": _media(shapes)}


def _media(shapes: Mapping[str, Shape]) -> dict[str, Any]:  # Any: JSON
    described: dict[str, Any] = {}
    for media, shape in shapes.items():
        (schema,), _ = msgspec.json.schema_components([shape], ref_template=_REF)
        described[media] = {"schema": schema}
    return described


_BEGINNING: Final = """\
# Every route

## AUDITOR's, at the root

| request | permission | |
|---|---|---|"""
_OWN: Final = f"""\
| `GET {DOCUMENT_PATH}` | read | the calls below, for programs |

## auditord's own
"""


def markdown() -> str:
    """Return the manual's reference of all routes, as Markdown."""
    lines = [_BEGINNING]
    for each in list_operations(WIRE):
        permission = each.permission.value if each.permission else ""
        lines.append(f"| `{each.method} {each.path}` | {permission} | {each.summary} |")
    lines.append(_OWN)
    for each in list_operations(API):
        guarded = ", and without authenticators, the control socket" if each.guarded else ""
        lines += (f"### {each.method} {each.path}", "", each.summary, "", _needs(each, guarded), "")
        lines += (f"- `{parameter.name}`: {parameter.description}" for parameter in each.parameters)
        lines.append("")
    return "\n".join(lines)


def _needs(operation: Operation, otherwise: str = "") -> str:
    permission = operation.permission
    return "Needs no permission." if permission is None else f"Needs the permission {permission.value}{otherwise}."
