"""Parsers of what clients send: records, query strings, tokens."""

import asyncio
import json
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import strategies as st
from jwt import api_jws
from jwt.algorithms import ECAlgorithm

from auditord.web.access.authorisation import HostAuthenticatorContext
from auditord.web.answers import json_error
from auditord.web.api.records import read_listing
from auditord.web.api.sums import read_sums_query
from auditord.web.elements import LineElements, NoArray, TooLong, split_array
from auditord.web.record_query import InvalidQuery, read_query
from auditord.web.requests import read_target
from auditord_builtin.access.jwt import open_jwt
from auditord_builtin.access.jwt_checking import KeysUnavailable, public_keys
from auditord_builtin.access.jwt_config import JwtConfig
from auditord_hookspecs import AccessRefused, Authenticate, Credentials, Identity, InvalidRecord, Record
from auditord_hookspecs.wire import decode_record, decode_records, decode_update, encode_record
from tests.access_callers import STORED
from tests.fuzz.mutation import mutated
from tests.fuzz.running import Parser, require_text

T = TypeVar("T")

LONGEST_ELEMENT: Final = 1 << 16

_RECORDS: Final = [
    msgspec.json.encode(STORED),
    msgspec.json.encode(STORED[0]),
    (
        b'{"record_id":"a","start_time":"2026-1-2 03:04:05.123456789+0130","stop_time":"2026-01-02T03:04:60 UTC",'
        b'"components":[{"name":"Cores","amount":1,"scores":[{"name":"HEPscore23","value":1e15}]}],"meta":{"a":["\\\\"]}}'
    ),
    b'[{"record_id":"\xc3\xa9e\xcc\x81","start_time":"2026-01-02T03:04:05Z","components":[],"meta":null,"runtime":3}]',
]
_MEMBERS: Final = [
    b'"record_id"',
    b'"start_time"',
    b'"stop_time"',
    b'"components"',
    b'"meta"',
    b'"runtime"',
    b'"scores"',
]


def _parse_record(text: bytes) -> None:
    for decode in (decode_record, decode_update):
        _or(InvalidRecord, decode, text)
    whole = _or(InvalidRecord, decode_records, text)
    elements = _or((NoArray, TooLong), _split_array, text)
    _or(TooLong, _split_lines, text)
    if whole is None:
        return
    assert all(decode_record(encode_record(each)) == each for each in whole)
    if elements is not None:
        assert [decode_record(each) for each in elements] == whole


def _or(
    errors: type[Exception] | tuple[type[Exception], ...], parse: "Callable[[bytes], Any]", text: bytes
) -> Any:  # Any: whatever it parses
    try:
        return parse(text)
    except errors:
        return None


def _split_array(text: bytes) -> Sequence[bytes]:
    return [bytes(each) for part in split_array(text, LONGEST_ELEMENT) for each in part.elements]


def _split_lines(text: bytes) -> Sequence[bytes]:
    """The lines of a text that comes in pieces of growing length."""
    lines = LineElements(LONGEST_ELEMENT)
    found = [line for start, end in pairwise(_CUTS) for line in lines.feed(text[start:end])]
    return [*found, *lines.end()]


_CUTS: Final = [0, 1, 2, 5, 20, 100, 500, 4_000, 65_536, 1 << 21]

_QUERIES: Final = [
    b"",
    b"start_time[gte]=2000-01-01T00:00:00Z&stop_time[lt]=2030-01-01T00%3A00%3A00%2B01%3A00&limit=10&sort_by[desc]=runtime",
    b"meta[site_id][c][0]=A&meta[site_id][c][1]=B&meta[group_id][dnc]=x&component[Cores][gt]=0&runtime[lte]=86400",
    b"meta%5Bsite_id%5D%5Bany%5D%5B%5D=B&meta[site_id][absent]=true&open=true&cursor=2000-01-01T00:00:00Z,a%2Cb&format=ndjson",
    b"by=meta:site_id&by=day:stop_time&usage=Cores:HEPscore23&usage=Memory&from=2026-01-01T00:00:00Z&until=2026-02-01T00:00:00Z",
    b"http://host/api/v1//records/%C3%A9?record_id=a%20b",
]
_PARTS: Final = [b"meta[", b"][", b"[0]", b"[gte]", b"sort_by", b"limit=", b"cursor=", b"by=", b"usage=", b"%5B", b"&&"]


