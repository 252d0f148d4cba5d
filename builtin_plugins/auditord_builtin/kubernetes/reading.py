"""Lists in pages and stretches of a watch: what happened to pods, and from which version on the rest is to be read."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from http import HTTPStatus
from typing import Final

import anyio
import msgspec
import stamina

from auditord_builtin.kubernetes.connection import Cluster, Expired, Unreachable
from auditord_hookspecs import AuditordError


@dataclass(frozen=True, slots=True)
class Happening:
    """A pod's JSON; ``gone``: it was removed, or does not match the selector any more."""

    raw: msgspec.Raw
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the present pods; a watch goes on from the version.

    ``first``: the list begins here (once more, if its rest had become too old); ``last``: it is complete.
    """

    pods: Sequence[Happening]
    version: str
    first: bool
    last: bool


class After(Enum):
    """The state of a watch after a stretch."""

    MORE = "more"
    QUIET = "quiet"
    CLOSED = "closed"
    EXPIRED = "expired"


@dataclass
class Stretch:
    """A part of a watch; the rest is to be read from the version.

    ``after``: there is more now, nothing at the moment, the server has watched for long enough, or nothing is to be had
    from this version. ``known_until``: all that happened until then is known; None if that cannot be said.
    """

    version: str
    happenings: list[Happening] = field(default_factory=list[Happening])
    after: After = After.MORE
    known_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a stretch.

    Args:
        events: after so many there is more.
        quiet: nothing happens if nothing comes for so long.
        patience: the time to watch, and to try again to.
        pause: an event that comes so long after another one has just happened; others may be old.
    """

    events: int
    quiet: timedelta
    patience: timedelta
    pause: timedelta


class _ListMetadata(msgspec.Struct, rename="camel"):
    resource_version: str
    token: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    metadata: _ListMetadata
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _ObjectMetadata(msgspec.Struct, rename="camel"):
    resource_version: str | None = None


class _Object(msgspec.Struct):
    """As much of an event's object as every one has: a pod, a bookmark or a status."""

    metadata: _ObjectMetadata | None = None
    code: int | None = None
    message: str | None = None


_list: Final = msgspec.json.Decoder(_List)
_event: Final = msgspec.json.Decoder(_Event)
_object: Final = msgspec.json.Decoder(_Object)


async def pages(cluster: Cluster, scope: str, size: int) -> AsyncIterator[Page]:
    """All pods that there are, as they were at one instant.

    A list whose rest has become too old begins once more, in one piece.

    Raises:
        Unreachable: no complete answer came.
        AuditordError: it is refused.
    """
    token, limit = "", size
    while True:
        try:
            answer = _decoded(await cluster.page(scope, limit, token), scope)
        except Expired:
            if not token:
                raise
            token, limit = "", 0
            continue
        pods = [Happening(item) for item in answer.items or ()]
        yield Page(pods, answer.metadata.resource_version, first=not token, last=not answer.metadata.token)
        token = answer.metadata.token
        if not token:
            return


def _decoded(body: bytes, scope: str) -> _List:
    try:
        return _list.decode(body)
    except msgspec.DecodeError as error:
        raise Unreachable(f"{scope}: this is no list of pods: {error}") from error


async def follow(cluster: Cluster, scope: str, version: str, limits: Limits, now: Callable[[], datetime]) -> Stretch:
    """Read on from a version, until so much has happened, nothing happens, or patience ends.

    The connection is closed before this returns. One that is cut before anything came is opened again, with
    growing pauses.

    Raises:
        Unreachable: it was cut again and again, and nothing was read.
        AuditordError: it is refused.
    """
    stretch = Stretch(version)
    async for attempt in stamina.retry_context(on=Unreachable, attempts=None, timeout=limits.patience):
        with attempt:
            await _read(cluster, scope, stretch, limits, now)
    return stretch


async def _read(cluster: Cluster, scope: str, stretch: Stretch, limits: Limits, now: Callable[[], datetime]) -> None:
    version = stretch.version
    try:
        async with cluster.watched(scope, version, limits.patience) as lines:
            await _read_lines(lines, stretch, scope, limits, now)
    except Expired:
        stretch.after = After.EXPIRED
    except Unreachable:
        if stretch.version == version:
            raise  # what was read is kept first, and then there is more


async def _read_lines(
    lines: AsyncIterator[bytes], stretch: Stretch, scope: str, limits: Limits, now: Callable[[], datetime]
) -> None:
    while len(stretch.happenings) < limits.events:
        with anyio.move_on_after(limits.quiet.total_seconds()) as silence:
            asked = anyio.current_time()
            line = await anext(lines, None)
            if line is None:
                stretch.after = After.CLOSED
                return
            if stretch.happenings and anyio.current_time() - asked >= limits.pause.total_seconds():
                stretch.known_until = now()
            _take(line, stretch, scope)
        if silence.cancelled_caught:
            stretch.after, stretch.known_until = After.QUIET, now()
            return


def _take(line: bytes, stretch: Stretch, scope: str) -> None:
    try:
        event = _event.decode(line)
        what = _object.decode(event.object)
    except msgspec.DecodeError as error:
        raise Unreachable(f"{scope}: this is no event: {error}") from error
    if event.type == "ERROR":
        if what.code == HTTPStatus.GONE:
            raise Expired(f"{scope}: {what.message}")
        raise AuditordError(f"{scope}: the API server ends the watch: {what.code} {what.message}")
    if event.type != "BOOKMARK":
        stretch.happenings.append(Happening(event.object, gone=event.type == "DELETED"))
    if what.metadata is not None and what.metadata.resource_version:
        stretch.version = what.metadata.resource_version
