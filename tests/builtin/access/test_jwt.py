"""Access tokens of a local issuer: good ones are let in, and every way to make a bad one is refused."""

import base64
import hmac
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from auditord.contexts.instances import task_log
from auditord.web.access.authorisation import HostAuthenticatorContext
from auditord_builtin.access.jwt import open_jwt
from auditord_builtin.access.jwt_checking import BETWEEN_FETCHES, KEPT, KeyRing, KeysUnavailable, public_keys
from auditord_builtin.access.jwt_config import JwtConfig
from auditord_hookspecs import AccessRefused, Credentials, Identity

pytestmark = pytest.mark.anyio

KEY: Final = rsa.generate_private_key(65537, 2048)
PUBLIC: Final[bytes] = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
OTHER: Final = rsa.generate_private_key(65537, 2048)
CURVE: Final = ec.generate_private_key(ec.SECP256R1())
AUDIENCE: Final = "auditord.example.org"
MEMBER: Final = "urn:mace:egi.eu:group:vo.example.org:role=member#aai.egi.eu"
RULES: Final = [
    {"group": "urn:mace:egi.eu:group:vo.example.org:role=member#*", "roles": ["reader"]},
    {"group": "/cms/production", "roles": ["writer"]},
    {"subject": "collector-*", "roles": ["writer", "reader"]},
]


def now() -> datetime:
    """PyJWT looks at the clock itself."""
    return datetime.now(UTC)


def jwk(key_id: str, **changes: object) -> dict[str, Any]:
    return {
        **RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True),
        "kid": key_id,
        "alg": "RS256",
        "use": "sig",
        **changes,
    }


def key_set() -> dict[str, Any]:
    curve = {**ECAlgorithm.to_jwk(CURVE.public_key(), as_dict=True), "kid": "curve"}
    shared = {"kty": "oct", "k": "c2hhcmVk", "kid": "shared", "alg": "HS256"}
    of_any_algorithm = {name: value for name, value in jwk("any").items() if name != "alg"}
    return {"keys": [jwk("rsa"), curve, shared, jwk("for-secrets", use="enc"), of_any_algorithm]}


@asynccontextmanager
async def issuer() -> AsyncGenerator[str, None]:
    """An issuer with a discovery document and keys."""
    url = ""

    async def discovery(_request: web.Request) -> web.Response:
        return web.json_response({"issuer": url, "jwks_uri": f"{url}/jwk"})

    async def keys(_request: web.Request) -> web.Response:
        return web.json_response(key_set())

    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", discovery)
    app.router.add_get("/jwk", keys)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield url
    finally:
        await runner.cleanup()


@asynccontextmanager
async def asking(url: str, folder: Path, **options: object) -> AsyncGenerator[Callable[[str], Any], None]:
    config = JwtConfig.model_validate({"issuer": url, "audience": [AUDIENCE, "any"], "rules": RULES, **options})
    context = HostAuthenticatorContext("idp", "jwt", now, state_dir=folder)
    async with open_jwt(config, context) as authenticate:

        async def ask(token: str) -> Identity | None:
            return await authenticate(Credentials("192.0.2.1", token=token))

        yield ask


def claims(url: str, **changes: object) -> dict[str, Any]:
    given: dict[str, Any] = {
        "iss": url,
        "aud": AUDIENCE,
        "sub": "alice",
        "exp": now() + timedelta(hours=1),
        "iat": now(),
        "eduperson_entitlement": [MEMBER],
    } | changes
    return {name: value for name, value in given.items() if value is not None}


def signed(payload: dict[str, Any], key: Any = KEY, algorithm: str = "RS256", **headers: object) -> str:
    return jwt.encode(payload, key, algorithm, headers={"kid": "rsa", **headers})


