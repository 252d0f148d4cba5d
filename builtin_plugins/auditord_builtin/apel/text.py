"""Texts that neither break a message nor are refused by APEL's database, and when two of them are one to it."""

import re
import unicodedata
from functools import lru_cache
from typing import Final
from unicodedata import category

LONGEST: Final = 255
"""Characters of most columns."""

_REMEMBERED: Final = 10_000  # the same few texts stand in most rows
_CONTROLS: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
_WIDEST: Final = 0xFFFF
# The receiver takes a text with these words in it for an encrypted one, and gives up.
_ENCRYPTED: Final = re.compile(r"(application/(?:x-)?pkcs7)-(mime)", re.IGNORECASE)


@lru_cache(_REMEMBERED)
def clean(text: str, longest: int = LONGEST) -> str:
    """A value for a message: one line, without the mark that ends a record, of at most so many characters.

    White space and control characters become single spaces, characters beyond the basic plane question marks; what is
    left of nothing is ``None``.
    """
    printable = "".join(
        [" " if category(each) in _CONTROLS else each if ord(each) <= _WIDEST else "?" for each in text]
    )
    line = " ".join(printable.split())
    harmless = _ENCRYPTED.sub(r"\1 \2", re.sub("%(?=%)", "% ", line))
    return harmless[:longest].rstrip() or "None"


def clean_name(text: str, longest: int = LONGEST) -> str:
    """Clean a field but VO, VOGroup and VORole: in all others APEL reads ``null`` and ``none`` as nothing."""
    name = clean(text, longest)
    return "None" if name.lower() in {"null", "none"} else name


@lru_cache(_REMEMBERED)
def fold(text: str) -> str:
    """The text as a database compares it that ignores case, accents and spaces at the end."""
    if text.isascii():
        return text.lower().strip()
    plain = unicodedata.normalize("NFKD", text.casefold())
    return "".join([each for each in plain if not unicodedata.combining(each)]).casefold().strip()
