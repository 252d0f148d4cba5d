"""The routes of the API's calls, and their parameters.

A class for a kind of value, such as :class:`Whole`, both describes its JSON schema and parses its text, so that the two
agree. On ``/api/v1`` a given parameter must have a value; AUDITOR's ``GET /records`` treats an empty one as missing.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web
from msgspec.structs import replace

from auditord.config.documents import is_list, is_section
from auditord.errors import StoreUnavailable
from auditord.store.lake import REMEDY, LakeUnavailable
from auditord.web.bodies import BodyTooLarge, UnreadableBody, unpack
from auditord.web.dispatch import Route
from auditord.web.limits import MAX_CONDITIONS
from auditord.web.operations import Operation, Parameter, Schema
from auditord.web.problems import Refused
from auditord.web.record_query import (
    Given,
    InvalidQuery,
    by_name,
    parse_query_string,
    read_number,
    refuse_unknown,
    scalar,
)
from auditord.web.requests import read_body
from auditord_hookspecs import InvalidRecord
from auditord_hookspecs.query import Comparison
from auditord_hookspecs.records import MAX_AMOUNT, MAX_NAME_GRAPHEMES, check_name
from auditord_hookspecs.wire import parse_time

log = logging.getLogger(__name__)

BODY_PROBLEMS: Final = (400, 413, 415)
"""The statuses for unreadable bodies."""

_SEE: Final = "GET /openapi.json describes the parameters of every path"


T = TypeVar("T")

MAX_REQUEST: Final = 1 << 20
"""The most bytes of a body, except for posted records."""


def open_routes(routes: Iterable[Route], control: Path | None) -> list[Route]:
    """Return the routes for a daemon without authenticators, which refuses guarded calls with a hint."""
    refusal = Refused(
        403,
        "this call acts on the daemon or shows raw input, and is not available at this address",
        remedy="run the command auditord on the daemon's host as root or as the daemon's user, or use its control "
        f"socket: curl --unix-socket {control or 'control.sock'} http://localhost/…",
    ).answer()

    async def refusing(_request: web.BaseRequest) -> web.StreamResponse:
        return refusal

    return [replace(route, handler=refusing) if route.audited else route for route in routes]


def all_routes(operations: Iterable[Operation]) -> list[Route]:
    """Return the routes of calls, including guarded ones."""
    return [
        Route(each.method, each.path, partial(_answer, each), each.permission, audited=each.guarded)
        for each in operations
    ]


async def _answer(operation: Operation, request: web.BaseRequest) -> web.StreamResponse:
    """Return the handler's response, or a problem unless a response was already started."""
    try:
        return await operation.handler(request)
    except Refused as refused:
        return _unless_started(request, refused, refused)
    except InvalidQuery as error:
        return _unless_started(request, error, Refused(400, str(error), parameter=error.parameter, remedy=_SEE))
    except UnicodeDecodeError as error:
        return _unless_started(request, error, Refused(404, "the decoded path is not UTF-8"))
    except StoreUnavailable as error:
        log.warning("%s %s: the client must try again: %s", request.method, operation.path, error)
        if isinstance(error, LakeUnavailable):
            return _unless_started(request, error, Refused(503, error.summary, remedy=REMEDY))
        away = Refused(503, "the record store or the spool is not available", remedy="try again later; see the log")
        return _unless_started(request, error, away)


def _unless_started(request: web.BaseRequest, error: Exception, refused: Refused) -> web.StreamResponse:
    if request.writer.output_size:
        raise error  # a response was started: cut the connection
    return refused.answer()


async def decode_body(request: web.BaseRequest, shape: type[T], *, whole_floats: bool = False) -> T:
    """Read and decode a body.

    Args:
        request: the request.
        shape: the type of the body.
        whole_floats: whether ``1.0`` counts as an integer, as in JSON Schema.

    Raises:
        Refused: the body is not of this type, is too large, or cannot be decompressed.
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
    """Read and decompress a body.

    Raises:
        Refused: the body is too large or cannot be decompressed.
    """
    try:
        return bytes(await unpack(request, await read_body(request, limit), limit))
    except BodyTooLarge as error:
        remedy = "send several smaller requests; this limit cannot be changed"
        detail = f"the body is too large, the limit is {limit} bytes ({error})"
        raise Refused(413, detail, parameter="body", remedy=remedy) from error
    except UnreadableBody as error:
        raise Refused(415, str(error), parameter="Content-Encoding") from error


WHITE_SPACE: Final = r"\t-\r \u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
r"""Unicode's white space, for a character class. JSON schema validators disagree about ``\s``."""

_YEAR: Final = "(?:000[2-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-8][0-9]{3}|9[0-8][0-9]{2}|99[0-8][0-9]|999[0-8])"


class Whole(msgspec.Struct, frozen=True):
    """A whole number."""

    least: int = 0
    most: int = MAX_AMOUNT

    @property
    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}

    def read(self, name: str, given: Given) -> int | None:
        """Return the number, or None if it was not given; raises InvalidQuery or InvalidRecord."""
        text = scalar(name, given)
        number = None if text is None else read_number(name, text)
        if number is not None and not self.least <= number <= self.most:
            raise InvalidQuery(f"'{name}' must be a number from {self.least} to {self.most}")
        return number


class Choice(msgspec.Struct, frozen=True):
    """One of several words."""

    words: tuple[str, ...]

    @property
    def schema(self) -> Schema:
        return {"type": "string", "enum": list(self.words)}

    def read(self, name: str, given: Given) -> str | None:
        """Return the word, or None if it was not given; raises InvalidQuery or InvalidRecord."""
        text = scalar(name, given)
        if text is not None and text not in self.words:
            raise InvalidQuery(f"unknown {name} '{text[:60]}', expected {' or '.join(self.words)}")
        return text


