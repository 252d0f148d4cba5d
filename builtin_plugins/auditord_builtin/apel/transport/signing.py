"""S/MIME (RFC 8551) as APEL's receivers read it: detached, SHA-256, ASCII only, never opaque.

A receiver decodes the signed text as ASCII, takes any text with ``application/pkcs7-mime`` in it for encrypted, and
needs a blank line between the header of the signed part and the message. Where a message is not ASCII, the signed part
is quoted-printable in UTF-8, which receivers decode (they fail on base64).
"""

import quopri
from typing import Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.hazmat.primitives.serialization.pkcs7 import PKCS7Options, PKCS7SignatureBuilder

from auditord_builtin.apel.transport.credentials import Credentials

_QUOTED_PART: Final = b"Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: quoted-printable\n\n"
_LOOKS_ENCRYPTED: Final = b"pkcs7-mime"


def sign(text: str, credentials: Credentials) -> bytes:
    """The message as ``multipart/signed``, in ASCII."""
    plain = text.isascii() and _LOOKS_ENCRYPTED.decode() not in text
    data = text.encode() if plain else _QUOTED_PART + _quoted(text)
    options = [PKCS7Options.DetachedSignature, *([PKCS7Options.Text] if plain else [])]
    builder = PKCS7SignatureBuilder().set_data(data)
    builder = builder.add_signer(credentials.certificate, credentials.key, SHA256())
    for certificate in credentials.chain:
        builder = builder.add_certificate(certificate)
    return builder.sign(Encoding.SMIME, options)


def _quoted(text: str) -> bytes:
    return quopri.encodestring(text.encode()).replace(_LOOKS_ENCRYPTED, b"pkcs7=2Dmime")
