"""The index of all errors as Markdown, read from the sources of the daemon and of the installed hook modules.

The cause of an error is the first paragraph of its class's docstring, what to do the section ``Remedy:`` in it, and its
messages are those of the calls that make one, with ``…`` for the names in them.
"""

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Final

from auditord.hooks.error_sources import ErrorClass, read_errors
from auditord.hooks.sources import installed_sources

_BEGINNING: Final = """\
# Every error

Words of a message find its entry: `auditord manual WORD WORD`. The parts that vary are … here. There are
pages of [exit codes](exit-codes.md) and of [symptoms](troubleshooting.md).

"""
STATUSES: Final[Mapping[int, tuple[str, str]]] = {
    400: ("the request cannot be understood", "correct what the text names; a posted body is in quarantine"),
    401: ("the caller is unknown", "send a token or a certificate, or log in: `auditord manual access`"),
    403: ("the caller may not do this", "get a role that allows it: `auditord manual access`; see the audit log"),
    404: ("there is no such path, record, instance or entry", "check id and path; `/openapi.json` lists all paths"),
    405: ("the path does not take this method", "use one of those in the header `Allow`"),
    409: ("it has changed meanwhile, or is impossible in this state", "look again, then decide"),
    413: ("the body is too large", "split it, or raise `api.max_body`"),
    415: ("the body has an unsupported type", "send `application/json`, or what the text names"),
    421: ("the request is for another host's name", "add the name to `api.hosts`"),
    422: ("it is valid, but cannot be done", "correct what the text names"),
    500: ("the id is taken (`RECORD_EXISTS`, as in AUDITOR), or the store is unavailable", "post one by one, or later"),
    503: ("the store, or the requested part, is unavailable now", "try again later; `auditord status` has the reason"),
}  # fmt: skip
"""Causes and remedies of the statuses with which requests are refused."""


def markdown() -> str:
    """Return the whole index, for ``auditord manual errors``."""
    index = read_errors(installed_sources())
    parts = [_BEGINNING, *_statuses(index.refusals), "## By class\n\n"]
    for entry in sorted(index.classes.values(), key=lambda each: (each.name, each.module)):
        if not entry.name.startswith("_"):
            parts += _section(entry)
    return "".join(parts).rstrip() + "\n"


def _section(entry: ErrorClass) -> Iterator[str]:
    yield f"### {entry.name} ({entry.module.removesuffix('.errors')})\n\n"
    yield f"{_sentence(entry.cause)} What to do: {entry.remedy}\n\n"
    if entry.messages:
        yield "".join(f"- {each}\n" for each in sorted(entry.messages)) + "\n"


def _statuses(found: Mapping[int, set[tuple[str, str]]]) -> Iterator[str]:
    yield "## Statuses of HTTP\n\n"
    for status, texts in sorted(found.items()):
        cause, remedy = STATUSES[status]
        yield f"### {status} {HTTPStatus(status).phrase}\n\n{_sentence(cause)} What to do: {remedy}.\n\n"
        yield "".join(f"- {text}{f': {what}' if what else ''}\n" for text, what in sorted(texts)) + "\n"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
