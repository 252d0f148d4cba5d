"""Client certificates: the names of their owners, and the times at which they expire."""

from datetime import datetime
from functools import lru_cache
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from auditord_hookspecs import Certificate

_MAIL_NAMES: Final = {NameOID.EMAIL_ADDRESS: "emailAddress"}


@lru_cache(maxsize=256)  # a connection presents the same certificate in thousands of requests
def certificate_of(der: bytes) -> Certificate:
    """Return the names in a certificate.

    Raises:
        ValueError: the certificate cannot be read.
    """
    certificate = x509.load_der_x509_certificate(der)
    subject = certificate.subject
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    grid_subject = ""  # as grid tools write it; a slash that could start another part (``x/CN=admin``) is escaped
    for each in subject:
        value = str(each.value)
        escaped = value.replace("/", "\\/") if "=" in value else value
        grid_subject += f"/{_MAIL_NAMES.get(each.oid, each.rfc4514_attribute_name)}={escaped}"
    kinds = (x509.DNSName, x509.RFC822Name, x509.UniformResourceIdentifier)
    try:
        others = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        others = x509.SubjectAlternativeName([])
    return Certificate(
        common_names=tuple(str(name.value) for name in names),
        subject=subject.rfc4514_string(_MAIL_NAMES),
        grid_subject=grid_subject,
        alternative_names=tuple(name for kind in kinds for name in others.get_values_for_type(kind)),
    )


@lru_cache(maxsize=256)
def end_of(der: bytes) -> datetime:
    """Return when a certificate expires."""
    return x509.load_der_x509_certificate(der).not_valid_after_utc
