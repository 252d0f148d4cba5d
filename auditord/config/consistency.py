"""Faults across sections: open access, duplicate names, jobs that would be counted twice."""

import json
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from auditord.config.documents import Document
from auditord.config.faults import fault, suggestion
from auditord.config.kinds import InstalledKinds
from auditord.config.listen import TcpListen, to_option
from auditord.config.model import Configuration, kind_of, source_of
from auditord_hookspecs import InstanceConfig


def inconsistencies(configuration: Configuration, kinds: InstalledKinds, document: Document) -> list[str]:
    """Return a line per fault."""
    return [
        *exposures(configuration, document),
        *_find_repeated_jobs(configuration, kinds, document),
        *_find_wrong_instances(configuration, kinds, document),
    ]


def _find_wrong_instances(configuration: Configuration, kinds: InstalledKinds, document: Document) -> Iterator[str]:
    for name in configuration.plugins:
        if name in configuration.collectors:  # state, metrics and log use the name
            where = document.origin(("collectors", name))
            yield fault(document, ("plugins", name), f"a collector has the same name ({where}): choose another one")

    for name, sender in configuration.senders.items():
        if kind_of(sender) == "local" and source_of(sender) != "collectors":
            text = "records from the API are already in the record store: set it to collectors, or remove it"
            yield fault(document, ("senders", name, "from"), text)

    known = configuration.access.known_roles()
    for name, config in configuration.authenticators.items():
        kind = kinds.authenticators[kind_of(config)]
        for role in dict.fromkeys(kind.roles(config)):
            if role not in known:
                text = f"there is no role '{role}' in access.roles{suggestion(role, known)}"
                yield fault(document, ("authenticators", name), text)
            elif known[role].is_personal and not kind.names_users(config):
                text = f"the role '{role}' shows users their own records (self), but no user names are known here"
                yield fault(
                    document, ("authenticators", name), f"{text}: see 'Rows of one's own' in the manual on access"
                )


def _same_source(instance: InstanceConfig) -> str | None:
    name: str | None = getattr(instance, "same_source_as", None)
    return name


def _first_source(name: str, collectors: Mapping[str, InstanceConfig]) -> str:
    """Return the collector at the end of a chain of ``same_source_as``; in a circle, the first by name."""
    chain = [name]
    while (other := _same_source(collectors[chain[-1]])) is not None and other in collectors:
        if other in chain:
            return min(chain[chain.index(other) :])
        chain.append(other)
    return chain[-1]


def _find_repeated_jobs(configuration: Configuration, kinds: InstalledKinds, document: Document) -> Iterator[str]:
    """Yield faults for collectors whose records could have the same ids, or two ids for one job."""
    prefixes: dict[str, str] = {}
    for name, config in configuration.collectors.items():
        read = kinds.collectors[kind_of(config)].prefix
        if config.enabled and read is not None and (prefix := read(config)):
            prefixes[name] = prefix

    for name, prefix in prefixes.items():
        other = _same_source(configuration.collectors[name])
        path = ("collectors", name, "same_source_as")
        if other is not None and (other == name or other not in configuration.collectors):
            names = ", ".join(each for each in configuration.collectors if each != name) or "none"
            yield fault(document, path, f"there is no other collector '{other}' (others: {names})")
        elif other is not None and prefixes.get(other, prefix) != prefix:
            text = f"the record prefixes differ ('{prefix}' here, '{prefixes[other]}' in collectors.{other})"
            yield fault(document, path, f"{text}: use the same one, or each job would be counted twice")

    first: dict[str, str] = {}
    for name, prefix in prefixes.items():
        source = _first_source(name, configuration.collectors)
        other = first.setdefault(prefix, source)
        if other != source:
            owner = f"collectors.{other} ({document.origin(('collectors', other))})"
            text = f"the record prefix '{prefix}' is already used by {owner}: choose another one"
            yield fault(
                document, ("collectors", name), f"{text}, or set same_source_as: {other} if both read the same jobs"
            )


_REFUSAL: Final = """\
'{address}' is reachable from other hosts, and there is {lacking}: {danger}. Set up TLS and authenticators, or write \
one of these two lines in the section api, to close the address to other hosts or to allow it:
    listen: [{listen}]
    allow_insecure: true"""

_OPEN_TO_ALL: Final = "anyone there could read and write records"
_UNENCRYPTED: Final = "anyone on the way could read tokens, passwords and records"

_BESIDE: Final = """\
'{address}' has no TLS beside '{secure}' with TLS: clients that are refused there could connect here. Write one of \
these two lines in the section api, to remove the address or to allow it:
    listen: [{others}]
    allow_insecure: true"""


def exposures(configuration: Configuration, document: Document) -> Iterator[str]:
    """Yield a fault for the first exposed address, unless the configuration allows insecure access."""
    api = configuration.api
    if not api.enabled or api.allow_insecure:
        return
    has_login = any(each.enabled for each in configuration.authenticators.values())
    addresses = [each for each in api.listen if isinstance(each, TcpListen)]
    for each in addresses:
        if not each.is_loopback and (each.tls is None or not has_login):
            closed = [replace(each, host="127.0.0.1") if other == each else other for other in api.listen]
            text = _REFUSAL.format(
                address=each,
                lacking="no login" if each.tls is not None else "no TLS" if has_login else "neither TLS nor a login",
                danger=_UNENCRYPTED if has_login else _OPEN_TO_ALL,
                listen=", ".join(json.dumps(to_option(other)) for other in closed),
            )
            yield fault(document, ("api", "listen"), text)
            return
    secure = next((each for each in addresses if each.tls is not None), None)
    plain = next((each for each in addresses if each.tls is None), None)
    if secure is not None and plain is not None:
        others = ", ".join(json.dumps(to_option(other)) for other in api.listen if other != plain)
        yield fault(document, ("api", "listen"), _BESIDE.format(address=plain, secure=secure, others=others))
