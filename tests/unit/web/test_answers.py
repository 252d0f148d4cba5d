"""Answers whose text a client has a part in."""

import msgspec
import pytest

from auditord.web.answers import json_error
from auditord.web.record_query import InvalidQuery, read_query


def test_an_error_that_quotes_what_no_json_can_carry_is_sent() -> None:
    with pytest.raises(InvalidQuery) as refused:
        read_query("\udc80gte]=1")  # aiohttp's parser in Python hands bytes that are not UTF-8 on like this
    said = msgspec.json.encode({"error": str(refused.value).replace("\udc80", "\\udc80")})
    assert json_error(400, str(refused.value)).body_length == len(said)
