"""Verify access tokens with PyJWT and their issuer's public keys, and log in through the issuer. Needs auditord[jwt].

The login is OpenID Connect Core 1.0, section 3.1: authorization code with PKCE (RFC 7636), state, nonce and logout
(RP-Initiated Logout 1.0). ID tokens are verified like access tokens, and the same rules map their claims to roles.
"""

import asyncio
import logging
import secrets
from base64 import b64encode, urlsafe_b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime, timedelta
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import quote_plus, urlencode, urlsplit

import jwt
import msgspec

from auditord_builtin.access.connections import fits, identify
from auditord_builtin.access.jwt_config import JwtConfig, LoginSection, require_safe_url
from auditord_hookspecs import AccessRefused, AuditordError, AuthenticatorContext, Credentials, Identity
from auditord_hookspecs.access import LoginStart, LoginUnavailable
from auditord_hookspecs.http import HttpAnswer, HttpClient, HttpError, HttpOptions
from auditord_hookspecs.sources import TlsFiles

BETWEEN_FETCHES: Final = timedelta(minutes=1)
"""The minimum time between two attempts to fetch keys, and after a failure, between two to fetch the description."""

KEPT: Final = timedelta(days=1)
"""The time for which keys stay trusted while the issuer is unreachable. It also delays revocations."""

REFRESH: Final = timedelta(hours=1)
"""The time after which keys and description are fetched again."""

ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
"""Accepted signature algorithms: those with a key pair. ``none`` and shared keys are excluded.

If the issuer's public key were accepted as a shared one, anybody could sign.
"""

_PUBLIC: Final = frozenset({"RSA", "EC", "OKP"})

Fetch: TypeAlias = Callable[[], Awaitable[Any]]  # Any: JSON
Described: TypeAlias = Mapping[str, Any]
"""A JSON Web Key (RFC 7517)."""


class Discovery(msgspec.Struct, frozen=True):
    """The fields used of an issuer's discovery document (OpenID Connect Discovery 1.0, section 3)."""

    issuer: str
    jwks_uri: str
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None
    userinfo_endpoint: str | None = None
    end_session_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class _KeySet(msgspec.Struct, frozen=True):
    keys: list[dict[str, Any]]


class KeysUnavailable(Exception):
    """The issuer's keys or discovery document cannot be fetched. The message says why."""


class KeyRing:
    """The keys of one issuer, fetched again after an hour or for an unknown key id."""

    def __init__(self, fetch: Fetch, now: Callable[[], datetime], log: "logging.LoggerAdapter[logging.Logger]") -> None:
        self._fetch = fetch
        self._now = now
        self._log = log
        self._keys: Mapping[str | None, Described] = {}
        self._fetched: datetime | None = None
        self._tried: datetime | None = None
        self._fetching = asyncio.Lock()

    async def key(self, key_id: str | None, algorithm: str) -> jwt.PyJWK:
        """Return the key with this id for this algorithm. Without an id, return the issuer's only key.

        Raises:
            AccessRefused: the key does not exist, is for another algorithm, or cannot be fetched.
        """
        if self._is_old(REFRESH) or (key_id is not None and key_id not in self._keys):
            await self._renew()
        if self._is_old(KEPT):
            raise AccessRefused("the keys of the issuer cannot be fetched")
        if key_id is not None:
            described = self._keys.get(key_id)
        else:
            described = next(iter(self._keys.values())) if len(self._keys) == 1 else None
        if described is None or described.get("alg", algorithm) != algorithm:
            raise AccessRefused("signed with a key that the issuer does not have for this algorithm")
        return jwt.PyJWK(dict(described), algorithm)  # refuses a key that does not fit the algorithm

    def _is_old(self, age: timedelta) -> bool:
        return self._fetched is None or self._now() - self._fetched >= age

    async def _renew(self) -> None:
        """Fetch the keys, unless that was tried recently. With known keys, only one request waits for a slow issuer."""
        if self._keys and self._fetching.locked():
            return
        async with self._fetching:
            if self._tried is not None and self._now() - self._tried < BETWEEN_FETCHES:
                return
            self._tried = self._now()
            try:
                self._keys, self._fetched = public_keys(await self._fetch()), self._now()
            except KeysUnavailable as error:
                self._log.warning(
                    "the keys of the issuer cannot be fetched; known keys stay valid for a day: %s", error
                )


