"""From a ClassAd to a row of texts: attributes are looked up, expressions evaluated by HTCondor's own ``classad2``."""

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from auditord_hookspecs import AuditordError, InvalidRecord
from auditord_hookspecs.mapping import Row

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE: Final = re.compile(r'"(?:[^"\\]|\\.)*"|([A-Za-z_][A-Za-z0-9_]*)')
_EXPRESSION: Final = re.compile(r"/Expr\((.*)\)/", re.DOTALL)
_BANNER: Final = b"***"

Ad = Mapping[str, Any]  # Any: what JSON holds


def references(columns: Sequence[str]) -> list[str]:
    """The names of all attributes that the expressions may look at, each once (and some that are functions)."""
    found = (match[1] for column in columns for match in _REFERENCE.finditer(column))
    return list(dict.fromkeys(name for name in found if name))


def row_of_json(ad: Ad, columns: Sequence[str]) -> Row:
    """The texts of the columns, from one ad as ``-json`` prints it: expressions are ``/Expr(…)/`` there.

    Raises:
        AuditordError: an expression must be evaluated, and ``classad2`` is not installed.
    """
    simple = {name.lower(): value for name, value in ad.items()}  # ClassAd names have no case
    found = [simple.get(column.lower()) for column in columns]
    if all(_NAME.fullmatch(column) and not _is_expression(value) for column, value in zip(columns, found, strict=True)):
        return _known({column: _text(value) for column, value in zip(columns, found, strict=True)})
    return row_of_ad(_from_json(ad), columns)


def _is_expression(value: Any) -> bool:  # Any: what JSON holds
    # A nested ad is printed by classad2, too: patterns for scores are written for HTCondor's form of it.
    return isinstance(value, dict | list) or (isinstance(value, str) and _EXPRESSION.fullmatch(value) is not None)


def _text(value: Any) -> str:  # Any: what JSON holds
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _known(texts: Mapping[str, str]) -> Row:
    return {column: text for column, text in texts.items() if text}


def classads() -> Any:  # Any: the module has no types
    """HTCondor's module.

    Raises:
        AuditordError: it is not installed.
    """
    try:
        return importlib.import_module("classad2")
    except ImportError as error:
        raise AuditordError("this needs HTCondor's classad2: pip install 'auditord[htcondor]'") from error


def _from_json(ad: Ad) -> Any:  # Any: a classad2.ClassAd
    module = classads()
    made = module.ClassAd()
    for name, value in ad.items():
        match = _EXPRESSION.fullmatch(value) if isinstance(value, str) else None
        if value is not None:
            made[name] = module.ExprTree(match[1]) if match else value
    return made


def parse_ad(text: str) -> Any:  # Any: a classad2.ClassAd
    """An ad in the form of history files: one ``Name = expression`` per line.

    Raises:
        InvalidRecord: it is none.
    """
    module = classads()
    try:
        ad = module.parseOne(text, parser=module.ParserType.Old)
    except (ValueError, RuntimeError) as error:
        raise InvalidRecord(f"this is no ClassAd: {error}") from error
    if not len(ad):
        raise InvalidRecord("this is no ClassAd")
    return ad


def row_of_ad(ad: Any, columns: Sequence[str]) -> Row:  # Any: a classad2.ClassAd
    """The texts of the columns, evaluated within the ad; what is undefined, or an error, is left out."""
    module = classads()
    printed = module.ClassAd()
    for number, column in enumerate(columns):
        value = module.ExprTree(column).eval(ad)
        if not isinstance(value, module.Value):
            printed[f"c{number}"] = value
    texts = (_printed(printed, f"c{number}") for number in range(len(columns)))
    return _known(dict(zip(columns, texts, strict=True)))


def _printed(ad: Any, name: str) -> str:  # Any: a classad2.ClassAd
    value = ad.get(name)
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    one = type(ad)()
    one["x"] = value
    text: str = one.printOld()
    return text.split("=", 1)[1].strip()


def split_ads(text: bytes) -> Iterator[bytes]:
    """The ads of a piece of a history file that ends with a line ``*** …``, which follows each ad."""
    lines: list[bytes] = []
    for line in text.splitlines(keepends=True):
        if not line.startswith(_BANNER):
            lines.append(line)
        elif lines:
            yield b"".join(lines)
            lines = []
