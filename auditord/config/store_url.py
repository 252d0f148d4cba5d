"""URLs of record stores, as in ``store.url``."""

from pathlib import Path
from urllib.parse import quote, unquote, urlsplit


def is_postgresql(url: str) -> bool:
    """Return whether a URL is for libpq."""
    return url.startswith(("postgresql://", "postgres://"))


def sqlite_path(url: str) -> Path:
    """Return the file of ``sqlite:///var/lib/auditord/records.db``; the path is absolute (a fourth slash is ignored).

    The messages omit the URL, because other URLs contain passwords.

    Raises:
        ValueError: the URL has another form.
    """
    parts = urlsplit(url)
    foreign = parts.scheme != "sqlite" or parts.netloc or parts.query or parts.fragment
    if foreign or not parts.path.startswith("/") or not parts.path.strip("/"):
        raise ValueError("it is neither sqlite:///path/to/file, with an absolute path, nor postgresql://…")
    return Path("/" + unquote(parts.path).lstrip("/"))


def records_url(state_dir: Path) -> str:
    """Return the URL of the default store."""
    return sqlite_url(state_dir / "records.db")


def sqlite_url(path: Path) -> str:
    """Return the URL of a file, with its path quoted."""
    return f"sqlite:///{quote(str(path))}"
