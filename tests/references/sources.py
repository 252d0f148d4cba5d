"""Write the references of all errors and metrics as Markdown, from the sources of the daemon and its hook modules.

The cause of an error is the first paragraph of its class's docstring, and its remedy is the section ``Remedy:``. Its
messages are those of the calls that create it, with ``…`` for the variable parts.

Nothing is imported, so that the references are complete even if a library is not installed. Most metrics exist only
once their instance has run, so a registry would not contain them all.
"""

import ast
import re
from collections import ChainMap, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

ROOT: Final = Path(__file__).parents[2]


class Source(msgspec.Struct, frozen=True):
    """The source of a module, which is read without an import."""

    module: str
    path: Path

    def tree(self) -> ast.Module:
        """Return the syntax tree of the module."""
        return ast.parse(self.path.read_text("utf-8"))


def all_sources() -> Iterator[Source]:
    """Yield the modules of the daemon, of the contract and of the built-in hook modules."""
    for folder in (ROOT / "auditord", ROOT / "hookspecs/auditord_hookspecs", ROOT / "builtin_plugins/auditord_builtin"):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            yield Source(".".join(parts).removesuffix(".__init__"), path)


Assigned: TypeAlias = Mapping[str, list[ast.expr]]

_ROOT: Final = "AuditordError"
_REFUSED: Final = "auditord.web.problems.Refused"
_CONFIGURATION: Final = "auditord.errors.ConfigurationError"
_ANSWERS: Final = frozenset({"json_error", "plain_text", "Answer", "Refused"})
_MAY_BE_TEXT: Final = (ast.Constant, ast.JoinedStr, ast.IfExp, ast.Name)
_IN_CONFIGURATION: Final = re.compile(r"\.config(\.|$)")


@dataclass
class ErrorClass:
    """An error class, with cause and remedy from its docstring and the messages that it is raised with."""

    name: str
    module: str
    bases: tuple[str, ...]
    cause: str
    remedy: str
    messages: set[str] = field(default_factory=set[str])


@dataclass
class Errors:
    """All errors: classes by full name, and pairs of message and remedy of refused requests by status."""

    classes: dict[str, ErrorClass]
    refusals: defaultdict[int, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))


def read_errors(sources: Iterable[Source]) -> Errors:
    """Read all error classes, their messages, and the refusals of requests."""
    read = [(source, _Contents(source, source.tree())) for source in sources]
    known = {f"{source.module}.{node.name}": _class(source, node) for source, found in read for node in found.classes}
    wanted = {_ROOT}
    while more := {each.name for each in known.values() if wanted.intersection(each.bases)} - wanted:
        wanted |= more
    errors = Errors(
        {name: each for name, each in known.items() if each.name == _ROOT or wanted.intersection(each.bases)}
    )
    for _, found in read:
        for call, assigned in found.calls:
            _note(errors, call, found, assigned)
    return errors