def by_hand(header: dict[str, Any], payload: dict[str, Any], secret: bytes | None) -> str:
    """A token that no library would sign."""
    payload = {name: value.timestamp() if isinstance(value, datetime) else value for name, value in payload.items()}
    parts = [base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in (header, payload)]
    message = b".".join(parts)
    signature = b"" if secret is None else hmac.new(secret, message, sha256).digest()
    return (message + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


async def test_good_tokens_are_let_in_with_the_roles_of_their_groups(tmp_path: Path) -> None:
    async with issuer() as url, asking(url, tmp_path) as ask:
        assert await ask(signed(claims(url))) == Identity("alice", ("reader",))
        assert await ask(signed(claims(url, aud=["x", AUDIENCE]))) == Identity("alice", ("reader",))
        iam = claims(url, eduperson_entitlement=None, **{"wlcg.groups": ["/cms", "/cms/production"]}, sub="bob")
        assert await ask(signed(iam)) == Identity("bob", ("writer",))
        named = claims(url, preferred_username="alice_a")
        async with asking(url, tmp_path, user_claim="preferred_username") as ask_with_name:
            assert await ask_with_name(signed(named)) == Identity("alice", ("reader",), "alice_a")
            assert await ask_with_name(signed(claims(url, preferred_username=["b"]))) == Identity("alice", ("reader",))
        both = claims(url, sub="collector-1")
        assert await ask(signed(both, CURVE, "ES256", kid="curve")) == Identity("collector-1", ("reader", "writer"))
        assert await ask(signed(claims(url, exp=now() - timedelta(seconds=10)))) is not None  # within the leeway


async def test_of_this_issuer_but_without_a_fitting_rule_nobody_is_known(tmp_path: Path) -> None:
    async with issuer() as url, asking(url, tmp_path) as ask:
        assert await ask(signed(claims(url, eduperson_entitlement=["/cms/productionist", 7, None]))) is None


async def test_tokens_of_others_are_left_to_others(tmp_path: Path) -> None:
    async with issuer() as url, asking(url, tmp_path) as ask:
        assert await ask(signed(claims("https://elsewhere.example"))) is None
        for text in ("auditord_1_2", "x", "a.b.c", "..", "", "eyJ.eyJ.x"):
            assert await ask(text) is None


BAD: Final[dict[str, Callable[[str], str]]] = {
    "expired": lambda url: signed(claims(url, exp=now() - timedelta(minutes=2))),
    "not yet valid": lambda url: signed(claims(url, nbf=now() + timedelta(minutes=2))),
    "issued in the future": lambda url: signed(claims(url, iat=now() + timedelta(minutes=2))),
    "wrong audience": lambda url: signed(claims(url, aud="another.example.org")),
    "no audience": lambda url: signed(claims(url, aud=None)),
    "no end": lambda url: signed(claims(url, exp=None)),
    "no subject": lambda url: signed(claims(url, sub=None)),
    "another key": lambda url: signed(claims(url), OTHER),
    "an unknown key": lambda url: signed(claims(url), OTHER, kid="mine"),
    "a key for secrets": lambda url: signed(claims(url), kid="for-secrets"),
    "another algorithm than the key's": lambda url: signed(claims(url), algorithm="PS256"),
    "the key of another kind": lambda url: signed(claims(url), CURVE, "ES256", kid="rsa"),
    "no key id": lambda url: jwt.encode(claims(url), KEY, "RS256"),
    "alg none": lambda url: by_hand({"alg": "none", "kid": "rsa"}, claims(url), None),
    "alg None": lambda url: by_hand({"alg": "None", "kid": "rsa"}, claims(url), None),
    "the public key as a shared one": lambda url: by_hand({"alg": "HS256", "kid": "rsa"}, claims(url), PUBLIC),
    "the shared key": lambda url: by_hand({"alg": "HS256", "kid": "shared"}, claims(url), b"shared"),
    "RS256 signed with the public key": lambda url: by_hand({"alg": "RS256", "kid": "rsa"}, claims(url), PUBLIC),
    "its own key": lambda url: signed(claims(url), OTHER, jwk=RSAAlgorithm.to_jwk(OTHER.public_key(), as_dict=True)),
    "no signature": lambda url: signed(claims(url)).rpartition(".")[0] + ".",
    "changed claims": lambda url: changed(signed(claims(url)), claims(url, sub="collector-1")),
}


def changed(token: str, payload: dict[str, Any]) -> str:
    header, _, signature = token.split(".")
    return ".".join([header, by_hand({}, payload, None).split(".")[1], signature])


@pytest.mark.parametrize("kind", BAD)
async def test_bad_tokens_are_refused(tmp_path: Path, kind: str) -> None:
    async with issuer() as url, asking(url, tmp_path) as ask:
        token = BAD[kind](url)
        with pytest.raises(AccessRefused) as refused:
            await ask(token)
        assert token not in str(refused.value)


async def test_every_signature_with_a_key_pair_is_accepted_and_no_other(tmp_path: Path) -> None:
    async with issuer() as url, asking(url, tmp_path) as ask:
        for algorithm in ("RS256", "RS512", "PS256", "PS384"):
            assert await ask(signed(claims(url), algorithm=algorithm, kid="any")) == Identity("alice", ("reader",))
        for algorithm, secret in (("none", None), ("HS256", b"shared"), ("HS512", b"shared")):
            with pytest.raises(AccessRefused, match="by an algorithm that is not accepted"):
                await ask(by_hand({"alg": algorithm, "kid": "any"}, claims(url), secret))


async def test_keys_may_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text(json.dumps(key_set()))
    url = "https://iam.example.org/"
    async with asking(url, tmp_path, jwks=f"file:{tmp_path}/keys.json") as ask:
        assert await ask(signed(claims(url))) == Identity("alice", ("reader",))


async def test_a_discovery_document_of_another_issuer_is_not_believed(tmp_path: Path) -> None:
    async with issuer() as url, asking(f"{url}/", tmp_path) as ask:
        with pytest.raises(AccessRefused, match="cannot be fetched"):
            await ask(signed(claims(f"{url}/")))


@pytest.mark.parametrize(
    "options",
    [
        {"issuer": "http://iam.example.org"},
        {"issuer": "file:/etc/passwd"},
        {"jwks": "http://iam.example.org/jwk"},
        {"jwks": "file:keys.json"},
        {"audience": []},
        {"rules": []},
        {"rules": [{"roles": ["reader"]}]},
    ],
    ids=str,
)
def test_what_would_let_others_in_cannot_be_configured(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        JwtConfig.model_validate({"issuer": "https://iam", "audience": ["a"], "rules": RULES, **options})


class Keys:
    """Keys that can be away, at a time that tests set."""

    def __init__(self) -> None:
        self.document: Any = key_set()
        self.fetched = 0
        self.time = now()
        log = task_log("idp", "jwt")
        self.ring = KeyRing(self.fetch, lambda: self.time, log)

    async def fetch(self) -> Any:
        self.fetched += 1
        if self.document is None:
            raise KeysUnavailable("away")
        return self.document


async def test_unknown_keys_cost_the_issuer_one_request_a_minute() -> None:
    keys = Keys()
    for number in range(50):
        with pytest.raises(AccessRefused):
            await keys.ring.key(f"made up {number}", "RS256")
    assert keys.fetched == 1
    keys.document = {"keys": [jwk("new")]}
    keys.time += BETWEEN_FETCHES
    assert (await keys.ring.key("new", "RS256")).key_id == "new"
    with pytest.raises(AccessRefused):
        await keys.ring.key("rsa", "RS256")


async def test_while_the_issuer_is_away_its_keys_stay_for_a_day() -> None:
    keys = Keys()
    await keys.ring.key("rsa", "RS256")
    keys.document = None
    keys.time += KEPT - timedelta(seconds=1)
    assert (await keys.ring.key("rsa", "RS256")).key_id == "rsa"
    keys.time += timedelta(seconds=1)
    with pytest.raises(AccessRefused, match="cannot be fetched"):
        await keys.ring.key("rsa", "RS256")


async def test_without_an_id_the_only_key_counts() -> None:
    keys = Keys()
    keys.document = {"keys": [jwk("only")]}
    assert (await keys.ring.key(None, "RS256")).key_id == "only"


@pytest.mark.parametrize("document", [None, [], {}, {"keys": 7}, {"keys": [7]}, "keys"])
def test_what_is_no_key_set_is_refused(document: Any) -> None:
    with pytest.raises(KeysUnavailable):
        public_keys(document)


def test_shared_keys_are_no_keys_of_an_issuer() -> None:
    assert public_keys(key_set()).keys() == {"rsa", "curve", "any"}


@pytest.mark.parametrize("value", [5, 0, True, 1.5, {"a": "b"}, [5, None, ["x"]], "", []])
async def test_groups_of_any_other_form_are_none(tmp_path: Path, value: object) -> None:
    async with issuer() as url, asking(url, tmp_path) as ask:
        assert await ask(signed(claims(url, eduperson_entitlement=None, groups=value))) is None
        assert await ask(signed(claims(url, groups=value))) == Identity("alice", ("reader",))


@pytest.mark.parametrize("exp", [1e400, "soon", [1], {}, -1e400])
async def test_a_time_that_is_none_is_refused(tmp_path: Path, exp: object) -> None:
    async with issuer() as url, asking(url, tmp_path) as ask:
        with pytest.raises(AccessRefused):
            await ask(signed(claims(url, exp=exp)))


async def test_a_nest_of_brackets_is_no_token(tmp_path: Path) -> None:
    part = base64.urlsafe_b64encode(b"[" * 9_000).rstrip(b"=").decode()
    head = base64.urlsafe_b64encode(b'{"alg":"RS256"}').rstrip(b"=").decode()
    async with issuer() as url, asking(url, tmp_path) as ask:
        assert await ask(f"{head}.{part}.x") is None
        assert await ask(f"{part}.{part}.x") is None
