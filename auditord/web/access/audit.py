"""The audit log: who acted, and whose request was refused. One line each, a JSON object; nothing secret is in it."""

import json
import logging
from typing import Final, Literal

from aiohttp import web

from auditord.web.requests import read_target

audit_log: Final = logging.getLogger("auditord.audit")

_LONGEST: Final = 200


def acting(request: web.BaseRequest, principal: str) -> None:
    """Note that a principal is about to act on the daemon, or to see raw input."""
    _write("acting", request, principal, None)


def refused(request: web.BaseRequest, principal: str | None, reason: str) -> None:
    """Note that a request was refused."""
    _write("refused", request, principal, reason)


def session(request: web.BaseRequest, principal: str | None, event: Literal["login", "logout"]) -> None:
    """Note that a session of a browser begins or ends."""
    _write(event, request, principal, None)


def _write(event: str, request: web.BaseRequest, principal: str | None, reason: str | None) -> None:
    line = {
        "event": event,
        "principal": principal,
        "from": request.remote or "unix",
        "method": request.method[:20],
        "path": read_target(request.raw_path).path[:_LONGEST],  # never the query: it may hold anything
        "reason": reason,
    }
    audit_log.info("%s", json.dumps({name: value for name, value in line.items() if value is not None}))
