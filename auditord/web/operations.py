"""Declarations of calls, from which they are routed, authorised and described.

An :class:`Operation` decorates the method that answers the call. :mod:`auditord.web.api.handlers` lists the classes of
such methods.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from aiohttp import web
from msgspec.structs import replace

from auditord.web.dispatch import Handler
from auditord_hookspecs import Permission

Schema: TypeAlias = Mapping[str, Any]  # Any: JSON
Shape: TypeAlias = Any  # Any: a type that msgspec knows

H = TypeVar("H", bound=Callable[..., Awaitable[web.StreamResponse]])

_DECLARED: Final = "_operation"


class Parameter(msgspec.Struct, frozen=True):
    """A parameter in the path or the query string.

    Args:
        schema: the JSON schema of the value.
        in_path: whether it is a segment of the path.
        deep: whether it is written ``name[key]=value``.
    """

    name: str
    description: str
    schema: Schema
    in_path: bool = False
    deep: bool = False


async def _fail(_request: web.BaseRequest) -> web.StreamResponse:
    raise AssertionError("operations_of gives each operation its handler")


class Operation(msgspec.Struct, frozen=True):
    """A call of the API. It decorates the method that answers the call.

    The method may raise Refused, InvalidQuery or StoreUnavailable.

    Args:
        path: the path, with ``parameters`` as segments in braces.
        name: the name in generated clients; empty for AUDITOR's routes, which only the manual lists.
        answers: the types of responses by status and media type.
        problems: further statuses, with a problem as response.
        body: the types of the request body by media type.
        permission: the permission that a caller needs if there are authenticators; None if anybody may call it.
        guarded: whether the call acts or shows raw input. It is then written to the audit log and, without
            authenticators, available only on the control socket.
        handler: answers the call; set by :func:`operations_of`.
    """

    method: str
    path: str
    name: str
    summary: str
    permission: Permission | None
    answers: Mapping[int, Mapping[str, Shape]] = msgspec.field(default_factory=dict[int, Mapping[str, Shape]])
    problems: tuple[int, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    body: Mapping[str, Shape] = msgspec.field(default_factory=dict[str, Shape])
    guarded: bool = False
    handler: Handler = _fail

    def __call__(self, method: H) -> H:
        setattr(method, _DECLARED, self)
        return method


def operations_of(handlers: object) -> list[Operation]:
    """Return the calls that an object's methods answer. The calls of a class can only be described."""
    members = vars(handlers if isinstance(handlers, type) else type(handlers))
    declared = {name: getattr(member, _DECLARED, None) for name, member in members.items()}
    return [replace(each, handler=getattr(handlers, name)) for name, each in declared.items() if each is not None]


def list_operations(handlers: Iterable[object]) -> list[Operation]:
    """Return the calls that objects answer. The calls of classes can only be described."""
    return [each for made in handlers for each in operations_of(made)]