def public_keys(document: Any) -> Mapping[str | None, Described]:  # Any: JSON
    """Return the public signature keys of a key set by id.

    Raises:
        KeysUnavailable: the document is not a key set.
    """
    try:
        listed = msgspec.convert(document, type=_KeySet).keys
    except msgspec.ValidationError as error:
        raise KeysUnavailable(f"the answer is not a key set: {error}") from error
    usable = [each for each in listed if each.get("kty") in _PUBLIC and each.get("use", "sig") == "sig"]
    return {each.get("kid"): each for each in usable if isinstance(each.get("kid"), str | None)}


def http_options(config: JwtConfig) -> HttpOptions:
    """Return HTTP options for the issuer, with a single attempt, since an API request waits for the answer."""
    return HttpOptions(tls=TlsFiles(ca=config.ca), timeout=timedelta(seconds=10), max_answer=1 << 20, attempts=1)


async def key_set(config: JwtConfig, http: HttpClient) -> Any:  # Any: JSON
    """Fetch the key set from a file, the configured URL, or the URL in the discovery document.

    Raises:
        KeysUnavailable: the key set cannot be fetched.
    """
    if config.jwks is not None and config.jwks.startswith("file:"):
        path = Path(config.jwks.removeprefix("file:"))
        try:
            return msgspec.json.decode(await asyncio.to_thread(path.read_bytes))
        except (OSError, msgspec.DecodeError) as error:
            raise KeysUnavailable(f"{path}: {error}") from error
    return await _get(http, config.jwks or (await discover(http, config.issuer)).jwks_uri)


async def discover(http: HttpClient, issuer: str) -> Discovery:
    """Fetch the issuer's discovery document.

    Raises:
        KeysUnavailable: the document cannot be fetched, belongs to another issuer, or has no trusted URL of keys.
    """
    found = await _get(http, issuer.rstrip("/") + "/.well-known/openid-configuration")
    try:
        document = msgspec.convert(found, type=Discovery)
    except msgspec.ValidationError as error:
        raise KeysUnavailable(f"the discovery document of {issuer} is invalid: {error}") from error
    if document.issuer != issuer:
        raise KeysUnavailable(f"the discovery document of {issuer} names another issuer: check the option issuer")
    try:
        require_safe_url(document.jwks_uri)
    except ValueError as error:
        raise KeysUnavailable(f"{issuer}: {error}") from error
    return document


async def _get(http: HttpClient, url: str) -> Any:  # Any: JSON
    try:
        answer = await http.request("GET", url)
    except HttpError as error:
        raise KeysUnavailable(str(error)) from error
    if answer.status != 200:  # noqa: PLR2004 OK
        raise KeysUnavailable(f"{url} answers {answer.status}")
    try:
        return msgspec.json.decode(answer.body)
    except msgspec.DecodeError as error:
        raise KeysUnavailable(f"{url}: {error}") from error


Claims = Mapping[str, Any]  # Any: JSON

_LEEWAY: Final = timedelta(seconds=30)
"""The tolerated clock difference to the issuer."""

_NEEDED: Final = ("exp", "iss", "aud", "sub")
_UNREADABLE: Final = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)
"""PyJWT's errors, and those of its callees for malformed tokens, such as deep nesting or a time out of range."""

_UNCHECKED: Final[dict[str, Any]] = {"verify_signature": False}


@asynccontextmanager
async def open_issuer(
    config: JwtConfig, context: AuthenticatorContext
) -> AsyncGenerator[tuple["Issuer", HttpClient], None]:
    """Yield an authenticator for the issuer's tokens, and the HTTP client for the issuer.

    Raises:
        ValueError: the CA file cannot be read.
    """
    async with AsyncExitStack() as stack:
        try:
            http = await stack.enter_async_context(context.http(http_options(config)))
        except AuditordError as error:
            raise ValueError(str(error)) from error
        yield Issuer(config, KeyRing(lambda: key_set(config, http), context.now, context.log)), http


class Issuer(msgspec.Struct, frozen=True):
    config: JwtConfig
    keys: KeyRing

    async def __call__(self, credentials: Credentials) -> Identity | None:
        """Return the identity of a token, or of claims that were verified when a session began."""
        if credentials.claims is not None:
            return identity_of(self.config, credentials.claims)
        if credentials.token is None:
            return None
        try:
            unverified = jwt.decode(credentials.token, options=_UNCHECKED)  # type: ignore[arg-type]
        except _UNREADABLE:
            return None
        if unverified.get("iss") != self.config.issuer:  # a token for another authenticator
            return None
        return identity_of(self.config, await self.verify(credentials.token, self.config.audience))

    async def verify(self, token: str, audience: Sequence[str]) -> Claims:
        """Verify a token and return its claims.

        Raises:
            AccessRefused: the token is not valid.
        """
        config = self.config
        try:
            header = jwt.get_unverified_header(token)
            algorithm, key_id = header.get("alg"), header.get("kid")
            if algorithm not in ALGORITHMS:
                raise AccessRefused("signed by an algorithm that is not accepted")
            key = await self.keys.key(key_id, str(algorithm))
            claims: Claims = jwt.decode(
                token,
                key,
                algorithms=[str(algorithm)],
                audience=list(audience),
                issuer=config.issuer,
                leeway=_LEEWAY,
                options={"require": list(_NEEDED)},
            )
        except _UNREADABLE as error:
            raise AccessRefused(f"a token of {config.issuer} is refused: {error}") from error
        return claims


