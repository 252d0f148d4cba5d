"""A certificate authority of the tests, and host certificates as grid sites have them."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

Key: TypeAlias = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey

ORGANISATION: Final = (
    (NameOID.DOMAIN_COMPONENT, "org"),
    (NameOID.DOMAIN_COMPONENT, "example"),
    (NameOID.ORGANIZATION_NAME, "Jörg's Institute"),
)

_SIGNS: Final = x509.KeyUsage(
    key_cert_sign=True, crl_sign=True, digital_signature=False, content_commitment=False, key_encipherment=False,
    data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
)  # fmt: skip


@dataclass(frozen=True)
class HostFiles:
    """The files of a certificate and its key, in PEM form."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates.

    Args:
        folder: where files are written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("Example CA")
        self.file = folder / "authority.pem"
        years = timedelta(days=3650)
        now = datetime.now(UTC)
        builder = _builder(self._name, self._name, self._key, (now - years, now + years))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        # Python 3.13 asks for what follows (RFC 5280), and for the authority's identifier in what it signs.
        builder = builder.add_extension(_SIGNS, critical=True)
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        builder = builder.add_extension(identifier, critical=False)
        self.file.write_bytes(builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM))

    def issue(
        self,
        name: str,
        *,
        valid: tuple[datetime, datetime] | None = None,
        old_style_key: bool = True,
        passphrase: bytes | None = None,
    ) -> HostFiles:
        """A certificate for a host, also called ``localhost`` and 127.0.0.1; by default valid for 300 days."""
        key: Key = rsa.generate_private_key(65537, 2048) if old_style_key else ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        builder = _builder(_name(name), self._name, key, valid or (now - timedelta(days=65), now + timedelta(days=300)))
        names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(signer, critical=False)
        files = HostFiles(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        files.certificate.write_bytes(builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM))
        protection = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
        files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection))
        return files


def _name(common: str) -> x509.Name:
    parts = (*ORGANISATION, (NameOID.COMMON_NAME, common))
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in parts])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Key, valid: tuple[datetime, datetime]
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(valid[0])
        .not_valid_after(valid[1])
    )