def _class(source: Source, node: ast.ClassDef) -> ErrorClass:
    text = ast.get_docstring(node) or ""
    remedy = re.search(r"^Remedy:\n((?:    .*\n?)+)", text, re.MULTILINE)
    cause = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", " ".join(text.partition("\n\n")[0].split())).replace("``", "`")
    bases = tuple(_last(base) for base in node.bases)
    return ErrorClass(node.name, source.module, bases, cause, " ".join(remedy[1].split()) if remedy else "")


def _note(errors: Errors, call: ast.Call, found: "_Contents", assigned: Assigned) -> None:
    """Add the messages of a call, if it creates an error or refuses a request."""
    name = found.full_name(call.func, errors.classes)
    if name is not None and name != _REFUSED:
        texts = (text for argument in call.args[:2] for text in _texts(argument, assigned))
        errors.classes[name].messages.update(text for text in texts if " " in text)
    elif found.is_web and _last(call.func) in _ANSWERS and (status := _status(call.args)):
        remedies = (keyword.value for keyword in call.keywords if keyword.arg == "remedy")
        remedy = next((text for each in remedies for text in _texts(each, assigned)), "")
        errors.refusals[status].update((text, remedy) for text in _texts(call.args[1], assigned))


def _is_web(source: Source) -> bool:
    return source.module.startswith("auditord.web")


def _status(arguments: list[ast.expr]) -> int | None:
    """Return the HTTP status, if these are the arguments of a refusal with a message."""
    match arguments:
        case [ast.Constant(value=int(status)), _, *_] if status >= HTTPStatus.BAD_REQUEST:
            return status
        case [ast.Attribute(value=ast.Name(id="HTTPStatus"), attr=name), _, *_]:
            return HTTPStatus[name].value
        case _:
            return None


def _last(node: ast.expr) -> str:
    """Return the last name of a dotted expression."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return _last(value)
        case _:
            return ""


class _Contents(ast.NodeVisitor):
    """The classes and the calls of a module; each call with the assignments to names in its scope."""

    def __init__(self, source: Source, tree: ast.Module) -> None:
        self._module = source.module
        self._imported: dict[str, str] = {}
        self._assigned: ChainMap[str, list[ast.expr]] = ChainMap()
        self.is_web = _is_web(source)
        self.classes: list[ast.ClassDef] = []
        self.calls: list[tuple[ast.Call, Assigned]] = []
        self.visit(tree)

    def full_name(self, called: ast.expr, known: Mapping[str, ErrorClass]) -> str | None:
        """Return the known class that is called; a fault of a configuration value is a ConfigurationError."""
        name = _last(called)
        if name == "ValueError" and _IN_CONFIGURATION.search(self._module):
            return _CONFIGURATION
        full = self._imported.get(name, f"{self._module}.{name}")
        package = full.rpartition(".")[0]
        found = (each for each, known_class in known.items() if known_class.name == name and each.startswith(package))
        return full if full in known else next(found, None)  # the package re-exports a class of one of its modules

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.classes.append(node)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._assigned = self._assigned.new_child()
        self.generic_visit(node)
        self._assigned = self._assigned.parents

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 ast's own

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assign(target, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign(node.target, node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = _last(node.func)
        if node.args and (name in _ANSWERS or name[:1].isupper()):
            self.calls.append((node, self._assigned))
        self.generic_visit(node)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name) and isinstance(value, _MAY_BE_TEXT):
            own: dict[str, list[ast.expr]] = self._assigned.maps[0]  # type: ignore[assignment]
            own.setdefault(target.id, []).append(value)


def _texts(node: ast.expr, assigned: Assigned, deep: int = 2) -> Iterator[str]:
    """Yield the texts that an expression can have; none if they are computed elsewhere."""
    match node:
        case ast.Constant(value=str(text)):
            yield _one_line(text)
        case ast.Constant(value=bytes(text)):
            yield text.decode()
        case ast.JoinedStr(values=parts):
            yield _one_line("".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts))
        case ast.IfExp(body=one, orelse=other):
            yield from (*_texts(one, assigned, deep), *_texts(other, assigned, deep))
        case ast.Name(id=name) if deep:
            yield from (text for value in assigned.get(name, ()) for text in _texts(value, assigned, deep - 1))
        case _:
            return


def _one_line(text: str) -> str:
    return " ".join(re.sub(r"%[sdr]", "…", text).split())


_ERRORS: Final = """\
# Every error

To find an error, search for words of its message: `auditord manual WORD WORD`. Variable parts are shown as … here.
See also [exit codes](exit-codes.md) and [symptoms](troubleshooting.md).

"""
STATUSES: Final[Mapping[int, tuple[str, str]]] = {
    400: ("the request cannot be understood", "correct what the text names; a posted body is in quarantine"),
    401: ("the caller is unknown", "send a token or a certificate, or log in: `auditord manual access`"),
    403: ("the caller may not do this", "get a role that allows it: `auditord manual access`; see the audit log"),
    404: ("there is no such path, record, instance or entry", "check id and path; `/openapi.json` lists all paths"),
    405: ("the path does not support this method", "use one of the methods in the header `Allow`"),
    409: ("the state has changed meanwhile, or does not allow this", "look again, then decide"),
    413: ("the body is too large", "split the body, or raise `api.max_body`"),
    415: ("the body has an unsupported type", "send `application/json`, or the type that the text names"),
    421: ("the request is for another host's name", "add the name to `api.hosts`"),
    422: ("the request is valid, but cannot be done", "correct what the text names"),
    500: ("the id is taken (`RECORD_EXISTS`, as in AUDITOR), or the store is unavailable", "post one by one, or later"),
    503: ("the store, or the requested part, is unavailable now", "try again later; `auditord status` has the reason"),
}  # fmt: skip
"""Causes and remedies of the statuses with which requests are refused."""


def errors_markdown() -> str:
    """Return the whole index, for ``auditord manual errors``."""
    index = read_errors(all_sources())
    parts = [_ERRORS, *_statuses(index.refusals), "## By class\n\n"]
    for entry in sorted(index.classes.values(), key=lambda each: (each.name, each.module)):
        if not entry.name.startswith("_"):
            parts += _section(entry)
    return "".join(parts).rstrip() + "\n"


def _section(entry: ErrorClass) -> Iterator[str]:
    exported_by = entry.module.removesuffix(".errors").removesuffix(".exchange")
    yield f"### {entry.name} ({exported_by})\n\n"
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


_TYPES: Final = ("counter", "gauge", "histogram", "summary")
_METRICS: Final = """\
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


def metrics_markdown() -> str:
    """Return the whole reference, for ``auditord manual metrics``."""
    rows = (f"| `{each.name}` | {each.type} | {each.text} |\n" for each in sorted(set(exposed())))
    return f"{_METRICS}{''.join(rows)}"


def exposed() -> Iterator[Exposed]:
    """Yield the metrics of the daemon and of the built-in hook modules."""
    for source in all_sources():
        yield from _declared(source.tree())


def _declared(tree: ast.Module) -> Iterator[Exposed]:
    """Yield the metrics of calls such as ``Counter("name", "help", …)``, also of functions that create one."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(attr=called),
                args=[ast.Constant(value=str(name)), ast.Constant(value=str(text)), *_],
            ) if kind := next((each for each in _TYPES if each in called.lower()), None):
                yield Exposed(f"{name}_total" if kind == "counter" else name, kind, text)
            case _:
                continue
