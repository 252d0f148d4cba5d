"""The host certificate, and its S/MIME signatures (RFC 8551) as APEL's receivers read them.

Signatures are detached, SHA-256, in ASCII, never opaque. A receiver decodes the signed text as ASCII, takes any text
with ``application/pkcs7-mime`` in it for encrypted, and needs a blank line between the header of the signed part and
the message. Where a message is not ASCII, the signed part is quoted-printable in UTF-8, which receivers decode (they
fail on base64).
"""

import quopri
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.hazmat.primitives.serialization.pkcs7 import PKCS7Options, PKCS7SignatureBuilder

from auditord_hookspecs import AuditordError
from auditord_hookspecs.wording import counted

SigningKey: TypeAlias = RSAPrivateKey | EllipticCurvePrivateKey

SOON: Final = timedelta(days=14)
"""Less than this left is worth a warning at each run: getting a host certificate takes days."""

_SHORT_NAMES: Final = {"0.9.2342.19200300.100.1.1": "UID", "1.2.840.113549.1.9.1": "emailAddress"}

_QUOTED_PART: Final = b"Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: quoted-printable\n\n"
_LOOKS_ENCRYPTED: Final = b"pkcs7-mime"


class CertificateUnusable(AuditordError):
    """The certificate or its key cannot be used now; the text names the files and what is wrong.

    Remedy:
        mend or renew the named file, and let the service's user read it.
    """


@dataclass(frozen=True, slots=True)
class Credentials:
    """A certificate, the chain behind it in the same file, and its key; the file is for messages."""

    file: Path
    certificate: x509.Certificate
    chain: Sequence[x509.Certificate]
    key: SigningKey = field(repr=False)

    @property
    def subject(self) -> str:
        """The name as GOCDB has it under *Host DN*: ``/DC=org/O=Example/CN=host.example.org``."""
        parts = list(self.certificate.subject)
        names = [_SHORT_NAMES.get(part.oid.dotted_string, part.rfc4514_attribute_name) for part in parts]
        values = zip(names, parts, strict=True)
        return "".join(f"/{name}={part.value!s}" for name, part in values)

    @property
    def expires(self) -> datetime:
        """The end of the certificate's validity (aware)."""
        return self.certificate.not_valid_after_utc

    def check(self, now: datetime) -> str | None:
        """A warning if the certificate ends soon.

        Raises:
            CertificateUnusable: it has expired, or is not valid yet.
        """
        if now >= self.expires:
            raise CertificateUnusable(
                f"{self.file}: the certificate {self.subject} expired on {_day(self.expires)}: put a new one there"
            )
        if now < self.certificate.not_valid_before_utc:
            begins = _day(self.certificate.not_valid_before_utc)
            raise CertificateUnusable(
                f"{self.file}: the certificate {self.subject} is not valid before {begins}: is the clock right?"
            )
        if self.expires - now > SOON:
            return None
        days = counted((self.expires - now).days, "day")
        return f"{self.file}: the certificate {self.subject} expires on {_day(self.expires)}, in {days}: renew it"


def load_credentials(certificate: Path, key: Path) -> Credentials:
    """Read a certificate (PEM, its chain may follow) and its unencrypted private key (PEM).

    Raises:
        CertificateUnusable: a file cannot be read or used, or they do not belong together.
    """
    own, *chain = _certificates(certificate)
    private = _private_key(key)
    if _public_bytes(own) != _public_bytes(private):
        raise CertificateUnusable(f"{key} is not the key of the certificate in {certificate}")
    return Credentials(certificate, own, chain, private)


def sign(text: str, credentials: Credentials) -> bytes:
    """The message as ``multipart/signed``, in ASCII."""
    plain = text.isascii() and _LOOKS_ENCRYPTED.decode() not in text
    quoted = quopri.encodestring(text.encode()).replace(_LOOKS_ENCRYPTED, b"pkcs7=2Dmime")
    data = text.encode() if plain else _QUOTED_PART + quoted
    options = [PKCS7Options.DetachedSignature, *([PKCS7Options.Text] if plain else [])]
    builder = PKCS7SignatureBuilder().set_data(data)
    builder = builder.add_signer(credentials.certificate, credentials.key, SHA256())
    for certificate in credentials.chain:
        builder = builder.add_certificate(certificate)
    return builder.sign(Encoding.SMIME, options)


def _certificates(file: Path) -> list[x509.Certificate]:
    data = _read(file)
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError as error:
        raise CertificateUnusable(f"{file}: no certificate in PEM form: {error}") from error


def _private_key(file: Path) -> SigningKey:
    data = _read(file)
    try:
        with warnings.catch_warnings(action="ignore"):  # about old algorithms, the authority decides about those
            key = load_pem_private_key(data, password=None)
    except TypeError as error:
        raise CertificateUnusable(
            f"{file}: the key is encrypted, and a daemon cannot ask for its passphrase: store it without one, "
            "readable by the service's user alone"
        ) from error
    except ValueError as error:
        raise CertificateUnusable(f"{file}: no private key in PEM form: {error}") from error
    if not isinstance(key, RSAPrivateKey | EllipticCurvePrivateKey):
        raise CertificateUnusable(f"{file}: messages are signed with RSA or elliptic-curve keys, not with this kind")
    return key


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CertificateUnusable(f"{file}: cannot be read: {error.strerror}") from error


def _public_bytes(owner: x509.Certificate | SigningKey) -> bytes:
    return owner.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
