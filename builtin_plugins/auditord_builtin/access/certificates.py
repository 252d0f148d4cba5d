"""Authenticator ``certificates``: the certificate with which a client opened its TLS connection."""

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Literal

from pydantic import Field, model_validator

from auditord_builtin.access.rules import Pattern, Rule, fits, identified, named_roles
from auditord_hookspecs import InstanceConfig, access


class CertificateRule(Rule):
    """Certificates that fit everything that is said; ``*`` stands for anything."""

    common_name: Pattern | None = Field(default=None, description="A common name (CN) of the subject.")
    subject: Pattern | None = Field(
        default=None, description="The whole subject: CN=x,O=y as in RFC 4514, or /O=y/CN=x as grid tools write it."
    )
    alternative_name: Pattern | None = Field(
        default=None, description="A DNS name, mail address or URI among the alternative names."
    )

    @model_validator(mode="after")
    def _says_something(self) -> "CertificateRule":
        if self.common_name is None and self.subject is None and self.alternative_name is None:
            raise ValueError("say common_name, subject or alternative_name; '*' is everybody with a certificate")
        return self

    def fits(self, certificate: access.Certificate) -> bool:
        """True if it is about this certificate."""
        return (
            fits(self.common_name, *certificate.common_names)
            and fits(self.subject, certificate.subject, certificate.grid_subject)
            and fits(self.alternative_name, *certificate.alternative_names)
        )


class CertificatesConfig(InstanceConfig):
    """Client certificates, which a listener with TLS must ask for."""

    rules: tuple[CertificateRule, ...] = Field(min_length=1, description="Whose certificate gets which roles.")
    user: Literal["common_name", "subject", "grid_subject"] | None = Field(
        default=None,
        description="What the records have as the name of the certificate's user, for roles with rows of self: the "
        "only common_name, the subject as in RFC 4514, or the grid_subject.",
    )

    def user_of(self, certificate: access.Certificate) -> str | None:
        """The user's name in the records; of several common names, none can be told from the others."""
        match self.user:
            case None:
                return None
            case "common_name":
                return certificate.common_names[0] if len(certificate.common_names) == 1 else None
            case "subject":
                return certificate.subject
            case "grid_subject":
                return certificate.grid_subject


def open_certificates(
    config: CertificatesConfig, context: access.AuthenticatorContext
) -> AbstractAsyncContextManager[access.Authenticate]:
    """Nothing is opened: TLS has proved that the certificate is the client's and which authority signed it."""
    del context

    async def authenticate(credentials: access.Credentials) -> access.Identity | None:
        certificate = credentials.certificate
        if certificate is None:
            return None
        fitting = [rule for rule in config.rules if rule.fits(certificate)]
        return identified(certificate.subject, fitting, config.user_of(certificate))

    return nullcontext(authenticate)


KIND = access.AuthenticatorKind(
    name="certificates",
    config=CertificatesConfig,
    open=open_certificates,
    roles=lambda config: named_roles(config.rules),
    names_users=lambda config: config.user is not None,
)
