"""Whether others than this host's own users could reach the API, and nothing would stop them."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from auditord.config.documents import Document
from auditord.config.faults import fault
from auditord.config.listen import TcpListen, UnixListen, written
from auditord.config.model import Configuration

_REFUSAL: Final = """\
'{address}' is reachable from other hosts, and there is neither TLS nor a login: whoever is there could read and write \
records. In the section api, one of these two lines mends it or allows it:
    listen: ["{loopback}"]
    allow_insecure: true"""

_BESIDE: Final = """\
'{address}' is plain beside '{secure}' with TLS: whoever is refused there would come in here. In the section api, one \
of these two lines mends it or allows it:
    listen: [{others}]
    allow_insecure: true"""


def exposures(configuration: Configuration, document: Document) -> Iterator[str]:
    """One fault for the first address that lacks TLS, unless the configuration allows it in so many words."""
    api = configuration.api
    if api.enabled and not api.allow_insecure:
        texts = [*_beyond_this_host(api.listen), *_beside_tls(api.listen)]
        yield from (fault(document, ("api", "listen"), text) for text in texts[:1])


def _beyond_this_host(listen: Sequence[TcpListen | UnixListen]) -> Iterator[str]:
    for each in listen:
        if isinstance(each, TcpListen) and not each.is_loopback and each.tls is None:
            yield _REFUSAL.format(address=each, loopback=TcpListen("127.0.0.1", each.port))


def _beside_tls(listen: Sequence[TcpListen | UnixListen]) -> Iterator[str]:
    secure = next((each for each in listen if isinstance(each, TcpListen) and each.tls is not None), None)
    for each in listen:
        if isinstance(each, TcpListen) and each.tls is None and secure is not None:
            others = ", ".join(msgspec.json.encode(written(other)).decode() for other in listen if other != each)
            yield _BESIDE.format(address=each, secure=secure, others=others)
