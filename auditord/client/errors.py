"""The errors of clients; every text names the server and what happened."""

from auditord_hookspecs import AuditordError


class ClientError(AuditordError):
    """Root of every error of :mod:`auditord.client`."""


class UnsupportedQuery(ClientError):
    """The query cannot be said in the wire contract's grammar; nothing was sent."""


class ConnectionFailed(ClientError):
    """No complete answer came: refused, reset, cut, timed out, TLS.

    Args:
        text: what happened.
        sent: False if the server cannot have seen the request; True if it may have acted on it.
    """

    def __init__(self, text: str, *, sent: bool) -> None:
        super().__init__(text)
        self.sent = sent


class CutAnswer(ConnectionFailed):
    """A stream of records ended in the middle; the records before it are right, but they are not all."""

    def __init__(self, text: str) -> None:
        super().__init__(text, sent=True)


class InvalidAnswer(ClientError):
    """The answer is none that the wire contract knows: another program, a proxy's page, a damaged record."""


class AnsweredError(ClientError):
    """The server answered with an error status.

    Args:
        text: method, URL, status and the server's own words.
        status: the HTTP status.
    """

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class Refused(AnsweredError):
    """The server refuses the request (4xx): sent again unchanged, it would be refused again."""


class ServerFailed(AnsweredError):
    """The server could not do it at the moment (5xx)."""


class RecordExists(ClientError):
    """A record id is taken. AUDITOR does not say which one; nothing of this request was stored.

    Args:
        text: what happened.
        first: of a bulk, the place of the first record of the refused chunk among those given; all before are stored.
        stop: the place behind the chunk's last record; nothing from there on was sent.
    """

    def __init__(self, text: str, first: int = 0, stop: int = 1) -> None:
        super().__init__(text)
        self.first = first
        self.stop = stop


class UnknownRecord(ClientError):
    """There is no record with this id."""
