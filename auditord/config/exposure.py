"""Whether others than this host's own users could reach the API, and nothing would stop them."""

from collections.abc import Iterator
from typing import Final

from auditord.config.documents import Document
from auditord.config.faults import fault
from auditord.config.listen import TcpListen
from auditord.config.model import Configuration

_REFUSAL: Final = """\
'{address}' is reachable from other hosts, and there is neither TLS nor a login: whoever is there could read and write \
records. In the section api, one of these two lines mends it or allows it:
    listen: ["{loopback}"]
    allow_insecure: true"""


def exposures(configuration: Configuration, document: Document) -> Iterator[str]:
    """One fault for the first address beyond this host, unless the configuration allows it in so many words."""
    api = configuration.api
    if not api.enabled or api.allow_insecure:
        return
    beyond = [each for each in api.listen if isinstance(each, TcpListen) and not each.is_loopback]
    for address in beyond[:1]:
        loopback = TcpListen("127.0.0.1", address.port)
        yield fault(document, ("api", "listen"), _REFUSAL.format(address=address, loopback=loopback))
