"""The parameter ``source`` of calls that read records: the record store or the lake."""

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import msgspec
from aiohttp import web
from msgspec.structs import replace

from auditord.errors import ConfigurationError, StoreUnavailable
from auditord.store.lake import REMEDY, LakeUnavailable
from auditord.store.protocol import Listed
from auditord.web.api.operation import Choice
from auditord.web.operations import Operation, Parameter
from auditord.web.problems import Refused
from auditord.web.record_query import Given, about
from auditord.web.requests import visible_records

log = logging.getLogger(__name__)

SOURCE: Final = "source"
LAKE: Final = "lake"
SOURCES: Final = ("store", LAKE)
_SOURCES: Final = Choice(SOURCES)

_OF_SOURCE: Final = (
    "store (the default): the current records; lake: the records of the newest snapshot of the lake{}. A role sees the "
    "same records in both. 400 if the daemon has no lake."
)


def is_lake(given: Mapping[str, Given]) -> bool:
    """Return whether a query string asks for the lake.

    Raises:
        InvalidQuery: the source is unknown.
    """
    with about(SOURCE):
        return _SOURCES.read(SOURCE, given.get(SOURCE, ())) == LAKE


class Lake(Listed, Protocol):
    """The records of the lake as of its newest snapshot."""

    @property
    def is_of_many(self) -> bool:
        """True if the lake has records of several daemons, whose ids may be equal."""
        ...


def source_parameter(detail: str) -> Parameter:
    """Return the parameter for a daemon with a lake; ``detail`` is added to its description."""
    return Parameter(SOURCE, _OF_SOURCE.format(detail), _SOURCES.schema)


def hide_lake(operation: Operation) -> Operation:
    """Return a call for a daemon without a lake. It offers only the store as source, so every described value works."""
    store = Choice(SOURCES[:1]).schema
    of_store = [replace(each, schema=store) if each.name == SOURCE else each for each in operation.parameters]
    return replace(operation, parameters=tuple(of_store))


class LakeSource(msgspec.Struct, frozen=True):
    """The lake for handlers.

    Args:
        visible: returns the records that the sender of a request may see; None without a lake.
        is_of_many: whether it has records of several daemons, whose ids may be equal.
    """

    visible: Callable[[web.BaseRequest], Listed] | None = None
    is_of_many: bool = False

    @property
    def names(self) -> Sequence[str]:
        return SOURCES if self.visible is not None else SOURCES[:1]

    def records(self, request: web.BaseRequest) -> Listed:
        """Return the records of the lake that the sender may see.

        Raises:
            Refused: there is no lake.
        """
        if self.visible is None:
            raise Refused(400, "this daemon has no lake", parameter=SOURCE, remedy="leave it out, or configure a lake")
        return self.visible(request)

    @contextmanager
    def faults(self) -> Generator[None, None, None]:
        """Turn errors of the lake within the context into refusals."""
        try:
            yield
        except ConfigurationError as error:
            raise Refused(503, str(error), remedy="see auditord manual lake") from error
        except StoreUnavailable as error:
            log.warning("the lake is unavailable: %s", error)
            summary = error.summary if isinstance(error, LakeUnavailable) else "the lake is unavailable"
            raise Refused(503, summary, parameter=SOURCE, remedy=f"use source=store, or {REMEDY}") from error


def lake_source(lake: Lake | None) -> LakeSource:
    """Return the lake of a daemon, if it has one."""
    return LakeSource() if lake is None else LakeSource(visible_records(lake), lake.is_of_many)
