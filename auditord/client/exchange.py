"""The options and errors of clients, the requests of the wire contract, and the checks of its answers.

Nothing here uses the network. The message of every error names the server and says what happened.

AUDITOR streams JSON objects without separators. White space and newlines between the objects are accepted, since
auditord or a proxy may write them; anything else is refused.
"""

import re
import ssl
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Final, Generic, TypeVar
from urllib.parse import urlsplit

import msgspec

from auditord_hookspecs import AuditordError, HttpAnswer, InvalidRecord, Record
from auditord_hookspecs.http import HttpOptions, TlsPaths
from auditord_hookspecs.wire import decode_record, encode_record, format_time
from auditord_hookspecs.wording import counted


class ClientError(AuditordError):
    """Base class of all errors of :mod:`auditord.client`.

    Remedy:
        see the class that was raised, which is derived from this one.
    """


class UnsupportedQuery(ClientError):
    """The wire contract's grammar cannot express the query. Nothing was sent.

    Remedy:
        query /api/v1/records, or filter the records after the download.
    """


class ConnectionFailed(ClientError):
    """No complete answer arrived: the connection was refused, reset, cut or timed out, or TLS failed.

    Args:
        text: what happened.
        sent: False if the server cannot have seen the request; True if it may have acted on it.

    Remedy:
        check the server, the URL and TLS. A write may have arrived: send it again, since no record is counted twice.
    """

    def __init__(self, text: str, *, sent: bool) -> None:
        super().__init__(text)
        self.sent = sent


class CutAnswer(ConnectionFailed):
    """A stream of records was cut off. The records received so far are valid, but not all of them.

    Remedy:
        repeat the query; the records received so far are incomplete.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text, sent=True)


class InvalidAnswer(ClientError):
    """The answer does not follow the wire contract: another program, a proxy's page, or a damaged record.

    Remedy:
        check that the URL leads to an auditord or an AUDITOR, and not to a proxy in front of it.
    """


class AnsweredError(ClientError):
    """The server answered with an error status.

    Args:
        text: method, URL, status and the server's own words.
        status: the HTTP status.

    Remedy:
        see Refused (4xx) and ServerFailed (5xx).
    """

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class Refused(AnsweredError):
    """The server refuses the request (4xx). The same request would be refused again.

    Remedy:
        read the message, which is the server's own: a missing permission, an unknown path, or an invalid record.
    """


class ServerFailed(AnsweredError):
    """The server could not carry out the request at the moment (5xx).

    Remedy:
        try again later; the server's log has the reason.
    """


class RecordExists(ClientError):
    """A record id is taken; AUDITOR does not say which one. Nothing of this request was stored.

    Args:
        text: what happened.
        first: for a bulk insert, the index of the refused chunk's first record; all records before it are stored.
        stop: the index after the chunk's last record; nothing from there on was sent.

    Remedy:
        post the records one by one, or to /api/v1/records, which answers for each record.
    """

    def __init__(self, text: str, first: int = 0, stop: int = 1) -> None:
        super().__init__(text)
        self.first = first
        self.stop = stop


class UnknownRecord(ClientError):
    """There is no record with this id.

    Remedy:
        check the id; `auditord records` lists the stored records.
    """


TIMEOUT_SECONDS: Final = 30.0
RETRY_WAITS: Final = (0.2, 1.0, 3.0)
MAX_OBJECT_BYTES: Final = 64 << 20
"""The size above which an object cannot be a record: more than the largest body that auditord accepts."""

_PASSING: Final = frozenset(
    {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
)
_LONGEST_EXCHANGE: Final = 4
"""The time limit of a whole exchange, in multiples of ``timeout``. aiohttp has no limit for sending a body."""


class Tls(msgspec.Struct, frozen=True):
    """The TLS files of a client.

    Args:
        ca: PEM file, or folder with hashed names, of the certificate authorities to trust; None for the system's.
        certificate: PEM file of our own certificate (with its chain), for a server that asks for one.
        key: PEM file of its private key; None if the certificate's file contains the key.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


def tls_context(files: TlsPaths) -> ssl.SSLContext:
    """Read the TLS files and return an SSL context for connections.

    Raises:
        ClientError: a file cannot be read or used.
    """
    try:
        folder = files.ca is not None and Path(files.ca).is_dir()
        context = ssl.create_default_context(cafile=None if folder else files.ca, capath=files.ca if folder else None)
        if files.certificate is not None:
            context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except (OSError, ssl.SSLError) as error:
        named = ", ".join(str(file) for file in (files.ca, files.certificate, files.key) if file)
        raise ClientError(f"cannot use the TLS files {named}: {error}") from error
    return context


def _no_password() -> str:
    raise ssl.SSLError("the private key is encrypted: a daemon cannot ask for its passphrase: use a key without one")


