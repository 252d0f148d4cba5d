"""JSON objects that stand one behind the other without a separator, as ``GET /records`` streams them."""

import json
from typing import Any


def objects(body: bytes | str) -> list[dict[str, Any]]:  # Any: a parsed record
    """Parse them in their order."""
    text = body if isinstance(body, str) else body.decode()
    decoder, found, position = json.JSONDecoder(), list[dict[str, Any]](), 0
    while position < len(text):
        item, position = decoder.raw_decode(text, position)
        found.append(item)
    return found
