"""Static files of the page, under names with a hash of their content, so that browsers keep them for ever."""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Final

from aiohttp import web

from auditord.web.answers import NOT_FOUND
from auditord.web.requests import read_target

FOLDER: Final = "/page/"

_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".webp": "image/webp",
}
_HEADERS: Final = {
    "Cache-Control": "public, max-age=31536000, immutable",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
}
_HASH: Final = 12
_LOGO: Final = "logo"


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    packed: bytes
    media_type: str


class Assets:
    """The files, read once.

    Args:
        logo: a picture of the operator's; None for our own.

    Raises:
        OSError: it cannot be read.
    """

    def __init__(self, logo: Path | None = None) -> None:
        self._files: dict[str, _File] = {}
        self._names: dict[str, str] = {}
        for file in files("auditord.web.page").joinpath("static").iterdir():
            self._add(file.name, file.name, file.read_bytes())
        if logo is not None:
            self._add(f"{_LOGO}.svg", f"{_LOGO}{logo.suffix}", logo.read_bytes())

    @property
    def names(self) -> Mapping[str, str]:
        """The path below the server's root of each file, by its plain name."""
        return self._names

    def content(self, name: str) -> str:
        """The text of a file."""
        return self._files[self._names[name]].content.decode()

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """One file."""
        file = self._files.get(read_target(request.raw_path).path)
        if file is None:
            return NOT_FOUND
        packed = "gzip" in request.headers.get("Accept-Encoding", "")
        headers = {**_HEADERS, "Content-Type": file.media_type, "Vary": "Accept-Encoding"}
        headers |= {"Content-Encoding": "gzip"} if packed else {}
        return web.Response(body=file.packed if packed else file.content, headers=headers)

    def _add(self, known_as: str, name: str, content: bytes) -> None:
        stem, dot, suffix = name.rpartition(".")
        path = f"{FOLDER}{stem}-{sha256(content).hexdigest()[:_HASH]}{dot}{suffix}"
        self._names[known_as] = path
        self._files[path] = _File(content, gzip.compress(content, mtime=0), _TYPES[dot + suffix])