@dataclass(frozen=True, slots=True)
class Server:
    """A server, and the options of a client that talks to it.

    Args:
        url: ``http://host:port`` or ``https://…``, optionally with a path as the prefix of all routes.
        tls: for ``https``.
        token: sent as ``Authorization: Bearer …``.
        timeout: seconds without progress (connecting, sending, waiting for the next bytes) after which a request fails.
            A stream that keeps coming has no time limit; other answers may take four times this.
        retry_waits: seconds before each retry of a request that is safe to repeat; empty for no retries.
    """

    url: str
    tls: TlsPaths = field(default_factory=Tls)
    token: str | None = field(default=None, repr=False)
    timeout: float = TIMEOUT_SECONDS
    retry_waits: tuple[float, ...] = RETRY_WAITS

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ClientError(f"{self.url!r} is no URL of a server: write http://host:port or https://host:port")
        if parts.username is not None:
            raise ClientError("a URL with a user name or password is not supported: give a token")
        object.__setattr__(self, "url", self.url.rstrip("/"))

    @property
    def options(self) -> HttpOptions:
        """The options of the HTTP client."""
        silence = timedelta(seconds=self.timeout)
        return HttpOptions(
            tls=self.tls,
            headers={} if self.token is None else {"Authorization": f"Bearer {self.token}"},
            timeout=_LONGEST_EXCHANGE * silence,
            silence=silence,
            connections=100,
            max_answer=MAX_OBJECT_BYTES,
            attempts=len(self.retry_waits) + 1,
            retry_for=timedelta.max,
            waits=self.retry_waits,
            retried=_PASSING,
        )


