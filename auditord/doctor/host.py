"""Check files, disks and addresses of this host."""

import os
import shutil
import socket
import stat
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from anyio import to_thread

from auditord.config.listen import TcpListen, stands_for_itself
from auditord.config.model import ApiSection, Configuration
from auditord.doctor.records import growth_per_day
from auditord.errors import ConfigurationError
from auditord.web.hosts import known_names
from auditord.web.listeners import server_context
from auditord_hookspecs.checks import Finding, Severity, check_certificate, check_folder
from auditord_hookspecs.folders import user_name
from auditord_hookspecs.wording import counted

LEAST_FREE: Final = 0.05
"""The share of a file system below which a disk counts as nearly full."""

LITTLE: Final = 512 * 1024**2
"""Bytes below which it does, however large it is."""

MONTHS_LEFT: Final = timedelta(days=60)


async def check_state_folder(folder: Path) -> AsyncGenerator[Finding, None]:
    """Look at the permissions of the state folder and the owners of its files."""
    for finding in await to_thread.run_sync(lambda: list(_state_folder(folder))):
        yield finding


def _state_folder(folder: Path) -> Iterator[Finding]:
    if not folder.exists():
        yield Finding(Severity.OK, str(folder), "not there yet: the daemon makes it")
        return
    found = folder.stat()
    user = user_name(found.st_uid)
    yield check_folder(folder, f"run this, and the daemon, as user {user}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        text = f"others than {user} may write to it (mode {stat.S_IMODE(found.st_mode):04o})"
        yield Finding(Severity.FAILURE, str(folder), text, f"chmod go-w {folder}, and look at its files")
    files = {path: each for path in folder.rglob("*") if (each := _looked_at(path)) is not None}
    legible = [path for path, each in files.items() if stat.S_ISREG(each.st_mode) and each.st_mode & stat.S_IROTH]
    if found.st_mode & stat.S_IXOTH and legible:
        text = f"every user of this host can read {counted(len(legible), 'file')}, which may name users: {legible[0]}"
        yield Finding(Severity.WARNING, "privacy", text, f"chmod -R o-rwx {folder}")
    foreign = [path for path, each in files.items() if each.st_uid != found.st_uid]
    if foreign:
        count = counted(len(foreign), "file is", "files are")
        text = f"{count} not {user}'s, and the daemon may not use them: {foreign[0]}"
        yield Finding(Severity.FAILURE, "owners", text, f"chown -R {user} {folder}")
    else:
        yield Finding(Severity.OK, "owners", f"all files are {user}'s")


def _looked_at(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None  # gone meanwhile


async def check_disk(configuration: Configuration, now: Callable[[], datetime]) -> AsyncGenerator[Finding, None]:
    """Report the free space for spool and records, and when the disk will be full."""
    growth = await growth_per_day(configuration, now)
    for place in sorted(configuration.data_folders):
        yield _free(next(each for each in (place, *place.parents) if each.exists()), growth)


def _free(place: Path, growth: float | None) -> Finding:
    usage = shutil.disk_usage(place)
    text = f"{usage.free / 1024**3:.1f} of {usage.total / 1024**3:.1f} GiB are free"
    days = usage.free / growth if growth else None
    if days is not None:
        text += (
            f"; records take {(growth or 0) / 1024**2:.2f} MiB a day, so it is full in {counted(round(days), 'day')}"
        )
    remedy = "make room, release old records (lake.keep_months), or move state_dir or store.url to a larger file system"
    if usage.free < min(usage.total * LEAST_FREE, LITTLE) or usage.free == 0:
        return Finding(Severity.FAILURE, str(place), text, remedy)
    if usage.free < usage.total * LEAST_FREE or (days is not None and days < MONTHS_LEFT.days):
        return Finding(Severity.WARNING, str(place), text, remedy)
    return Finding(Severity.OK, str(place), text)


def _absence(host: str) -> OSError | None:
    """Return why no program can listen on an address at all; None if one can."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as trial:
                trial.bind(address)
    except OSError as error:
        return error
    return None


async def check_addresses(configuration: Configuration, now: Callable[[], datetime]) -> AsyncGenerator[Finding, None]:
    """Check the addresses of ``api.listen``, and their certificates."""
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
            yield Finding(Severity.FAILURE, str(listen), str(error), "the daemon will not start: repair the files")
        for file in {listen.tls.certificate, *filter(None, [listen.tls.client_ca])}:
            yield check_certificate(file, now())


async def check_names(api: ApiSection, refused: Collection[str]) -> AsyncGenerator[Finding, None]:
    """Report names of this host under which clients are refused without TLS.

    Args:
        api: the configuration.
        refused: names for which the running daemon has refused requests.
    """
    plain = [each for each in api.listen if isinstance(each, TcpListen) and each.tls is None and not each.is_loopback]
    if not api.enabled or "*" in api.hosts or not (plain or refused):
        return
    of_resolver = await to_thread.run_sync(_names_of_this_host) if plain else frozenset[str]()
    known = known_names(api.listen, api.hosts)
    for name in sorted({*of_resolver, *refused} - known):
        text = "the resolver has this name for this host, and clients that read under it are answered 421"
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
