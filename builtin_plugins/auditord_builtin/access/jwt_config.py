"""The options of the authenticator ``jwt``: an OpenID Connect issuer, such as EGI Check-in or an INDIGO IAM."""

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from auditord_builtin.access.connections import Pattern, Rule
from auditord_hookspecs import InstanceConfig, Section
from auditord_hookspecs.config import Secret

GROUP_CLAIMS = ("eduperson_entitlement", "entitlements", "groups", "wlcg.groups")
"""The claims in which EGI Check-in (the first two) and INDIGO IAM list the groups of a user."""

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class JwtRule(Rule):
    """Selects tokens that match all given patterns; ``*`` stands for anything."""

    group: Pattern | None = Field(
        default=None, description="A group as in the token: /cms, urn:mace:egi.eu:group:vo.example.org:*."
    )
    subject: Pattern | None = Field(default=None, description="The user or client (sub).")

    @model_validator(mode="after")
    def _has_a_pattern(self) -> "JwtRule":
        if self.group is None and self.subject is None:
            raise ValueError("give group or subject; subject '*' matches every token of this issuer")
        return self


class LoginSection(Section):
    """Login to the page through the issuer."""

    client_id: str = Field(min_length=1, description="This server's client id at the issuer.")
    client_secret: Secret | None = Field(
        default=None,
        description="The client's secret, best as a reference such as file:/path; a public client has none.",
    )
    scopes: tuple[str, ...] = Field(
        default=("openid", "profile"), description="The requested scopes; groups may need one of their own."
    )
    title: str | None = Field(
        default=None, min_length=1, description="The issuer's name on the page; default: its host name."
    )


class JwtConfig(InstanceConfig):
    """Access tokens of one issuer. Needs auditord[jwt]."""

    issuer: str = Field(min_length=1, description="The exact issuer (iss) of tokens.")
    audience: tuple[str, ...] = Field(
        min_length=1, description="Accepted audiences (aud) of tokens: names that only this server has."
    )
    jwks: str | None = Field(
        default=None,
        description="The issuer's keys: a URL or file:/path; default: the URL in its discovery document.",
    )
    ca: Path | None = Field(default=None, description="PEM file with the CA of the issuer's server.")
    group_claims: tuple[str, ...] = Field(default=GROUP_CLAIMS, description="The claims with groups.")
    user_claim: str | None = Field(
        default=None,
        min_length=1,
        description="The claim with the user's name in records, such as preferred_username, for roles with rows of "
        "self. Choose a claim that users cannot change.",
    )
    login: LoginSection | None = Field(
        default=None,
        description="Let people log in to the page through this issuer. Default: only accept its tokens.",
    )
    rules: tuple[JwtRule, ...] = Field(min_length=1, description="The roles of groups and subjects.")

    @field_validator("issuer", "jwks")
    @classmethod
    def _over_tls(cls, url: str | None) -> str | None:
        if url is None or (url.startswith("file:/") and Path(url.removeprefix("file:")).is_absolute()):
            return url
        return require_safe_url(url)

    @field_validator("issuer")
    @classmethod
    def _no_file(cls, issuer: str) -> str:
        if issuer.startswith("file:"):
            raise ValueError("the issuer must be the URL in its tokens")
        return issuer


def require_safe_url(url: str) -> str:
    """Return the URL if it is safe.

    Raises:
        ValueError: the URL is neither https nor on this host, so its content could be changed in transit.
    """
    parts = urlsplit(url)
    if parts.hostname and (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)):
        return url
    raise ValueError("write https://…: over plain http, the keys could be replaced on the way")