def identity_of(config: JwtConfig, claims: Claims) -> Identity | None:
    """Return the identity that the rules give to verified claims; None if no rule matches."""
    subject, groups = str(claims["sub"]), groups_of(config, claims)
    fitting = [rule for rule in config.rules if fits(rule.subject, subject) and fits(rule.group, *groups)]
    user = claims.get(config.user_claim) if config.user_claim is not None else None
    return identify(subject, fitting, user if isinstance(user, str) else None)


def groups_of(config: JwtConfig, claims: Claims) -> Sequence[str]:
    """Return the groups in the group claims. A claim is a list or a single text. Other types are ignored."""
    found: list[str] = []
    for claim in config.group_claims:
        value = claims.get(claim)
        items: list[Any] = value if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType]
        found += [group for group in items if isinstance(group, str)]
    return found


def is_lacking(config: JwtConfig, claims: Claims) -> bool:
    """Return True if the claims lack all group claims, or the configured user claim."""
    no_groups = not any(claim in claims for claim in config.group_claims)
    return no_groups or (config.user_claim is not None and config.user_claim not in claims)


_OK: Final = 200

T = TypeVar("T")


class _Tokens(msgspec.Struct, frozen=True):
    id_token: str
    access_token: str | None = None


class Description:
    """An issuer's discovery document, fetched again after an hour."""

    def __init__(self, config: JwtConfig, http: HttpClient, now: Callable[[], datetime]) -> None:
        self._config = config
        self._http = http
        self._now = now
        self._known: tuple[datetime, Discovery] | None = None
        self._failed: tuple[datetime, KeysUnavailable] | None = None

    async def get(self) -> Discovery:
        """Return the discovery document. If the issuer is down, it is retried at most once a minute.

        Raises:
            LoginUnavailable: the document cannot be fetched.
        """
        if self._known is not None and not self._is_past(self._known[0], REFRESH):
            return self._known[1]
        if self._failed is not None and not self._is_past(self._failed[0], BETWEEN_FETCHES):
            raise LoginUnavailable(str(self._failed[1]))
        try:
            found = await discover(self._http, self._config.issuer)
        except KeysUnavailable as error:
            self._failed = (self._now(), error)
            raise LoginUnavailable(str(error)) from error
        self._known, self._failed = (self._now(), found), None
        return found

    def _is_past(self, since: datetime, length: timedelta) -> bool:
        return self._now() - since >= length


