"""An OpenID Connect issuer that really signs, checks PKCE and gives each code once: for tests of the login."""

import base64
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlencode

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

CLIENT: Final = "auditord-test"
SECRET: Final = "a secret: of/the client"  # noqa: S105 of the test
_KEY: Final = rsa.generate_private_key(65537, 2048)
_FORGER: Final = rsa.generate_private_key(65537, 2048)


@dataclass
class TestIssuer:
    """The issuer, and what it does wrong.

    Args:
        url: of it.
        user: claims of whoever logs in.
        changed: claims of the ID token that are not as they should be; None leaves one out.
        userinfo: claims that only UserInfo tells.
        forged: whether another key signs.
        denies: whether the user is refused.
        sent_iss: the parameter ``iss`` of the way back (RFC 9207).
        away: whether it gives no tokens at the moment.
        asked: requests for tokens so far.
    """

    __test__ = False

    url: str = ""
    user: dict[str, Any] = field(default_factory=lambda: {"sub": "sub-alice", "preferred_username": "alice"})
    changed: dict[str, Any] = field(default_factory=dict[str, Any])
    userinfo: dict[str, Any] = field(default_factory=dict[str, Any])
    forged: bool = False
    denies: bool = False
    sent_iss: str | None = None
    away: bool = False
    asked: int = 0
    codes: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    secret: str | None = SECRET

    async def describe(self, _request: web.Request) -> web.Response:
        named = {"authorization_endpoint": "authorize", "token_endpoint": "token", "userinfo_endpoint": "userinfo"}
        paths = named | {"end_session_endpoint": "logout", "jwks_uri": "jwk"}
        return web.json_response({"issuer": self.url} | {name: f"{self.url}/{path}" for name, path in paths.items()})

    async def keys(self, _request: web.Request) -> web.Response:
        key = {**RSAAlgorithm.to_jwk(_KEY.public_key(), as_dict=True), "kid": "one", "alg": "RS256", "use": "sig"}
        return web.json_response({"keys": [key]})

    async def authorise(self, request: web.Request) -> web.Response:
        """The user is logged in already and agrees."""
        given = dict(request.query)
        assert (given["response_type"], given["client_id"]) == ("code", CLIENT)
        assert "openid" in given["scope"].split()
        code = secrets.token_urlsafe(8)
        self.codes[code] = given
        answer = {"error": "access_denied"} if self.denies else {"code": code}
        answer |= {"state": given["state"]} | ({} if self.sent_iss is None else {"iss": self.sent_iss})
        raise web.HTTPFound(f"{given['redirect_uri']}?{urlencode(answer)}")

    async def give(self, request: web.Request) -> web.Response:
        """Tokens for a code."""
        self.asked += 1
        if self.away:
            return web.Response(status=503)
        form = await request.post()
        given = self.codes.pop(str(form["code"]), None)
        challenge = base64.urlsafe_b64encode(sha256(str(form["code_verifier"]).encode()).digest()).rstrip(b"=").decode()
        known = self._knows(request, str(form.get("client_id", "")))
        if given is None or not known or given["code_challenge"] != challenge:
            return web.json_response({"error": "invalid_grant" if known else "invalid_client"}, status=400)
        assert (given["code_challenge_method"], form["redirect_uri"]) == ("S256", given["redirect_uri"])
        return web.json_response({"id_token": self.id_token(given["nonce"]), "access_token": "for-userinfo"})

    def _knows(self, request: web.Request, client: str) -> bool:
        if self.secret is None:
            return client == CLIENT
        pair = urlencode({CLIENT: self.secret}).replace("=", ":", 1)
        return request.headers.get("Authorization") == f"Basic {base64.b64encode(pair.encode()).decode()}"

    def id_token(self, nonce: str) -> str:
        now = datetime.now(UTC)
        claims: dict[str, Any] = {
            "iss": self.url,
            "aud": CLIENT,
            "iat": now,
            "exp": now + timedelta(minutes=5),
            "nonce": nonce,
        }
        claims |= self.user | self.changed
        named = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(named, _FORGER if self.forged else _KEY, "RS256", headers={"kid": "one"})

    async def tell(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer for-userinfo"
        return web.json_response({"sub": self.user["sub"], **self.userinfo})

    async def leave(self, request: web.Request) -> web.Response:
        assert request.query["client_id"] == CLIENT
        raise web.HTTPFound(request.query["post_logout_redirect_uri"])


@asynccontextmanager
async def serving(issuer: TestIssuer) -> AsyncGenerator[TestIssuer, None]:
    """The issuer on a port of this host."""
    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", issuer.describe)
    app.router.add_get("/jwk", issuer.keys)
    app.router.add_get("/authorize", issuer.authorise)
    app.router.add_post("/token", issuer.give)
    app.router.add_get("/userinfo", issuer.tell)
    app.router.add_get("/logout", issuer.leave)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    issuer.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield issuer
    finally:
        await runner.cleanup()
