"""The lexical half of ``GET /records?…``: a raw query string becomes decoded paths with their values.

The grammar is the one AUDITOR's server reads: ``name[key][key]=value`` joined by ``&``, form-encoded, with literal
brackets as structure and encoded ones as part of a key. Two harmless extensions: where a key has no literal bracket at
all, encoded brackets are structure (most HTTP libraries encode them), and a key that begins with a digit is a key.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from auditord_hookspecs import AuditordError

_structured = re.compile(r"([^\[\]]*)((?:\[[^\[\]]*\])*)")
_encoded_open = re.compile("%5b", re.IGNORECASE)
_encoded_close = re.compile("%5d", re.IGNORECASE)


class InvalidQuery(AuditordError, ValueError):
    """The query string breaks the grammar or asks for something unknown; the text names the parameter.

    Args:
        text: what is wrong and what is allowed.
        parameter: the name before the brackets, where one parameter is at fault.
    """

    def __init__(self, text: str, parameter: str | None = None) -> None:
        super().__init__(text)
        self.parameter = parameter


@dataclass(frozen=True, slots=True)
class Parameter:
    """One piece of a query string.

    Args:
        path: the name, then what stood in each pair of brackets, decoded; an empty text for ``[]``.
        value: what stood behind the first ``=``, decoded; empty where there is none.
    """

    path: tuple[str, ...]
    value: str


def parse_query_string(raw: str) -> Iterator[Parameter]:
    """The pieces of a raw (still encoded) query string in their order; empty pieces are skipped.

    Raises:
        InvalidQuery: brackets that do not pair, or bytes that are not UTF-8.
    """
    for piece in raw.split("&"):
        if piece:
            key, _, value = piece.partition("=")
            yield Parameter(tuple(_path(key)), _decode(value))


def _path(key: str) -> Iterator[str]:
    if "[" not in key:
        key = _encoded_close.sub("]", _encoded_open.sub("[", key))
    match = _structured.fullmatch(key)
    if match is None:
        raise InvalidQuery(f"the brackets in '{key[:60]}' do not pair; encode brackets that belong to a key")
    name, brackets = match.groups()
    yield _decode(name)
    for inner in brackets[1:-1].split("][") if brackets else ():
        if inner and not inner[0].isascii():
            raise InvalidQuery(f"percent-encode the key behind the bracket in '{name[:60]}['")
        yield _decode(inner)


def _decode(text: str) -> str:
    encoded = text.replace("+", " ").encode("utf-8", "surrogateescape")
    try:
        return unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError as error:
        raise InvalidQuery(f"'{text[:60]!a}' is not UTF-8 once decoded") from error
