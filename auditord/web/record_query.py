"""The query string of ``GET /records?…``, parsed into a frozen :class:`RecordQuery`.

The grammar is that of AUDITOR's server: ``name[key][key]=value`` joined by ``&``, form-encoded, with literal brackets
as structure and encoded ones as part of a key. Two harmless extensions: if a key has no literal bracket at all, encoded
brackets are structure (most HTTP libraries encode them), and a key that begins with a digit is a key.

The parameters and their rules are AUDITOR's, with three deliberate deviations: contradictory operators of one field
(``gt`` with ``gte``, ``lt`` with ``lte``) are refused, where AUDITOR silently drops the whole filter; ``equals`` works
on times; and ``meta[key][c]=value`` needs no index.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Final, TypeAlias, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec

from auditord.web.limits import MAX_CONDITIONS
from auditord_hookspecs import AuditordError, InvalidRecord, RecordQuery, query
from auditord_hookspecs.records import MAX_AMOUNT, check_name
from auditord_hookspecs.wire import parse_time

_structured = re.compile(r"([^\[\]]*)((?:\[[^\[\]]*\])*)")
_encoded_open = re.compile("%5b", re.IGNORECASE)
_encoded_close = re.compile("%5d", re.IGNORECASE)


T = TypeVar("T")

_check: Final = lru_cache(maxsize=1_000)(check_name)  # names repeat in queries; errors are not cached

_CONTRADICTIONS: Final = ({query.Comparison.GT, query.Comparison.GTE}, {query.Comparison.LT, query.Comparison.LTE})

META_OPERATORS: Final[Mapping[str, type[query.MetaContains | query.MetaLacks]]] = {
    "c": query.MetaContains,
    "dnc": query.MetaLacks,
}

_integer = re.compile(r"\+?0*(\d{1,19})", re.ASCII)

_list_index = re.compile(r"0*(\d{1,19})", re.ASCII)


class InvalidQuery(AuditordError, ValueError):
    """The query string breaks the grammar or has an unknown parameter or value; the text names it.

    Args:
        text: the error and the allowed values.
        parameter: the name before the brackets, if one parameter is at fault.

    Remedy:
        correct the named parameter; `auditord manual api` has the grammar, /openapi.json every parameter.
    """

    def __init__(self, text: str, parameter: str | None = None) -> None:
        super().__init__(text)
        self.parameter = parameter


class Parameter(msgspec.Struct, frozen=True):
    """A piece of a query string.

    Args:
        path: the name, then the decoded content of each pair of brackets; empty for ``[]``.
        value: the decoded text after the first ``=``; empty if there is none.
    """

    path: tuple[str, ...]
    value: str


def parse_query_string(raw: str) -> Iterator[Parameter]:
    """Yield the parameters of a raw (encoded) query string in order, without empty ones.

    Raises:
        InvalidQuery: unbalanced brackets, or bytes that are not UTF-8.
    """
    for piece in raw.split("&"):
        if not piece:
            continue
        key, _, value = piece.partition("=")
        if "[" not in key:
            key = _encoded_close.sub("]", _encoded_open.sub("[", key))
        match = _structured.fullmatch(key)
        if match is None:
            raise InvalidQuery(f"the brackets in '{key[:60]}' do not match; encode brackets that belong to a key")
        name, brackets = match.groups()
        inner = brackets[1:-1].split("][") if brackets else []
        if not all(each[:1].isascii() for each in inner):
            raise InvalidQuery(f"percent-encode the key after the bracket in '{name[:60]}['")
        yield Parameter(tuple(map(_decode, (name, *inner))), _decode(value))


def _decode(text: str) -> str:
    encoded = text.replace("+", " ").encode("utf-8", "surrogateescape")
    try:
        return unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError as error:
        raise InvalidQuery(f"'{text[:60]!a}' is not UTF-8 when decoded") from error


Given: TypeAlias = Sequence[Parameter]
"""The parameters of one name. Their paths are without that name."""
ConditionReader: TypeAlias = Callable[[str, Given], Iterator[query.Condition]]


def read_query(raw: str) -> RecordQuery:
    """Parse a raw query string. An empty one selects every record.

    Raises:
        InvalidQuery: the string breaks the grammar, or has an unknown parameter or an invalid value.
    """
    given = by_name(parse_query_string(raw))
    refuse_unknown(given, [*CONDITIONS, "sort_by", "limit"])
    conditions = read_conditions(given, CONDITIONS)
    with about("sort_by"):
        order = read_order(given.get("sort_by", ()))
    with about("limit"):
        limit = scalar("limit", given.get("limit", ()))
        return RecordQuery(query.AllOf(conditions), order, None if limit is None else read_number("limit", limit))


def read_conditions(given: Mapping[str, Given], readers: Mapping[str, ConditionReader]) -> tuple[query.Condition, ...]:
    """Return the conditions among the parameters, each parsed by the reader for its name.

    Raises:
        InvalidQuery: a condition is invalid, or there are too many.
    """
    found: list[query.Condition] = []
    for name in readers:
        if name in given:
            with about(name):
                found += readers[name](name, given[name])
    weight = sum(len(each.values) if isinstance(each, query.MetaContainsAny) else 1 for each in found)
    if weight > MAX_CONDITIONS:
        raise InvalidQuery(f"{weight} conditions in one query; at most {MAX_CONDITIONS} are allowed")
    return tuple(found)


@contextmanager
def about(name: str) -> Generator[None, None, None]:
    """Add the name of the parameter at fault to errors raised within the context."""
    try:
        yield
    except (InvalidQuery, InvalidRecord) as error:
        raise InvalidQuery(str(error), name) from error


def refuse_unknown(given: Mapping[str, Given], known: Collection[str]) -> None:
    """Raise :class:`InvalidQuery` for the first parameter that is not known."""
    for name in given:
        if name not in known:
            raise InvalidQuery(f"unknown field '{name[:60]}', expected one of {', '.join(known)}", name[:60])


def by_name(parameters: Iterable[Parameter]) -> dict[str, list[Parameter]]:
    """Group parameters by the first part of their paths, and remove that part."""
    groups: dict[str, list[Parameter]] = defaultdict(list)
    for parameter in parameters:
        first, *rest = parameter.path
        groups[first].append(Parameter(tuple(rest), parameter.value))
    return groups


def is_absent(given: Given) -> bool:
    """Return whether a parameter is missing; an empty value counts as missing."""
    return not given or (len(given) == 1 and given[0] == Parameter((), ""))


def scalar(name: str, given: Given) -> str | None:
    """Return the single value of a parameter without brackets; None if it is missing."""
    if len(given) > 1:
        raise InvalidQuery(f"'{name}' is given more than once")
    if given and given[0].path:
        raise InvalidQuery(f"'{name}' accepts a single value, without brackets")
    return given[0].value or None if given else None


def _operators(name: str, given: Given, read: Callable[[str, str], T]) -> Iterator[tuple[query.Comparison, T]]:
    """Yield the comparisons of a field with their values, which ``read`` parses from name and text."""
    if is_absent(given):
        return
    found: dict[query.Comparison, str] = {}
    for parameter in given:
        operators = ", ".join(comparison.value for comparison in query.Comparison)
        if len(parameter.path) != 1:
            raise InvalidQuery(f"'{name}' needs exactly one operator in brackets, one of {operators}")
        try:
            comparison = query.Comparison(parameter.path[0])
        except ValueError as error:
            raise InvalidQuery(
                f"unknown operator '{parameter.path[0][:60]}' of '{name}', expected one of {operators}"
            ) from error
        if comparison in found:
            raise InvalidQuery(f"'{name}[{comparison.value}]' is given more than once")
        found[comparison] = parameter.value
    present = {comparison: text for comparison, text in found.items() if text}
    for contradiction in _CONTRADICTIONS:
        if contradiction <= set(present):
            texts = " and ".join(sorted(comparison.value for comparison in contradiction))
            raise InvalidQuery(f"'{name}' has both {texts}: keep one")
    for comparison, text in present.items():
        yield comparison, read(f"{name}[{comparison.value}]", text)


def read_number(name: str, text: str) -> int:
    """Parse a non-negative integer that fits 63 bits."""
    match = _integer.fullmatch(text)
    if match is None or int(match[1]) > MAX_AMOUNT:
        raise InvalidQuery(f"'{name}' is not an integer from 0 to {MAX_AMOUNT}: '{text[:60]}'")
    return int(match[1])


def _record_id(name: str, given: Given) -> Iterator[query.Condition]:
    value = scalar(name, given)
    if value is not None:
        _check(value)
        yield query.IdEquals(value)


def _times(name: str, given: Given) -> Iterator[query.Condition]:
    for comparison, moment in _operators(name, given, lambda _, text: parse_time(text)):
        yield query.TimeCompares(query.TimeField(name), comparison, moment)


def _runtimes(name: str, given: Given) -> Iterator[query.Condition]:
    for comparison, seconds in _operators(name, given, read_number):
        yield query.RuntimeCompares(comparison, seconds)


def _components(name: str, given: Given) -> Iterator[query.Condition]:
    for component, below in by_key(name, given):
        for comparison, amount in _operators(f"{name}[{component}]", below, read_number):
            yield query.ComponentCompares(component, comparison, amount)


def _metas(name: str, given: Given) -> Iterator[query.Condition]:
    for key, below in by_key(name, given):
        for operator, listed in by_name(below).items():
            if condition := META_OPERATORS.get(operator):  # unknown operators are ignored, as in AUDITOR
                for value in values(f"{name}[{key}][{operator}]", listed):
                    yield condition(key, value)


def by_key(name: str, given: Given) -> Iterator[tuple[str, Given]]:
    """Yield the parameters below each key, such as ``[c][0]=value`` below ``meta[site]``."""
    if is_absent(given):
        return
    if not all(parameter.path for parameter in given):
        raise InvalidQuery(f"'{name}' needs a key in brackets")
    for key, below in by_name(given).items():
        _check(key)
        if not all(parameter.path for parameter in below):
            raise InvalidQuery(f"'{name}[{key}]' needs an operator in brackets")
        yield key, below


def values(name: str, given: Given) -> Iterator[str]:
    """Yield the values of a list in the order of their indices, which may have gaps."""
    if is_absent(given):
        return
    for parameter in sorted(given, key=partial(_index, name)):
        _check(parameter.value)
        yield parameter.value
    paths = [parameter.path for parameter in given]
    appended = paths.count(("",))
    if appended not in {0, len(paths)}:
        raise InvalidQuery(f"'{name}' mixes [] with indices")
    if not appended and len({_index(name, parameter) for parameter in given}) < len(given):
        raise InvalidQuery(f"'{name}' gives one index more than once")


def _index(name: str, parameter: Parameter) -> int:
    """Return the index of an element; -1 for ``[]`` or no brackets, which keeps the order."""
    if parameter.path in {(), ("",)}:
        return -1
    match = _list_index.fullmatch(parameter.path[0])
    if match is None or len(parameter.path) > 1:
        raise InvalidQuery(f"'{name}' must be followed by [], [0], [1], … or nothing")
    return int(match[1])


def read_order(given: Given) -> query.Order:
    """Return the sort order; ``asc`` takes precedence over ``desc``."""
    if is_absent(given):
        return query.Order()
    for parameter in given:
        if parameter.path not in {("asc",), ("desc",)}:
            raise InvalidQuery("'sort_by' needs [asc] or [desc]")
    for direction in ("asc", "desc"):
        field = scalar(f"sort_by[{direction}]", by_name(given).get(direction, ()))
        if field is not None:
            try:
                return query.Order(query.SortField(field), descending=direction == "desc")
            except ValueError as error:
                fields = ", ".join(each.value for each in query.SortField)
                raise InvalidQuery(f"cannot sort by '{field[:60]}', expected one of {fields}") from error
    return query.Order()


CONDITIONS: Final[Mapping[str, ConditionReader]] = {
    "record_id": _record_id,
    "start_time": _times,
    "stop_time": _times,
    "runtime": _runtimes,
    "meta": _metas,
    "component": _components,
}
