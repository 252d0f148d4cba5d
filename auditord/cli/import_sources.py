"""The source that the words of ``auditord import`` name, and the options to get in."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from pydantic import ValidationError

from auditord.client import AsyncClient, Tls
from auditord.config.model import StoreSection
from auditord.config.store_url import is_postgresql
from auditord.importing.parquet import ParquetSource
from auditord.importing.postgres import PostgresSource
from auditord.importing.rest import RestSource
from auditord.importing.source import Source

F = TypeVar("F", bound=Callable[..., Any])

_PATIENCE: Final = 300.0
"""Seconds without progress: AUDITOR sorts its whole table before the first record of an answer."""

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)

_OPTIONS: Final = (
    click.option("--password-file", type=_FILE, help="The database password; else PGPASSWORD or ~/.pgpass has it."),
    click.option("--ca", type=_FILE, help="Who may vouch for an https server, in PEM; else the system's authorities."),
    click.option("--certificate", type=_FILE, help="The certificate to show an https server."),
    click.option("--key", type=_FILE, help="Its key, if that is not in the same file."),
    click.option("--token-file", type=_FILE, help="A token for an auditord server."),
)


def source_options(command: F) -> F:
    """Let a command take the options on how to get in."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def open_source(
    words: Sequence[str],
    *,
    password_file: Path | None,
    ca: Path | None,
    certificate: Path | None,
    key: Path | None,
    token_file: Path | None,
) -> Source:
    """The source that the words name; nothing is asked of it yet.

    Raises:
        UsageError: they name none, or several that are not files.
        SourceFailed: there is no such file.
    """
    urls = [word for word in words if "://" in word]
    if not urls:
        return ParquetSource([Path(word) for word in words])
    if len(words) > 1:
        raise click.UsageError("one database or one server at a time; only files may be several")
    if is_postgresql(urls[0]):
        return PostgresSource(_section(urls[0], password_file))
    if not urls[0].startswith(("http://", "https://")):
        raise click.UsageError(f"{urls[0]}: write postgresql://…, http://…, https://…, or files")
    tls, token = Tls(ca, certificate, key), _secret(token_file)
    return RestSource(urls[0], lambda: AsyncClient(urls[0], tls=tls, token=token, timeout=_PATIENCE))


def _section(url: str, password_file: Path | None) -> StoreSection:
    try:
        given = {} if password_file is None else {"password": _secret(password_file)}
        return StoreSection.model_validate({"url": url, **given})
    except ValidationError as error:
        raise click.UsageError(error.errors(include_input=False)[0]["msg"]) from error


def _secret(file: Path | None) -> str | None:
    return None if file is None else file.read_text().strip()
