"""The HTTP server: AUDITOR's wire contract at the root, on every address of ``api.listen``."""

from auditord.web.server import serve
from auditord.web.spooling import RequestSpool

__all__ = ["RequestSpool", "serve"]
