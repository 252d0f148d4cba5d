"""Checks of the API's addresses, their certificates, and the names of this host."""

import socket
from collections.abc import AsyncGenerator, Callable, Collection
from datetime import datetime

from anyio import to_thread

from auditord.checks import Places
from auditord.config.listen import TcpListen, stands_for_itself
from auditord.config.model import ApiSection, Configuration
from auditord.errors import ConfigurationError
from auditord.web.hosts import list_names
from auditord.web.listeners import server_context
from auditord_hookspecs import hookimpl
from auditord_hookspecs.checks import Finding, Severity, check_certificate


@hookimpl
def feature_checks(configuration: Configuration, now: Callable[[], datetime], refused_hosts: Collection[str]) -> Places:
    yield "api.listen", _check_addresses(configuration, now)
    yield "api.hosts", _check_names(configuration.api, refused_hosts)


def _absence(host: str) -> OSError | None:
    """Return why no program can listen on an address; None if one can."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as trial:
                trial.bind(address)
    except OSError as error:
        return error
    return None


async def _check_addresses(configuration: Configuration, now: Callable[[], datetime]) -> AsyncGenerator[Finding, None]:
    """Check the addresses of ``api.listen`` and their certificates."""
    if not configuration.api.enabled:
        return
    for listen in configuration.api.listen:
        if not isinstance(listen, TcpListen):
            continue
        if not listen.optional and (fault := await to_thread.run_sync(_absence, listen.host)) is not None:
            text = f"this host has no such address: {fault}"
            yield Finding(Severity.FAILURE, str(listen), text, "the daemon will not start: correct api.listen")
        if listen.tls is None:
            continue
        try:
            server_context(listen.tls)
        except ConfigurationError as error:
            yield Finding(Severity.FAILURE, str(listen), str(error), "the daemon will not start: correct the files")
        for file in {listen.tls.certificate, *filter(None, [listen.tls.client_ca])}:
            yield check_certificate(file, now())


async def _check_names(api: ApiSection, refused: Collection[str]) -> AsyncGenerator[Finding, None]:
    """Report names of this host under which clients are refused without TLS.

    Args:
        api: the configuration.
        refused: names for which the running daemon has refused requests.
    """
    plain = [each for each in api.listen if isinstance(each, TcpListen) and each.tls is None and not each.is_loopback]
    if not api.enabled or "*" in api.hosts or not (plain or refused):
        return
    of_resolver = await to_thread.run_sync(_names_of_this_host) if plain else frozenset[str]()
    known = list_names(api.listen, api.hosts)
    for name in sorted({*of_resolver, *refused} - known):
        text = "the resolver gives this host this name, but clients that read under it are answered 421"
        if name in refused:
            text = "a client that read under this name was answered 421"
        yield Finding(Severity.WARNING, name, text, f"add {name} to api.hosts, if it is this server's")


def _names_of_this_host() -> frozenset[str]:
    """Return the names with dots that the resolver has for this host."""
    try:
        name, aliases, _ = socket.gethostbyname_ex(socket.gethostname())
    except OSError:
        name, aliases = "", []
    names = (each.lower().removesuffix(".") for each in (socket.getfqdn(), name, *aliases))
    return frozenset(each for each in names if not stands_for_itself(each) and not each.startswith("localhost."))
