"""The audit log: who acted, and whose request was refused. Each entry is a line of JSON without secrets."""

import json
import logging
from typing import Final, Literal

from aiohttp import web

from auditord.web.requests import path_for_logs

audit_log: Final = logging.getLogger("auditord.audit")


def acting(request: web.BaseRequest, principal: str) -> None:
    """Log that a principal is about to act on the daemon or to see raw input."""
    _write("acting", request, principal, None)


def log_refusal(request: web.BaseRequest, principal: str | None, reason: str) -> None:
    _write("refused", request, principal, reason)


def session(request: web.BaseRequest, principal: str | None, event: Literal["login", "logout"]) -> None:
    """Log that a browser session begins or ends."""
    _write(event, request, principal, None)


def _write(event: str, request: web.BaseRequest, principal: str | None, reason: str | None) -> None:
    line = {
        "event": event,
        "principal": principal,
        "from": request.remote or "unix",
        "method": request.method[:20],
        "path": path_for_logs(request),
        "reason": reason,
    }
    audit_log.info("%s", json.dumps({name: value for name, value in line.items() if value is not None}))
