"""Addresses that other hosts can reach although nothing would stop them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from auditord.config.documents import Document
from auditord.config.faults import fault
from auditord.config.listen import TcpListen, UnixListen, written
from auditord.config.model import Configuration

_REFUSAL: Final = """\
'{address}' is reachable from other hosts, and there is {lacking}: anyone there could read and write \
records. In the section api, one of these two lines mends it or allows it; or give it TLS and configure \
authenticators:
    listen: [{mended}]
    allow_insecure: true"""

_BESIDE: Final = """\
'{address}' is plain beside '{secure}' with TLS: who is refused there would come in here. In the section api, one \
of these two lines mends it or allows it:
    listen: [{others}]
    allow_insecure: true"""


def exposures(configuration: Configuration, document: Document) -> Iterator[str]:
    """One fault for the first address that lacks TLS, unless the configuration allows it in so many words."""
    api = configuration.api
    if api.enabled and not api.allow_insecure:
        asks_who = any(each.enabled for each in configuration.authenticators.values())
        texts = [*_beyond_this_host(api.listen, asks_who=asks_who), *_beside_tls(api.listen)]
        yield from (fault(document, ("api", "listen"), text) for text in texts[:1])


def _beyond_this_host(listen: Sequence[TcpListen | UnixListen], *, asks_who: bool) -> Iterator[str]:
    for each in listen:
        if isinstance(each, TcpListen) and not each.is_loopback and (each.tls is None or not asks_who):
            mended = json.dumps(written(replace(each, host="127.0.0.1")))
            yield _REFUSAL.format(address=each, lacking=_lacking(each, asks_who), mended=mended)


def _lacking(address: TcpListen, asks_who: bool) -> str:  # noqa: FBT001 the one fact that the address does not know
    if address.tls is not None:
        return "no login"
    return "no TLS" if asks_who else "neither TLS nor a login"


def _beside_tls(listen: Sequence[TcpListen | UnixListen]) -> Iterator[str]:
    secure = next((each for each in listen if isinstance(each, TcpListen) and each.tls is not None), None)
    for each in listen:
        if isinstance(each, TcpListen) and each.tls is None and secure is not None:
            others = ", ".join(json.dumps(written(other)) for other in listen if other != each)
            yield _BESIDE.format(address=each, secure=secure, others=others)
