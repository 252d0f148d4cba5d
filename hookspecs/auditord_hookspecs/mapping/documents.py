"""Label texts from a JSON object that a user wrote into a comment; every value becomes a text, or a reason why not."""

import re
from collections.abc import Mapping

import msgspec

from auditord_hookspecs.errors import InvalidRecord

_SINGLE_QUOTED = re.compile(r"(?<=[\s{\[,:])'(.*?)'(?=\s*[,:}\]])", re.DOTALL)
_MAX_SINGLE_QUOTED = 4_096
"""Characters; the expression above takes quadratic time on hostile text, and comments are written by users."""

_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def parse_labels(text: str) -> Mapping[str, str]:
    """Return the members of a JSON object as texts, in order of their keys.

    Strings are kept, numbers and booleans are written as JSON does, nested values become JSON text, nulls are left out.
    As AUDITOR does, one pair of enclosing double quotes is taken off, and an object written with single quotes is
    read, too (here also with apostrophes inside).

    Raises:
        InvalidRecord: the text is no such object; the message says where it stops being one.
    """
    stripped = text.strip()
    if len(stripped) > 1 and stripped.startswith('"') and stripped.endswith('"'):
        stripped = stripped[1:-1].strip()
    if not stripped:
        return {}
    try:
        members = _decoder.decode(stripped if '"' in stripped else _double_quoted(stripped))
        texts = {key: _as_text(bytes(members[key])) for key in sorted(members)}
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRecord(f"{text[:60]!r} is not a JSON object: {error}") from error
    return {key: value for key, value in texts.items() if value is not None}


def _double_quoted(text: str) -> str:
    if len(text) > _MAX_SINGLE_QUOTED:
        raise InvalidRecord(f"{text[:60]!r}… is not JSON, and too long to be read as JSON with single quotes")
    return _SINGLE_QUOTED.sub(lambda match: msgspec.json.encode(match[1].replace("\\'", "'")).decode(), text)


def _as_text(raw: bytes) -> str | None:
    if raw == b"null":
        return None
    if raw.startswith(b'"'):
        return msgspec.json.decode(raw, type=str)
    value = msgspec.json.decode(raw)
    return raw.decode() if isinstance(value, int | float) else msgspec.json.encode(value).decode()