class BaseClient:
    """The common part of the clients: the server.

    Args:
        url: ``http://host:port`` or ``https://host:port``.
        tls: the authorities to trust, and our own certificate.
        token: sent as ``Authorization: Bearer …``.
        timeout: seconds without progress after which a request fails.
        retry_waits: seconds before each retry.

    Raises:
        ClientError: the URL is invalid, or a file of ``tls`` cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        tls: TlsPaths | None = None,
        token: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        retry_waits: tuple[float, ...] = RETRY_WAITS,
    ) -> None:
        self._server = Server(url, tls or Tls(), token, timeout, retry_waits)
        if self._server.url.startswith("https:"):
            tls_context(self._server.tls)  # a missing file raises now, not at the first call


T = TypeVar("T")

# The boundary of two objects. Braces never meet like this within an object: in a list, a comma separates them, and in a
# string, the quote would have to end the string, after which no member's name can follow.
_BETWEEN: Final = re.compile(rb'\}[ \t\r\n]*(?=\{[ \t\r\n]*"[^ \t\r\n,:}\]])')
# The same boundary at the end of a stream that was cut after the brace (and quote) of the next object.
_CUT_OFF: Final = re.compile(rb'\}[ \t\r\n]*(?=\{[ \t\r\n]*"?\Z)')


class Framer(Generic[T]):
    """Splits a stream into objects, independent of the boundaries of its pieces. Buffers only the incomplete object.

    Args:
        source: the server, for messages.
        decode: converts the text of an object; raises InvalidRecord with msgspec's message.
        max_object_bytes: the maximum size of an object.
    """

    def __init__(self, source: str, decode: Callable[[bytes], T], max_object_bytes: int = MAX_OBJECT_BYTES) -> None:
        self._source = source
        self._decode = decode
        self._max_object_bytes = max_object_bytes
        self._rest = bytearray()
        self._searched = 0
        self._records = 0

    def feed(self, piece: bytes) -> Iterator[T]:
        """Yield the complete objects. Consume all of them before feeding the next piece.

        Raises:
            InvalidAnswer: the stream contains something other than a record.
        """
        self._rest += piece
        begin = 0
        for match in _BETWEEN.finditer(self._rest, self._searched):
            yield self._record(bytes(self._rest[begin : match.end()]))
            begin = match.end()
        self._rest = self._rest[begin:]
        # The next object begins at the last brace or after it.
        self._searched = max(self._rest.rfind(b"}"), self._searched - begin, 0)
        if len(self._rest) > self._max_object_bytes:
            raise InvalidAnswer(f"{self._source} sends an object of more than {self._max_object_bytes} bytes")

    def finish(self) -> Iterator[T]:
        """Yield the last object, at the end of the stream.

        Raises:
            CutAnswer: the object is incomplete.
            InvalidAnswer: the rest is not an object.
        """
        rest = bytes(self._rest).strip()
        self._rest.clear()
        if match := _CUT_OFF.search(rest):
            yield self._record(rest[: match.end()])
            rest = rest[match.end() :]
        if rest:
            yield self._record(rest)

    def _record(self, text: bytes) -> T:
        try:
            record = self._decode(text)
        except InvalidRecord as error:
            after = f"after {counted(self._records, 'record')}"
            if "truncated" in str(error):  # msgspec's word for an end within a value
                raise CutAnswer(f"the answer of {self._source} ended within a record, {after}: ask again") from error
            raise InvalidAnswer(f"{self._source} sent something that is not a record, {after}: {error}") from error
        self._records += 1
        return record


class RecordFramer(Framer[Record]):
    """Splits a stream into records."""

    def __init__(self, source: str, max_object_bytes: int = MAX_OBJECT_BYTES) -> None:
        super().__init__(source, decode_record, max_object_bytes)


class TextFramer(Framer[bytes]):
    """Splits a stream into the texts of its objects, which need not be valid records."""

    def __init__(self, source: str, max_object_bytes: int = MAX_OBJECT_BYTES) -> None:
        super().__init__(source, _as_text, max_object_bytes)


def _as_text(text: bytes) -> bytes:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        raise InvalidRecord(str(error)) from error
    return text


MAX_BODY_BYTES: Final = 2_000_000
"""AUDITOR refuses bodies above 2 MiB (2,097,152 bytes), also for bulk inserts."""

ENDLESS: Final = "the answer does not say where it ends, so a truncated answer could not be detected"

_RECORD_EXISTS: Final = b"RECORD_EXISTS"


class Chunk(msgspec.Struct, frozen=True):
    """A part of a bulk insert.

    Args:
        first: the index of its first record.
        stop: the index after its last record.
        body: the records as a JSON array.
    """

    first: int
    stop: int
    body: bytes


def chunks(records: Iterable[Record], max_bytes: int) -> Iterator[Chunk]:
    """Split the records into bodies of at most ``max_bytes``; a larger record gets its own body."""
    texts: list[bytes] = []
    first = size = 0
    for record in records:
        text = encode_record(record)
        if texts and size + len(text) + 2 > max_bytes:
            yield _chunk(first, texts)
            first, size, texts = first + len(texts), 0, []
        texts.append(text)
        size += len(text) + 1  # with its comma
    if texts:
        yield _chunk(first, texts)


def _chunk(first: int, texts: list[bytes]) -> Chunk:
    return Chunk(first, first + len(texts), b"[" + b",".join(texts) + b"]")


def stop_update(record_id: str, stop_time: datetime) -> bytes:
    """Return the body of ``PUT /record``. Its other required members are ignored by the server."""
    body: dict[str, object] = {
        "record_id": record_id,
        "meta": None,
        "components": [],
        "start_time": format_time(stop_time),
        "stop_time": format_time(stop_time),
    }
    return msgspec.json.encode(body)


def check_added(answer: HttpAnswer) -> None:
    """Raise unless the records are stored. AUDITOR's released clients check only the body, we also check the status.

    Raises:
        RecordExists: an id is taken. Also if the server reports success with a warning: AUDITOR does so with the option
            ``ignore_record_exists_error``, and drops the whole bulk.
        AnsweredError: the status is an error.
        InvalidAnswer: another program answered.
    """
    warning = answer.body.lstrip().startswith(b"{") and b'"warning"' in answer.body
    if answer.body == _RECORD_EXISTS or (answer.status == HTTPStatus.OK and warning):
        raise RecordExists(f"{answer.request}: the record exists already ({answer.text})")
    _check_empty(answer)


def check_chunk_added(answer: HttpAnswer, chunk: Chunk) -> None:
    """Raise unless all records of a chunk are stored.

    Raises:
        ClientError: as :func:`check_added`; a :class:`RecordExists` names the chunk.
    """
    try:
        check_added(answer)
    except RecordExists as error:
        text = f"{error} among the records {chunk.first} to {chunk.stop - 1}; none of them is stored"
        raise RecordExists(text, chunk.first, chunk.stop) from None


def check_stopped(answer: HttpAnswer) -> None:
    """Raise unless the stop time is set.

    Raises:
        UnknownRecord: there is no such record.
        AnsweredError: the status is an error.
        InvalidAnswer: another program answered.
    """
    if answer.status == HTTPStatus.NOT_FOUND:
        raise UnknownRecord(f"{answer.request}: {answer.text}")
    _check_empty(answer)


def _check_empty(answer: HttpAnswer) -> None:
    check_status(answer)
    if answer.body.strip():
        raise InvalidAnswer(
            f"{answer.request} was answered {answer.status} with {answer.text}: is the server an AUDITOR?"
        )


def read_record(answer: HttpAnswer) -> Record | None:
    """Parse a record, or return None for an unknown id (the server then answers ``null``).

    Raises:
        AnsweredError: the status is an error. AUDITOR also answers 500 for a missing record.
        InvalidAnswer: the body is not a record.
    """
    if answer.status == HTTPStatus.NOT_FOUND:
        return None
    check_status(answer)
    if answer.body.strip() == b"null":
        return None
    try:
        return decode_record(answer.body)
    except InvalidRecord as error:
        raise InvalidAnswer(f"{answer.request} was answered without a record: {error}") from error


def check_status(answer: HttpAnswer) -> None:
    """Raise unless the status is 2xx.

    Raises:
        Refused: 4xx.
        ServerFailed: 5xx.
        InvalidAnswer: anything else; redirects are not followed, since a POST would become a GET.
    """
    if HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
        return
    text = f"{answer.request} was answered {answer.status} {answer.text}".rstrip()
    if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise ServerFailed(text, answer.status)
    if answer.status >= HTTPStatus.BAD_REQUEST:
        raise Refused(text, answer.status)
    raise InvalidAnswer(f"{text}; redirects are not followed: use the server's own URL")