class Name(msgspec.Struct, frozen=True):
    """A valid name of records: 1 to 256 characters, not all blank, without NUL.

    Args:
        forbidden: further characters that the schema excludes, for a character class.
    """

    forbidden: str = ""

    @property
    def schema(self) -> Schema:
        """The JSON schema. The server also accepts longer text if its characters consist of several code points."""
        others = rf"\u0000{self.forbidden}"
        pattern = rf"^[^{others}]*[^{WHITE_SPACE}{others}][^{others}]*$"
        return {"type": "string", "minLength": 1, "maxLength": MAX_NAME_GRAPHEMES, "pattern": pattern}

    def read(self, name: str, given: Given) -> str | None:
        """Return the name, or None if it was not given; raises InvalidQuery or InvalidRecord."""
        text = scalar(name, given)
        if text is not None:
            check_name(text)
        return text


class Instant(msgspec.Struct, frozen=True):
    """A time with a zone."""

    @property
    def schema(self) -> Schema:
        """The JSON schema. It excludes the first and last years, which are only partly valid in UTC."""
        return {"type": "string", "format": "date-time", "pattern": f"^{_YEAR}-"}

    def read(self, name: str, given: Given) -> datetime | None:
        """Return the instant in UTC, or None if it was not given; raises InvalidRecord."""
        text = scalar(name, given)
        return None if text is None else parse_time(text)


class Texts(msgspec.Struct, frozen=True):
    """A list of distinct texts of a form.

    Args:
        pattern: the form as a regular expression. Every matching text is accepted.
        most: the largest number of texts.
    """

    pattern: str
    most: int

    @property
    def schema(self) -> Schema:
        text = {"type": "string", "pattern": f"^(?:{self.pattern})$"}
        return {"type": "array", "items": text, "minItems": 1, "maxItems": self.most, "uniqueItems": True}

    def read(self, name: str, given: Given) -> Sequence[str]:
        """Return the texts of ``name=…`` or ``name[]=…`` in their order; raises InvalidQuery."""
        if any(parameter.path not in {(), ("",)} for parameter in given):
            raise InvalidQuery(f"write '{name}' as {name}=… or {name}[]=…, once for each value")
        texts = [parameter.value for parameter in given]
        if len(set(texts)) < len(texts):
            raise InvalidQuery("the same value is given more than once")
        if len(texts) > self.most:
            raise InvalidQuery(f"at most {self.most} values are allowed")
        return texts


NAME: Final = Name()
KEY: Final = Name(r"\[\]")
"""A name between brackets. Brackets within the name are encoded, and the outer ones are then literal."""
INSTANT: Final = Instant()
COUNT: Final = Whole()


def read_given(raw: str, known: Collection[str]) -> Mapping[str, Given]:
    """Parse a raw query string into parameters by name.

    Raises:
        InvalidQuery: the grammar is broken, or a parameter is unknown or has no value.
    """
    given = by_name(parse_query_string(raw))
    refuse_unknown(given, known)
    for name, parameters in given.items():
        if not all(parameter.value for parameter in parameters):
            raise InvalidQuery(f"'{name}' has no value: leave it out, or give it one", name[:60])
    return given


_COMPARISONS: Final = tuple(comparison.value for comparison in Comparison)
_TEXTS: Final[Schema] = {"type": "array", "items": NAME.schema, "minItems": 1, "maxItems": MAX_CONDITIONS}


RECORD_ID: Final = Parameter(
    "record_id", "The record's id as one segment, percent-encoded ('/' is %2F).", NAME.schema, in_path=True
)


def _allow_comparisons(schema: Schema) -> Schema:
    return {
        "type": "object",
        "properties": dict.fromkeys(_COMPARISONS, schema),
        "additionalProperties": False,
        "minProperties": 1,
        "not": {"anyOf": [{"required": ["gt", "gte"]}, {"required": ["lt", "lte"]}]},
    }


def _by_key(schema: Schema) -> Schema:
    return {
        "type": "object",
        "propertyNames": KEY.schema,
        "additionalProperties": schema,
        "minProperties": 1,
        "maxProperties": MAX_CONDITIONS,
    }


_TIMES: Final = _allow_comparisons(INSTANT.schema)

FILTER_PARAMETERS: Final = (
    Parameter("record_id", "Only the record with this id.", NAME.schema),
    Parameter("start_time", "Only records whose start time matches, as in start_time[gte]=….", _TIMES, deep=True),
    Parameter("stop_time", "The same for the stop time; open records never match.", _TIMES, deep=True),
    Parameter("runtime", "The same for the runtime in whole seconds.", _allow_comparisons(COUNT.schema), deep=True),
    Parameter(
        "meta",
        "Only records whose meta matches: meta[key][c][]=value (has the value; repeated: has all), "
        "meta[key][dnc][]=value (has the key without the value), meta[key][any][]=value (repeated: has at least one), "
        "meta[key][absent]=true.",
        _by_key(
            {
                "type": "object",
                "properties": {"c": _TEXTS, "dnc": _TEXTS, "any": _TEXTS, "absent": {"const": True}},
                "additionalProperties": False,
                "minProperties": 1,
            }
        ),
        deep=True,
    ),
    Parameter(
        "component",
        "Only records with a matching amount: component[name][gte]=4 matches if any component of this name has 4 or "
        "more.",
        _by_key(_allow_comparisons(COUNT.schema)),
        deep=True,
    ),
    Parameter("open", "true: only records without a stop time; false: only those with one.", {"type": "boolean"}),
    Parameter(
        "implausible",
        "true: only records with a CPU time of more than 1.5 times runtime and cores (components TotalCPU, Cores).",
        {"const": True},
    ),
)
