"""The declaration of one call of the API: enough to route it, to authorise it and to describe it.

It decorates the method that answers the call.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from aiohttp import web

from auditord.config.documents import is_list, is_section
from auditord.errors import StoreUnavailable
from auditord.web.bodies import BodyTooLarge, UnreadableBody, unpacked
from auditord.web.dispatch import Handler, Route
from auditord.web.problems import Refused
from auditord.web.record_query import InvalidQuery
from auditord.web.requests import read_body
from auditord_hookspecs import InvalidRecord, Permission

log = logging.getLogger(__name__)

Schema: TypeAlias = Mapping[str, Any]  # Any: JSON
Shape: TypeAlias = Any  # Any: a type that msgspec knows

BODY_PROBLEMS: Final = (400, 413, 415)
"""The statuses of bodies that cannot be read."""

_SEE: Final = "GET /openapi.json describes the parameters of every path"


T = TypeVar("T")
H = TypeVar("H", bound=Callable[..., Awaitable[web.StreamResponse]])

_DECLARED: Final = "_operation"

MAX_REQUEST: Final = 1 << 20
"""Bytes of a body that asks for something to be done."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A part of the path or of the query string.

    Args:
        name: as it is written.
        description: what it does.
        schema: of its value.
        in_path: whether it is a segment of the path.
        deep: whether it is written ``name[key]=value``.
    """

    name: str
    description: str
    schema: Schema
    in_path: bool = False
    deep: bool = False


async def _unanswered(_request: web.BaseRequest) -> web.StreamResponse:
    raise AssertionError("operations_of gives each operation its handler")


@dataclass(frozen=True, slots=True)
class Operation:
    """One call; decorates the method that answers it, which may raise Refused, InvalidQuery or StoreUnavailable.

    Args:
        method: of the request.
        path: with segments in braces for what is named in ``parameters``.
        name: what it is called in generated clients.
        summary: what it does.
        answers: what it may answer, by status and media type.
        problems: further statuses, which come with a problem.
        parameters: of the path and of the query string.
        body: what it takes, by media type.
        permission: what it takes where callers are asked who they are.
        guarded: whether it acts, or shows raw input: it is noted in the audit log, and where nobody is asked who they
            are, only the control socket offers it.
        handler: answers it; see :func:`operations_of`.
    """

    method: str
    path: str
    name: str
    summary: str
    permission: Permission
    answers: Mapping[int, Mapping[str, Shape]]
    problems: tuple[int, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    body: Mapping[str, Shape] = field(default_factory=dict[str, Shape])
    guarded: bool = False
    handler: Handler = _unanswered

    def __call__(self, method: H) -> H:
        """Declare what a method answers."""
        setattr(method, _DECLARED, self)
        return method


def operations_of(handlers: object) -> list[Operation]:
    """The calls that the methods of an object answer; of a class, to be described alone."""
    members = vars(handlers if isinstance(handlers, type) else type(handlers))
    declared = {name: getattr(member, _DECLARED, None) for name, member in members.items()}
    return [replace(each, handler=getattr(handlers, name)) for name, each in declared.items() if each is not None]


def open_routes(routes: Iterable[Route], control: Path | None) -> list[Route]:
    """The routes without authenticators: what acts is refused there, and says where it is offered."""
    refusal = Refused(
        403,
        "this acts on the daemon or shows raw input, which is not offered at this address",
        remedy="run the command auditord on the daemon's host as root or as the daemon's user, or use its control "
        f"socket: curl --unix-socket {control or 'control.sock'} http://localhost/…",
    ).answer()

    async def refusing(_request: web.BaseRequest) -> web.StreamResponse:
        return refusal

    return [replace(route, handler=refusing) if route.audited else route for route in routes]


def all_routes(operations: Iterable[Operation]) -> list[Route]:
    """The routes where callers are authenticated."""
    return [
        Route(each.method, each.path, partial(_answer, each), each.permission, audited=each.guarded)
        for each in operations
    ]


async def _answer(operation: Operation, request: web.BaseRequest) -> web.StreamResponse:
    """The handler's answer or, unless that is under way already, a problem."""
    try:
        return await operation.handler(request)
    except Refused as refused:
        return _unless_begun(request, refused, refused)
    except InvalidQuery as error:
        return _unless_begun(request, error, Refused(400, str(error), parameter=error.parameter, remedy=_SEE))
    except UnicodeDecodeError as error:
        return _unless_begun(request, error, Refused(404, "the path is not UTF-8 once it is decoded"))
    except StoreUnavailable as error:
        log.warning("%s %s: the client is to try again: %s", request.method, operation.path, error)
        away = Refused(503, "the record store or the spool is not available", remedy="try again later; see the log")
        return _unless_begun(request, error, away)


def _unless_begun(request: web.BaseRequest, error: Exception, refused: Refused) -> web.StreamResponse:
    if request.writer.output_size:
        raise error  # an answer is under way: the connection is cut
    return refused.answer()


async def decoded(request: web.BaseRequest, shape: type[T], *, whole_floats: bool = False) -> T:
    """Read and decode a body.

    Args:
        request: with the body.
        shape: of the body.
        whole_floats: whether ``1.0`` is a whole number as well, as it is to JSON Schema.

    Raises:
        Refused: it is not of the shape, too large, or packed in a way that cannot be undone.
    """
    try:
        body = await read(request, MAX_REQUEST)
        if whole_floats:
            return msgspec.convert(_with_whole_numbers(msgspec.json.decode(body)), shape)
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, InvalidRecord, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, str(error), parameter="body", remedy=f"see {shape.__name__} in /openapi.json") from error


def _with_whole_numbers(value: Any) -> Any:  # Any: JSON
    if is_list(value):
        return [_with_whole_numbers(each) for each in value]
    if is_section(value):
        return {name: _with_whole_numbers(each) for name, each in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


async def read(request: web.BaseRequest, limit: int) -> bytes:
    """The unpacked body.

    Raises:
        Refused: it is too large, or packed in a way that cannot be undone.
    """
    try:
        return unpacked(request, await read_body(request, limit), limit)
    except BodyTooLarge as error:
        remedy = "send fewer records at once, or raise api.max_body"
        raise Refused(
            413, f"the body is larger than {limit} bytes ({error})", parameter="body", remedy=remedy
        ) from error
    except UnreadableBody as error:
        raise Refused(415, str(error), parameter="Content-Encoding") from error
