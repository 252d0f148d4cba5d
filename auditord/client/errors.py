"""The errors of clients; every text names the server and what happened."""

from auditord_hookspecs import AuditordError


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
