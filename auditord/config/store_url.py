"""URLs of record stores, as ``store.url`` writes them."""

from pathlib import Path
from urllib.parse import quote, unquote, urlsplit


def is_postgresql(url: str) -> bool:
    """Tell a URL for libpq."""
    return url.startswith(("postgresql://", "postgres://"))


def sqlite_path(url: str) -> Path:
    """The file of ``sqlite:///var/lib/auditord/records.db``; the path is absolute (a fourth slash does no harm).

    The messages leave the URL out, since others than ours hold passwords.

    Raises:
        ValueError: this version can open nothing of this URL.
    """
    parts = urlsplit(url)
    foreign = parts.scheme != "sqlite" or parts.netloc or parts.query or parts.fragment
    if foreign or not parts.path.startswith("/") or not parts.path.strip("/"):
        raise ValueError("it is neither sqlite:///path/to/file, with an absolute path, nor postgresql://…")
    return Path("/" + unquote(parts.path).lstrip("/"))


def sqlite_url(path: Path) -> str:
    """The URL of a file, whatever characters its path has."""
    return f"sqlite:///{quote(str(path))}"