def _parse_query(text: bytes) -> None:
    raw = text.decode("utf-8", "surrogateescape")  # as aiohttp hands the request line on
    target = read_target(raw)
    _or(UnicodeDecodeError, lambda _: target.segment(-1), b"")
    for read in (read_query, read_sums_query):
        _read_or_answer(read, raw)
    listing = _read_or_answer(lambda each: read_listing(each, "*/*"), raw)
    if listing is None:
        return
    following = listing.next(Record("é,b&c", datetime(2026, 1, 1, tzinfo=UTC), (), None))
    assert following.isascii()


def _read_or_answer(read: Callable[[str], T], raw: str) -> T | None:
    try:
        return read(raw)
    except InvalidQuery as error:
        require_text(error)
        json_error(400, str(error))  # whatever the query holds, its error can be sent
        return None


class _Issuer:
    """An issuer of tokens with one key, and what recognises them."""

    def __init__(self, folder: Path) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.described = {**ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True), "kid": "k", "alg": "ES256"}
        self._file = folder / "keys.json"
        self._file.write_text(json.dumps({"keys": [self.described]}))
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._opened = open_jwt(self._config, HostAuthenticatorContext("idp", "jwt", _now, state_dir=folder))
        self._authenticate: Authenticate = self._loop.run_until_complete(self._opened.__aenter__())

    @property
    def _config(self) -> JwtConfig:
        rules = [{"group": "/cms/*", "roles": ["reader"]}, {"subject": "collector-*", "roles": ["writer"]}]
        options = {"issuer": _ISSUER, "audience": ["me"], "jwks": f"file:{self._file}"}
        return JwtConfig.model_validate({**options, "rules": rules})

    def signed(self, payload: bytes) -> str:
        """A token with this payload, whatever it is."""
        return api_jws.encode(payload, self._key, "ES256", headers={"kid": "k"})

    def recognised(self, token: str) -> Identity | None:
        """The owner of a token."""
        return self._loop.run_until_complete(self._authenticate(Credentials("192.0.2.1", token=token)))

    def close(self) -> None:
        """Close what recognises tokens."""
        self._loop.run_until_complete(self._opened.__aexit__(None, None, None))
        self._loop.close()


_ISSUER: Final = "https://idp.example.org"
_CLAIMS: Final = {"iss": _ISSUER, "aud": "me", "sub": "alice", "exp": 4_000_000_000, "iat": 1_700_000_000}
_PAYLOADS: Final = [
    json.dumps({**_CLAIMS, "groups": ["/cms/production"]}).encode(),
    json.dumps({**_CLAIMS, "aud": ["me", "you"], "sub": "collector-1", "nbf": 1, "wlcg.groups": "/cms/x"}).encode(),
]
_CLAIM_WORDS: Final = [
    b'"groups": 5',
    b'"sub": null',
    b'"exp": 1e400',
    b'"aud": {}',
    b'"iss"',
    b'"nbf": "x"',
    b'"alg":"none"',
]


def _now() -> datetime:
    """PyJWT looks at the clock itself."""
    return datetime.now(UTC)


@contextmanager
def token_parser(folder: Path) -> Generator[Parser, None, None]:
    """The parser of tokens, whose issuer keeps its keys in the folder."""
    issuer = _Issuer(folder)
    good = [issuer.signed(each).encode() for each in _PAYLOADS]
    sets = [json.dumps({"keys": [issuer.described, {"kty": "oct", "k": "c2hhcmVk"}]}).encode()]

    def parse(text: bytes) -> None:
        _or(KeysUnavailable, lambda each: public_keys(msgspec.json.decode(each)), text) if _is_json(text) else None
        if _is_json(text) or text.startswith(b"{"):
            issuer.recognised(issuer.signed(text))  # an issuer may say whatever it likes
        elif (token := text.decode("ascii", "replace").strip()) and issuer.recognised(token) is not None:
            assert token.split(".")[:2] in [each.decode().split(".")[:2] for each in good]

    inputs = st.one_of(mutated(_PAYLOADS, _CLAIM_WORDS), mutated(good, [b".", b"=", b"-", b"_"]), mutated(sets))
    try:
        yield Parser("JWT", inputs, parse, (AccessRefused,))
    finally:
        issuer.close()


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


RECORD_JSON: Final = Parser("record JSON", mutated(_RECORDS, _MEMBERS), _parse_record)
QUERY_STRING: Final = Parser("query string", mutated(_QUERIES, _PARTS), _parse_query)
