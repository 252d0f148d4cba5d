"""The options of a client, its errors, and the requests of the wire contract with the meaning of their answers.

Nothing here uses the network. The text of every error names the server and what happened.

AUDITOR writes JSON objects into a stream, without separators. White space and newlines between the objects are
accepted, as auditord or a proxy may write them; anything else is not.
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
    """Root of every error of :mod:`auditord.client`.

    Remedy:
        see the class that was raised; all of them have this root.
    """


class UnsupportedQuery(ClientError):
    """The query cannot be said in the wire contract's grammar; nothing was sent.

    Remedy:
        ask by /api/v1/records, or filter after the download.
    """


class ConnectionFailed(ClientError):
    """No complete answer came: refused, reset, cut, timed out, TLS.

    Args:
        text: what happened.
        sent: False if the server cannot have seen the request; True if it may have acted on it.

    Remedy:
        see whether the server runs, the URL, and TLS; a write may have arrived: send it again, records are not counted
        twice.
    """

    def __init__(self, text: str, *, sent: bool) -> None:
        super().__init__(text)
        self.sent = sent


class CutAnswer(ConnectionFailed):
    """A stream of records ended in the middle; the records before it are right, but they are not all.

    Remedy:
        ask again; the records received so far are incomplete.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text, sent=True)


class InvalidAnswer(ClientError):
    """The answer is none that the wire contract knows: another program, a proxy's page, a damaged record.

    Remedy:
        see the URL: is it an auditord or an AUDITOR, and no proxy in front of it?
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
    """The server refuses the request (4xx): sent again unchanged, it would be refused again.

    Remedy:
        read the text, which is the server's own: rights, an unknown path, a body that is no record.
    """


class ServerFailed(AnsweredError):
    """The server could not do it at the moment (5xx).

    Remedy:
        ask again later; the server's log has the reason.
    """


class RecordExists(ClientError):
    """A record id is taken. AUDITOR does not say which one; nothing of this request was stored.

    Args:
        text: what happened.
        first: of a bulk, the place of the first record of the refused chunk among those given; all before are stored.
        stop: the place behind the chunk's last record; nothing from there on was sent.

    Remedy:
        post the records one by one, or by /api/v1/records, which answers for each.
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
"""More than the largest body that auditord takes: larger is no record."""