class IssuerLogin:
    """An issuer that authenticates tokens and logins."""

    def __init__(self, issuer: Issuer, login: LoginSection, http: HttpClient, description: Description) -> None:
        self._issuer = issuer
        self._login = login
        self._http = http
        self._description = description

    @property
    def title(self) -> str:
        """The issuer's name on the page."""
        return self._login.title or urlsplit(self._issuer.config.issuer).hostname or self._issuer.config.issuer

    async def __call__(self, credentials: Credentials) -> Identity | None:
        """Return the identity of a token, or of a session's claims."""
        return await self._issuer(credentials)

    async def start(self, callback: str) -> LoginStart:
        """Return the URL at which a login begins, and the secrets to check its answer against."""
        endpoint = _endpoint(await self._description.get(), "authorization_endpoint")
        kept = {name: secrets.token_urlsafe(32) for name in ("state", "nonce", "verifier")}
        digest = sha256(kept["verifier"].encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self._login.client_id,
            "redirect_uri": callback,
            "scope": " ".join(dict.fromkeys(["openid", *self._login.scopes])),
            "state": kept["state"],
            "nonce": kept["nonce"],
            "code_challenge": urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        return LoginStart(f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}", kept)

    async def finish(self, callback: str, kept: Mapping[str, str], answer: Mapping[str, str]) -> Mapping[str, object]:
        """Verify the issuer's answer to a login and return the claims that the rules use."""
        issuer = self._issuer.config.issuer
        if not compare_digest(kept["state"].encode(), answer.get("state", "").encode(errors="replace")):
            raise AccessRefused(f"the answer of {issuer} is for another login (state)")
        if answer.get("iss", issuer) != issuer:  # RFC 9207
            raise AccessRefused(f"another issuer than {issuer} answered")
        if "code" not in answer:
            raise AccessRefused(f"{issuer} refused the login: {answer.get('error', 'it sent no code')[:100]}")
        described, headers = await self._description.get(), dict[str, str]()
        form = {"grant_type": "authorization_code", "code": answer["code"], "redirect_uri": callback}
        form["code_verifier"] = kept["verifier"]
        client, secret = self._login.client_id, self._login.client_secret
        if secret is not None and "client_secret_basic" in described.token_endpoint_auth_methods_supported:
            pair = f"{quote_plus(client)}:{quote_plus(secret.get_secret_value())}"  # RFC 6749, section 2.3.1
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": client} | ({} if secret is None else {"client_secret": secret.get_secret_value()})
        token_answer = await self._request("POST", _endpoint(described, "token_endpoint"), headers, form)
        tokens = _content_of(token_answer, _Tokens)
        claims = await self._issuer.verify(tokens.id_token, (client,))
        if not compare_digest(kept["nonce"].encode(), str(claims.get("nonce", "")).encode(errors="replace")):
            raise AccessRefused(f"the ID token of {issuer} is for another login (nonce)")
        if claims.get("azp", client) != client:
            raise AccessRefused(f"the ID token of {issuer} is for another client (azp)")
        reduced = _reduce(self._issuer.config, await self._complete(claims, tokens.access_token))
        if identity_of(self._issuer.config, reduced) is None:
            raise AccessRefused(f"no rule matches {claims['sub']} of {issuer}")
        return reduced

    async def logout(self, back: str) -> str | None:
        """Return the URL at which the issuer ends its session, or None."""
        try:
            endpoint = (await self._description.get()).end_session_endpoint
        except LoginUnavailable:
            return None
        query = urlencode({"client_id": self._login.client_id, "post_logout_redirect_uri": back})
        return None if endpoint is None else f"{require_safe_url(endpoint)}{'&' if '?' in endpoint else '?'}{query}"

    async def _complete(self, claims: Claims, access_token: str | None) -> Claims:
        """Add claims of the UserInfo endpoint if some are lacking. The ID token's claims take precedence."""
        config, found = self._issuer.config, await self._description.get()
        if found.userinfo_endpoint is None or access_token is None or not is_lacking(config, claims):
            return claims
        headers = {"Authorization": f"Bearer {access_token}"}
        more = _content_of(await self._request("GET", _endpoint(found, "userinfo_endpoint"), headers), dict[str, Any])
        if more.get("sub") != claims["sub"]:
            raise AccessRefused(f"{config.issuer} answered about another user than {claims['sub']}")
        return {**more, **claims}

    async def _request(
        self, method: str, url: str, headers: Mapping[str, str], form: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        try:
            return await self._http.request(method, url, headers=headers, form=form, idempotent=False)
        except HttpError as error:
            raise LoginUnavailable(str(error)) from error


def _endpoint(found: Discovery, name: str) -> str:
    url: str | None = getattr(found, name)
    try:
        return require_safe_url(url or "")
    except ValueError as error:
        raise LoginUnavailable(f"the discovery document of {found.issuer} has no {name} that can be trusted") from error


def _content_of(answer: HttpAnswer, shape: type[T]) -> T:
    """Decode the body of an answer.

    Raises:
        AccessRefused: the answer is an error or malformed. The message does not quote it.
        LoginUnavailable: the server has a temporary error.
    """
    if answer.status >= 500:  # noqa: PLR2004 the classes of HTTP
        raise LoginUnavailable(f"{answer.request} was answered {answer.status}")
    if answer.status != _OK:
        code = ""  # such as invalid_grant (RFC 6749, section 5.2)
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            code = str(msgspec.json.decode(answer.body, type=dict[str, Any]).get("error", ""))[:100]
        raise AccessRefused(f"{answer.request} was answered {answer.status} {code}".rstrip())
    try:
        return msgspec.json.decode(answer.body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AccessRefused(f"{answer.request} has an answer that cannot be read") from error


def _reduce(config: JwtConfig, claims: Claims) -> Mapping[str, object]:
    """Return only the claims that the rules use, since they are kept in a cookie."""
    patterns = [rule.group for rule in config.rules if rule.group is not None]
    groups = [group for group in groups_of(config, claims) if any(fits(pattern, group) for pattern in patterns)]
    kept: dict[str, object] = {"sub": claims["sub"]}
    kept |= {config.group_claims[0]: list(dict.fromkeys(groups))} if config.group_claims else {}
    return kept | ({config.user_claim: claims.get(config.user_claim)} if config.user_claim is not None else {})
