"""The parameter ``source`` of calls that read records: the record store, or the lake."""

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Protocol

from aiohttp import web

from auditord.errors import ConfigurationError, StoreUnavailable
from auditord.store.protocol import Listed
from auditord.web.api.operation import Operation, Parameter
from auditord.web.api.values import Choice
from auditord.web.problems import Refused
from auditord.web.record_query import Given, about
from auditord.web.requests import visible_records

log = logging.getLogger(__name__)

SOURCE: Final = "source"
LAKE: Final = "lake"
SOURCES: Final = ("store", LAKE)
_SOURCES: Final = Choice(SOURCES)

_OF_SOURCE: Final = (
    "store (the default): the records as they are now; lake: as they are in the newest snapshot of the lake{}. A role "
    "sees the same records in both. 400 where the daemon has no lake."
)


def is_lake(given: Mapping[str, Given]) -> bool:
    """Return whether a query string asks for the lake.

    Raises:
        InvalidQuery: it names another source.
    """
    with about(SOURCE):
        return _SOURCES.read(SOURCE, given.get(SOURCE, ())) == LAKE


class Lake(Listed, Protocol):
    """Records of the lake, as of its newest snapshot."""

    @property
    def is_of_many(self) -> bool:
        """True if records of several daemons count, which may have the same ids."""
        ...


def source_parameter(detail: str) -> Parameter:
    """The parameter, as it is described where there is a lake."""
    return Parameter(SOURCE, _OF_SOURCE.format(detail), _SOURCES.schema)


def without_lake(operation: Operation) -> Operation:
    """A call as it is described where there is no lake: what the description allows is answered."""
    store = Choice(SOURCES[:1]).schema
    of_store = [replace(each, schema=store) if each.name == SOURCE else each for each in operation.parameters]
    return replace(operation, parameters=tuple(of_store))


@dataclass(frozen=True, slots=True)
class LakeSource:
    """The lake as handlers ask it.

    Args:
        visible: its records that the sender of a request may see; None if there is no lake.
        is_of_many: whether ids may be there several times.
    """

    visible: Callable[[web.BaseRequest], Listed] | None = None
    is_of_many: bool = False

    @property
    def names(self) -> Sequence[str]:
        """The sources that there are."""
        return SOURCES if self.visible is not None else SOURCES[:1]

    def records(self, request: web.BaseRequest) -> Listed:
        """The records that the sender may see.

        Raises:
            Refused: there is no lake.
        """
        if self.visible is None:
            raise Refused(400, "this daemon has no lake", parameter=SOURCE, remedy="leave it out; or configure lake")
        return self.visible(request)

    @contextmanager
    def faults(self) -> Generator[None, None, None]:
        """Inside, what is wrong with the lake is refused."""
        try:
            yield
        except ConfigurationError as error:
            raise Refused(503, str(error), remedy="see the manual's chapter on the lake") from error
        except StoreUnavailable as error:
            log.warning("the lake: %s", error)
            remedy = "ask with source=store, or again later; the daemon's log says why"
            raise Refused(503, "the lake cannot be asked now", parameter=SOURCE, remedy=remedy) from error


def lake_source(lake: Lake | None) -> LakeSource:
    """The lake of a daemon, or none."""
    return LakeSource() if lake is None else LakeSource(visible_records(lake), lake.is_of_many)