_PASSING: Final = frozenset(
    {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
)
_LONGEST_EXCHANGE: Final = 4
"""Time limits that a whole answer may take; sending a body has no limit of its own in aiohttp."""


class Tls(msgspec.Struct, frozen=True):
    """The TLS files of a client.

    Args:
        ca: PEM file, or folder with hashed names, of the authorities that may vouch for the server; None: the system's.
        certificate: PEM file of our own certificate (with its chain), for a server that asks for one.
        key: PEM file of its private key; None: it is in the certificate's file.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


def tls_context(files: TlsPaths) -> ssl.SSLContext:
    """Return the settings of TLS connections; the files are read now.

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
        url: ``http://host:port`` or ``https://…``; a path in front of the routes may follow.
        tls: for ``https``.
        token: sent as ``Authorization: Bearer …``.
        timeout: seconds without progress (connecting, sending, waiting for the next bytes) after which it is a fault;
            an answer that keeps coming may take as long as it likes.
        retry_waits: seconds before each further attempt at what may safely be repeated; empty: none.
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
    """The part that all clients have: the server.

    Args:
        url: ``http://host:port`` or ``https://host:port``.
        tls: how the server is trusted and what we show it.
        token: sent as ``Authorization: Bearer …``.
        timeout: seconds without progress after which a request has failed.
        retry_waits: seconds before each further attempt.

    Raises:
        ClientError: it is no URL, or a file of ``tls`` cannot be used.
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
            tls_context(self._server.tls)  # or a missing file would show at the first call


T = TypeVar("T")

# Where one object ends and another begins. In one object, braces never meet like this: in a list a comma is between
# them, and in a text the quote would have to end the text, after which no member's name can follow.
_BETWEEN: Final = re.compile(rb'\}[ \t\r\n]*(?=\{[ \t\r\n]*"[^ \t\r\n,:}\]])')
# The same at the very end: of the next object, nothing has come but its brace.
_CUT_OFF: Final = re.compile(rb'\}[ \t\r\n]*(?=\{[ \t\r\n]*"?\Z)')


class Framer(Generic[T]):
    """Splits a stream into objects, independent of the boundaries of its pieces. Buffers only the incomplete object.

    Args:
        source: the server, for messages.
        decode: converts the text of an object into the wanted type; raises InvalidRecord with msgspec's words.
        max_object_bytes: how large an object may be.
    """

    def __init__(self, source: str, decode: Callable[[bytes], T], max_object_bytes: int = MAX_OBJECT_BYTES) -> None:
        self._source = source
        self._decode = decode
        self._max_object_bytes = max_object_bytes
        self._rest = bytearray()
        self._searched = 0
        self._records = 0

    def feed(self, piece: bytes) -> Iterator[T]:
        """Yield the objects that are complete; consume all of them before the next chunk.

        Raises:
            InvalidAnswer: the stream holds something other than a record.
        """
        self._rest += piece
        begin = 0
        for match in _BETWEEN.finditer(self._rest, self._searched):
            yield self._record(bytes(self._rest[begin : match.end()]))
            begin = match.end()
        self._keep_from(begin)

    def _keep_from(self, begin: int) -> None:
        self._rest = self._rest[begin:]
        # Any further object begins at the last brace or behind it.
        self._searched = max(self._rest.rfind(b"}"), self._searched - begin, 0)
        if len(self._rest) > self._max_object_bytes:
            raise InvalidAnswer(f"{self._source} sends an object of more than {self._max_object_bytes} bytes")

    def finish(self) -> Iterator[T]:
        """Yield the last object, at the end of the stream.

        Raises:
            CutAnswer: it is not complete.
            InvalidAnswer: it is none.
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
            raise InvalidAnswer(f"{self._source} sent something that is no record, {after}: {error}") from error
        self._records += 1
        return record


class RecordFramer(Framer[Record]):
    """Cuts a stream into records."""

    def __init__(self, source: str, max_object_bytes: int = MAX_OBJECT_BYTES) -> None:
        super().__init__(source, decode_record, max_object_bytes)


class TextFramer(Framer[bytes]):
    """Cuts a stream into the texts of its objects, whether they are valid records or not."""

    def __init__(self, source: str, max_object_bytes: int = MAX_OBJECT_BYTES) -> None:
        super().__init__(source, _as_text, max_object_bytes)


def _as_text(text: bytes) -> bytes:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        raise InvalidRecord(str(error)) from error
    return text


MAX_BODY_BYTES: Final = 2_000_000
"""AUDITOR refuses bodies above 2 MiB (2,097,152 bytes), bulk inserts as well."""

ENDLESS: Final = "the answer does not say where it ends, so that a cut would not show"

_RECORD_EXISTS: Final = b"RECORD_EXISTS"


class Chunk(msgspec.Struct, frozen=True):
    """Some records of a bulk, as one body.

    Args:
        first: the place of the first one.
        stop: the place behind the last one.
        body: a JSON array.
    """

    first: int
    stop: int
    body: bytes


def chunks(records: Iterable[Record], max_bytes: int) -> Iterator[Chunk]:
    """Split the records into bodies of at most ``max_bytes``; a larger record makes a body of its own."""
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
    """Return the body of ``PUT /record``; the other required members are empty, and ignored."""
    body: dict[str, object] = {
        "record_id": record_id,
        "meta": None,
        "components": [],
        "start_time": format_time(stop_time),
        "stop_time": format_time(stop_time),
    }
    return msgspec.json.encode(body)


def check_added(answer: HttpAnswer) -> None:
    """Return if the records are stored; the released clients look at the body alone, we look at status and body.

    Raises:
        RecordExists: an id is taken. Also if the server calls that success with a warning: AUDITOR's option
            ``ignore_record_exists_error`` does so and drops the whole bulk.
        AnsweredError: the status says so.
        InvalidAnswer: something else has answered.
    """
    warning = answer.body.lstrip().startswith(b"{") and b'"warning"' in answer.body
    if answer.body == _RECORD_EXISTS or (answer.status == HTTPStatus.OK and warning):
        raise RecordExists(f"{answer.request}: the record exists already ({answer.text})")
    _check_empty(answer)


def check_chunk_added(answer: HttpAnswer, chunk: Chunk) -> None:
    """Return if all records of a chunk are stored.

    Raises:
        ClientError: as :func:`check_added`; a :class:`RecordExists` names the chunk.
    """
    try:
        check_added(answer)
    except RecordExists as error:
        text = f"{error} among the records {chunk.first} to {chunk.stop - 1}; none of them is stored"
        raise RecordExists(text, chunk.first, chunk.stop) from None


def check_stopped(answer: HttpAnswer) -> None:
    """Return if the stop time is set.

    Raises:
        UnknownRecord: there is no such record.
        AnsweredError: the status says so.
        InvalidAnswer: something else has answered.
    """
    if answer.status == HTTPStatus.NOT_FOUND:
        raise UnknownRecord(f"{answer.request}: {answer.text}")
    _check_empty(answer)


def _check_empty(answer: HttpAnswer) -> None:
    check_status(answer)
    if answer.body.strip():
        raise InvalidAnswer(f"{answer.request} was answered {answer.status} with {answer.text}: is it AUDITOR?")


def read_record(answer: HttpAnswer) -> Record | None:
    """Parse a record, or return None for an unknown id (the server then answers ``null``).

    Raises:
        AnsweredError: the status says so. AUDITOR says 500 for a record that is not there, too.
        InvalidAnswer: it is no record.
    """
    if answer.status == HTTPStatus.NOT_FOUND:
        return None
    check_status(answer)
    if answer.body.strip() == b"null":
        return None
    try:
        return decode_record(answer.body)
    except InvalidRecord as error:
        raise InvalidAnswer(f"{answer.request} was answered with no record: {error}") from error


def check_status(answer: HttpAnswer) -> None:
    """Return if the status is 2xx.

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
