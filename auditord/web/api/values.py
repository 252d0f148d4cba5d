"""Kinds of values that parameters have: each says its JSON schema and reads its text, so that both agree.

On ``/api/v1`` a parameter that is given has a value; AUDITOR's ``GET /records`` takes an empty one for none.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

from auditord.web.record_query import (
    Given,
    InvalidQuery,
    by_name,
    parse_query_string,
    read_number,
    refuse_unknown,
    scalar,
)
from auditord_hookspecs.records import MAX_AMOUNT, MAX_NAME_GRAPHEMES, check_name
from auditord_hookspecs.wire import parse_time

WHITE_SPACE: Final = r"\t-\r \u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
r"""Unicode's white space, for a character class: ``\s`` is not the same to every reader of a schema."""

_YEAR: Final = "(?:000[2-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-8][0-9]{3}|9[0-8][0-9]{2}|99[0-8][0-9]|999[0-8])"

Schema: TypeAlias = Mapping[str, Any]  # Any: JSON


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number."""

    least: int = 0
    most: int = MAX_AMOUNT

    @property
    def schema(self) -> Schema:
        """The JSON schema."""
        return {"type": "integer", "minimum": self.least, "maximum": self.most}

    def read(self, name: str, given: Given) -> int | None:
        """The number, or None if it was not given; raises InvalidQuery or InvalidRecord."""
        text = scalar(name, given)
        number = None if text is None else read_number(name, text)
        if number is not None and not self.least <= number <= self.most:
            raise InvalidQuery(f"'{name}' is a number from {self.least} to {self.most}")
        return number


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some words."""

    words: tuple[str, ...]

    @property
    def schema(self) -> Schema:
        """The JSON schema."""
        return {"type": "string", "enum": list(self.words)}

    def read(self, name: str, given: Given) -> str | None:
        """The word, or None if it was not given; raises InvalidQuery or InvalidRecord."""
        text = scalar(name, given)
        if text is not None and text not in self.words:
            raise InvalidQuery(f"unknown {name} '{text[:60]}', expected {' or '.join(self.words)}")
        return text


@dataclass(frozen=True, slots=True)
class Name:
    """A name as records have them: 1 to 256 characters that are not all blank, without NUL.

    Args:
        forbidden: further characters that the document leaves out, for a character class.
    """

    forbidden: str = ""

    @property
    def schema(self) -> Schema:
        """The JSON schema; the server takes more where characters are made of several others."""
        others = rf"\u0000{self.forbidden}"
        pattern = rf"^[^{others}]*[^{WHITE_SPACE}{others}][^{others}]*$"
        return {"type": "string", "minLength": 1, "maxLength": MAX_NAME_GRAPHEMES, "pattern": pattern}

    def read(self, name: str, given: Given) -> str | None:
        """The name, or None if it was not given; raises InvalidQuery or InvalidRecord."""
        text = scalar(name, given)
        if text is not None:
            check_name(text)
        return text


@dataclass(frozen=True, slots=True)
class Instant:
    """A time with zone."""

    @property
    def schema(self) -> Schema:
        """The JSON schema; in UTC, the first and the last year are only taken in part."""
        return {"type": "string", "format": "date-time", "pattern": f"^{_YEAR}-"}

    def read(self, name: str, given: Given) -> datetime | None:
        """The instant in UTC, or None if it was not given; raises InvalidRecord."""
        text = scalar(name, given)
        return None if text is None else parse_time(text)


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of a form that their reader knows, each given for itself and once.

    Args:
        pattern: of each, as far as an expression can say it; no text that it fits is refused.
        most: how many are taken.
    """

    pattern: str
    most: int

    @property
    def schema(self) -> Schema:
        """The JSON schema."""
        text = {"type": "string", "pattern": f"^(?:{self.pattern})$"}
        return {"type": "array", "items": text, "minItems": 1, "maxItems": self.most, "uniqueItems": True}

    def read(self, name: str, given: Given) -> Sequence[str]:
        """The texts of ``name=…`` or ``name[]=…`` in their order; raises InvalidQuery."""
        if any(parameter.path not in {(), ("",)} for parameter in given):
            raise InvalidQuery(f"'{name}' is given as {name}=… or {name}[]=…, once for each value")
        texts = [parameter.value for parameter in given]
        if len(set(texts)) < len(texts):
            raise InvalidQuery("the same is given more than once")
        if len(texts) > self.most:
            raise InvalidQuery(f"at most {self.most} are allowed")
        return texts


NAME: Final = Name()
KEY: Final = Name(r"\[\]")
"""A name between brackets; one that has brackets itself is encoded, and the outer ones are literal then."""
INSTANT: Final = Instant()
COUNT: Final = Whole()


def read_given(raw: str, known: Collection[str]) -> Mapping[str, Given]:
    """The parameters of a raw query string by name.

    Raises:
        InvalidQuery: the string breaks the grammar, or a parameter is unknown or has no value.
    """
    given = by_name(parse_query_string(raw))
    refuse_unknown(given, known)
    for name, parameters in given.items():
        if not all(parameter.value for parameter in parameters):
            raise InvalidQuery(f"'{name}' has no value: leave it out, or give it one", name[:60])
    return given
