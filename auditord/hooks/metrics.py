"""The reference of all metrics as Markdown, read from the sources of the daemon and of the installed hook modules.

Most metrics are there only once their instance has run, so a registry would not name them all.
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from auditord.hooks.sources import installed_sources

_TYPES: Final = ("counter", "gauge", "histogram", "summary")
_MAY_DECLARE: Final = re.compile(rf"(?i)(?:{'|'.join(_TYPES)})\w*\(\s*\"")
_BEGINNING: Final = """\
# Every metric

`GET /metrics` has them in Prometheus' text format. Most have the labels `task` (the instance's name) and `kind`. A
counter's name ends in `_total`; a histogram has `_bucket`, `_sum` and `_count`. Under AUDITOR's names are
`num_records_database`, `num_records_database_per_site`, `_per_group`, `_per_user`, `http_server_active_requests`,
`http_server_duration_seconds`, `http_server_request_size_bytes`, `http_server_response_size_bytes`, `priority` and
`resource_usage`.

| metric | type | |
|---|---|---|
| `auditord_http_request_duration_seconds` | histogram | Time until the answer was complete. |
| `auditord_http_request_size_bytes` | histogram | Announced size of the request's body. |
| `auditord_http_requests_in_flight` | gauge | HTTP requests that are being worked on. |
| `auditord_http_response_size_bytes` | histogram | Size of the answer. |
"""


class Exposed(msgspec.Struct, frozen=True, order=True):
    """A metric as its source declares it."""

    name: str
    type: str
    text: str


def markdown() -> str:
    """Return the whole reference, for ``auditord manual metrics``."""
    rows = (f"| `{each.name}` | {each.type} | {each.text} |\n" for each in sorted(set(exposed())))
    return f"{_BEGINNING}{''.join(rows)}"


def exposed() -> Iterator[Exposed]:
    """Yield the metrics of the daemon and of every installed hook module."""
    for source in installed_sources():
        if _MAY_DECLARE.search(text := source.text()):
            yield from _declared(ast.parse(text))


def _declared(tree: ast.Module) -> Iterator[Exposed]:
    """Yield calls such as ``Counter("name", "help", …)``, also of a function that makes one."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(attr=called),
                args=[ast.Constant(value=str(name)), ast.Constant(value=str(text)), *_],
            ) if kind := next((each for each in _TYPES if each in called.lower()), None):
                yield Exposed(f"{name}_total" if kind == "counter" else name, kind, text)
            case _:
                continue
