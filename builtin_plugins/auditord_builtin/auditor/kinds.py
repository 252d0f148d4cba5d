"""The importer kind ``auditor`` and its options."""

from datetime import datetime
from pathlib import Path
from typing import Final

from pydantic import Field, FilePath, model_validator

from auditord.client import AsyncClient, Tls
from auditord_builtin.auditor.conversion import AuditorImporter, Conversion, Source
from auditord_builtin.auditor.server_config import import_environment, import_server_config
from auditord_hookspecs import Context, ImporterKind, Section

_PATIENCE: Final = 300.0
"""Seconds to wait for data. AUDITOR sorts its whole table before the first record of an answer."""

_DATABASE: Final = ("postgresql://", "postgres://")

_SERVER: Final = ("http://", "https://")

_HELP: Final = """\
SOURCE is AUDITOR's database (postgresql://user@host/auditor), its server (http://host:8000), or its archive (Parquet
files or folders of them). AUDITOR can keep running meanwhile, and is never changed.
"""


class AuditorOptions(Section):
    """Options of ``auditord import auditor``."""

    source: tuple[str, ...]
    unquote: bool = Field(
        default=False, description="Percent-decode record ids and meta values, as collectors before 0.7 wrote them."
    )
    milliseconds: tuple[str, ...] = Field(default=(), description="A component in milliseconds, to convert to seconds.")
    milliseconds_until: datetime | None = Field(
        default=None, description="Convert milliseconds only in records that stopped before this time; default: in all."
    )
    cores: tuple[str, ...] = Field(
        default=("Cores",),
        description="The component with a job's number of cores, which helps to recognise milliseconds.",
    )
    password_file: FilePath | None = Field(
        default=None, description="A file with the database password; default: PGPASSWORD or ~/.pgpass."
    )
    ca: FilePath | None = Field(
        default=None, description="PEM file with the CA of an https server; default: the system's CAs."
    )
    certificate: FilePath | None = Field(default=None, description="The client certificate for an https server.")
    key: FilePath | None = Field(default=None, description="The certificate's key, unless it is in the same file.")
    token_file: FilePath | None = Field(default=None, description="A file with a token for an auditord server.")

    @model_validator(mode="after")
    def _consistent(self) -> "AuditorOptions":
        if self.milliseconds_until and not self.milliseconds:
            raise ValueError("--milliseconds-until needs --milliseconds")
        urls = [word for word in self.source if "://" in word]
        if urls and len(self.source) > 1:
            raise ValueError("give one database or one server; only files can be several")
        if urls and not urls[0].startswith((*_DATABASE, *_SERVER)):
            raise ValueError(f"{urls[0]}: write postgresql://…, http://…, https://…, or files")
        return self


def open_importer(options: AuditorOptions, context: Context) -> AuditorImporter:
    """Return the importer for the options' source.

    Raises:
        SourceFailed: a file does not exist, pyarrow is missing, or libpq does not understand the database's URL.
    """
    del context
    conversion = Conversion(options.unquote, frozenset(options.milliseconds), options.milliseconds_until)
    url = options.source[0]
    source: Source
    if url.startswith(_DATABASE):
        from auditord_builtin.auditor.postgres import PostgresSource  # noqa: PLC0415 only this source needs psycopg

        source = PostgresSource(url, _secret(options.password_file))
    elif url.startswith(_SERVER):
        from auditord_builtin.auditor.rest import RestSource  # noqa: PLC0415 only this source needs it

        tls, token = Tls(options.ca, options.certificate, options.key), _secret(options.token_file)
        source = RestSource(url, lambda: AsyncClient(url, tls=tls, token=token, timeout=_PATIENCE))
    else:
        from auditord_builtin.auditor.parquet import ParquetSource  # noqa: PLC0415 only this source needs it

        source = ParquetSource([Path(word) for word in options.source])
    return AuditorImporter(source, conversion, options.cores)


def _secret(file: Path | None) -> str | None:
    return None if file is None else file.read_text().strip()


AUDITOR: Final = ImporterKind(
    name="auditor",
    title="AUDITOR",
    config=AuditorOptions,
    open=open_importer,
    help=_HELP,
    import_config=import_server_config,
    import_environment=import_environment,
)
