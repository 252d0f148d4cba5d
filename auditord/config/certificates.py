"""The files with certificates that a configuration names, wherever in it."""

from collections.abc import Iterator
from pathlib import Path

from auditord.config.listen import TcpListen
from auditord.config.model import INSTANCE_SECTIONS, Configuration
from auditord_hookspecs import Section
from auditord_hookspecs.sources import TlsFiles


def certificate_files(configuration: Configuration) -> list[Path]:
    """The files of the daemon's addresses and of its enabled instances, each once.

    Authorities of the system, and certificates that a kind names otherwise than by ``TlsFiles``, are not among them.
    """
    found = [
        file
        for listen in configuration.api.listen
        if configuration.api.enabled and isinstance(listen, TcpListen) and listen.tls is not None
        for file in (listen.tls.certificate, listen.tls.client_ca)
    ]
    for section in INSTANCE_SECTIONS:
        for config in getattr(configuration, section).values():
            if config.enabled:
                found += [file for tls in tls_files(config) for file in (tls.certificate, tls.ca)]
    return list(dict.fromkeys(file for file in found if file is not None))


def tls_files(section: Section) -> Iterator[TlsFiles]:
    """The TLS options anywhere in a section."""
    for _, value in section:
        if isinstance(value, TlsFiles):
            yield value
        elif isinstance(value, Section):
            yield from tls_files(value)
