"""Templates and static files of the page, and responses made from them.

The names of static files contain a hash of their content, so that browsers may cache them for ever.

If a page takes long, :func:`frame_first` sends its frame first and the rest in the same response once it is ready. The
visitor sees the navigation, the form and a notice. A rule of the style sheet, not a script, hides the notice when
anything follows it. Invalid input and refusals are known before the frame is sent, so they keep their status. A later
error is reported inside the page.
"""

import asyncio
import gzip
import logging
import zlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

import msgspec
from aiohttp import HttpVersion11, web
from markupsafe import Markup

from auditord.config.page import UiSection
from auditord.reporting.measures import NOTHING, with_unit
from auditord.web.access.sessions import Sessions
from auditord.web.answers import NOT_FOUND
from auditord.web.bodies import BodyTooLarge
from auditord.web.page.charts import Sheet, replace_variables
from auditord.web.problems import Refused
from auditord.web.requests import path_for_logs, principal_of, read_body, read_target
from auditord_hookspecs import Permission, Principal
from auditord_hookspecs.zones import zone_named

if TYPE_CHECKING:
    from jinja2 import Environment
    from jinja2.runtime import Context

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


class _File(msgspec.Struct, frozen=True):
    content: bytes
    packed: bytes
    media_type: str


class Assets:
    """The static files, read once.

    Args:
        logo: the operator's logo; None for ours.

    Raises:
        OSError: the logo cannot be read.
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
        """The URL path of each file, by its plain name."""
        return self._names

    def content(self, name: str) -> str:
        return self._files[self._names[name]].content.decode()

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Send a file, compressed if the client accepts gzip."""
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


_HTML: Final = "text/html; charset=utf-8"

Values = Mapping[str, Any]
"""Values for a template. Any: each template knows the types of its own values."""


class Navigation(msgspec.Struct, frozen=True):
    """The frame of a page: the other pages, and the visitor.

    Args:
        here: the path of the page.
        entries: paths and names of the pages that the visitor may see.
        visitor: the name of the visitor, if known.
        proof: the token that proves that a form was made for this visitor.
        has_session: whether the visitor logged in on the page and so can log out.
        may_log_in: whether the visitor was recognised without a session and can log in.
    """

    here: str
    entries: Sequence[tuple[str, str]]
    visitor: str | None = None
    proof: str = ""
    has_session: bool = False
    may_log_in: bool = False


class Renderer:
    """Renders templates into responses.

    Args:
        ui: the title, links and other settings of the page.
        assets: the static files.
    """

    def __init__(self, ui: UiSection, assets: Assets, now: Callable[[], datetime]) -> None:
        self._ui = ui
        self._assets = assets
        self._now = now
        ancestors = " ".join(ui.frame_ancestors) or "'none'"
        self._headers: Final = {
            "Content-Security-Policy": f"default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
            f"frame-ancestors {ancestors}",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "same-origin",
            "Cache-Control": "no-store",
            "Vary": "Accept-Encoding, Cookie",
        }

    def answer(
        self, template: str, values: Values, navigation: Navigation, status: HTTPStatus = HTTPStatus.OK
    ) -> web.Response:
        everything = {
            "is_frame": False,
            "ui": self._ui,
            "zone": self._ui.timezone,
            "nav": navigation,
            "path": self.path,
            "asset": self._asset,
        }
        html = self._environment.get_template(template).render({**everything, **values})
        headers = {**self._headers, "Content-Type": _HTML}
        response = web.Response(status=status, body=html.encode(), headers=headers, zlib_executor_size=1 << 20)
        response.enable_compression()
        return response

    def redirect(self, path: str) -> web.Response:
        return web.Response(status=303, headers={"Location": self.path(path), "Cache-Control": "no-store"})

    def again(self, target: str) -> web.Response:
        """Return a page that sends the browser to a path or a URL.

        Unlike a redirect, this counts as same-site navigation. Browsers withhold ``SameSite=Strict`` cookies from a
        request that a link on another site started, and from redirects that follow it.
        """
        return self.answer("again.html", {"target": target}, Navigation("", ()))

    def url(self, request: web.BaseRequest, path: str) -> str:
        """Return the full URL of a path, with the host by which the client reaches this server."""
        return f"{request.scheme}://{request.headers.get('Host', 'localhost')}{self.path(path)}"

    def sheet(self, title: str, lines: Sequence[str], legend: Sequence[tuple[str, int]]) -> Sheet:
        """Return a sheet for a chart. The title of the page precedes its first line."""
        named = [f"{self._ui.title} · {lines[0]}", *lines[1:]]
        return Sheet(title, named, legend, replace_variables(self._assets.content("chart.css")))

    def path(self, path: str) -> str:
        """Return a path as browsers request it, below the prefix that a proxy may add."""
        return self._ui.root_path + path

    def _asset(self, name: str) -> str:
        return self.path(self._assets.names[name])

    def _ago(self, moment: datetime | None) -> str:
        return ago(moment, self._now())

    @cached_property
    def _environment(self) -> "Environment":
        from jinja2 import (  # noqa: PLC0415 for visitors
            Environment,
            PackageLoader,
            StrictUndefined,
            pass_context,
            select_autoescape,
        )

        @pass_context
        def local_instant(values: "Context", moment: datetime | None) -> str:
            return instant(moment, zone_named(values["zone"]))

        environment = Environment(
            loader=PackageLoader("auditord.web.page"),
            autoescape=select_autoescape(),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        filters: dict[str, Any] = {  # Any: functions with any arguments
            "instant": local_instant,
            "duration": duration,
            "with_unit": with_unit,
            "html": Markup,  # of the manual, see auditord.manual.html
            "ago": self._ago,
        }
        environment.filters.update(filters)
        return environment


_AGES: Final = (
    (timedelta(days=2), timedelta(days=1), "d"),
    (timedelta(hours=2), timedelta(hours=1), "h"),
    (timedelta(minutes=2), timedelta(minutes=1), "min"),
)


def ago(moment: datetime | None, now: datetime) -> str:
    """Return an instant relative to ``now``: 5 min ago, in 3 h."""
    if moment is None:
        return NOTHING
    distance = now - moment
    known = ((size, letters) for least, size, letters in _AGES if abs(distance) >= least)
    size, letters = next(known, (timedelta(seconds=1), "s"))
    words = f"{abs(distance) // size} {letters}"
    return f"{words} ago" if distance >= timedelta(0) else f"in {words}"


def instant(moment: datetime | None, zone: tzinfo = UTC) -> str:
    """Return an instant to the second, in a time zone; in UTC if the zone has it in year 0 or 10000."""
    if moment is None:
        return NOTHING
    try:
        return f"{moment.astimezone(zone):%Y-%m-%d %H:%M:%S}"
    except OverflowError:
        return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def duration(seconds: int | None) -> str:
    """Return a length of time: 3 d 04:05:06."""
    if seconds is None:
        return NOTHING
    days, rest = divmod(abs(seconds), 86_400)
    clock = f"{rest // 3_600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return ("-" if seconds < 0 else "") + (f"{days} d {clock}" if days else clock)


FIGURES: Final = "<!-- figures -->"
"""Marks the end of the frame in a page's HTML."""

_PATIENCE_SECONDS: Final = 0.2
_GZIP: Final = 31

log: Final = logging.getLogger(__name__)


class Frame(msgspec.Struct, frozen=True):
    """Makes the frame of a page that shows more than the navigation, such as a form."""

    make: Callable[[], web.Response]


FRAME: Final = web.RequestKey("frame", Frame)


async def frame_first(
    request: web.BaseRequest,
    making: Coroutine[Any, Any, web.StreamResponse],  # Any: it neither yields nor receives
    frame: Frame,
    failed: Callable[[], web.Response],
) -> web.StreamResponse:
    """Return the response of ``making``. If it takes longer than :data:`_PATIENCE_SECONDS`, send its frame first.

    ``frame`` is used unless the handler has set its own in the request. ``failed`` makes an error page.
    """
    task = asyncio.create_task(making)
    try:
        await asyncio.wait([task], timeout=_PATIENCE_SECONDS)
        if task.done() or request.version != HttpVersion11:
            return await task
        shown = request.get(FRAME, frame).make()
        response = web.StreamResponse(headers=shown.headers)
        response.headers.popall("Content-Length", None)
        first, packer = _body(shown).partition(FIGURES.encode())[0], None
        if "gzip" in request.headers.get("Accept-Encoding", "").lower():
            response.headers["Content-Encoding"] = "gzip"
            packer = zlib.compressobj(wbits=_GZIP)
            first = packer.compress(first) + packer.flush(zlib.Z_SYNC_FLUSH)
        await response.prepare(request)
        await response.write(first)
        try:
            page = await task
        except Exception:  # a bug, after the status was sent
            log.exception("the page %s cannot be shown", path_for_logs(request))
            page = failed()
        rest = _body(page).partition(FIGURES.encode())[2]
        if packer is not None:
            rest = await asyncio.to_thread(packer.compress, rest) + packer.flush()
        await response.write(rest)
        await response.write_eof()
    finally:
        task.cancel()
    return response


def _body(page: web.StreamResponse) -> bytes:
    if not isinstance(page, web.Response) or not isinstance(page.body, bytes):
        raise TypeError("a page has to be a complete response with a body of bytes")
    return page.body


PROOF: Final = "proof"
"""The name of the form field that holds the proof."""

_KIND: Final = "application/x-www-form-urlencoded"
_LONGEST: Final = 1 << 18
_MOST_FIELDS: Final = 1_000

Form = Mapping[str, str]


class Forms(msgspec.Struct, frozen=True):
    """Makes and checks the proofs of forms.

    Args:
        sessions: the daemon's sessions; None without authenticators, in which case no form is accepted.
    """

    sessions: Sessions | None

    def proof(self, request: web.BaseRequest) -> str:
        """Return a proof for the forms in the response to a request."""
        return "" if self.sessions is None else self.sessions.proof(self._owner(request))

    def require(self) -> None:
        """Raise unless forms are accepted.

        Raises:
            Refused: no authenticator is configured, so no change can be made on the page.
        """
        if self.sessions is None:
            raise Refused(403, "actions on the page need a login: configure an authenticator, or use the command line")

    async def read(self, request: web.BaseRequest) -> Form:
        """Return the fields of a form after checking that it was made for this visitor.

        Raises:
            Refused: it was made for another visitor, is too old, or cannot be read.
        """
        fields = await read_fields(request)
        if self.sessions is None or not self.sessions.is_proof(fields.get(PROOF, ""), self._owner(request)):
            raise Refused(403, "this form is from another session or has expired: load the page again, and repeat")
        return fields

    def _owner(self, request: web.BaseRequest) -> str:
        session = None if self.sessions is None else self.sessions.of(request)
        if session is not None:
            return f"session {session.session_id}"
        principal = principal_of(request)
        return "" if principal is None else f"principal {principal.name}"


async def read_fields(request: web.BaseRequest) -> Form:
    """Return the fields of a form, each with its last value.

    Raises:
        Refused: the body is not a form or cannot be read.
    """
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != _KIND:
        raise Refused(415, f"a form must be sent as {_KIND}")
    try:
        body = await read_body(request, _LONGEST)
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except (BodyTooLarge, ValueError) as error:
        raise Refused(400, f"this form cannot be read: {error}") from error


class Visitors(msgspec.Struct, frozen=True):
    """Decides which pages each visitor sees.

    Args:
        pages: path, name and permission of each page of the navigation.
        is_shown: returns whether a page has anything for a principal (None without authenticators).
    """

    forms: Forms
    pages: Sequence[tuple[str, str, Permission]]
    is_shown: Callable[[str, Principal | None], bool]

    def navigation(self, request: web.BaseRequest, here: str) -> Navigation:
        principal, sessions = principal_of(request), self.forms.sessions
        entries = [
            (path, name)
            for path, name, permission in self.pages
            if self.is_shown(path, principal) and (principal is None or principal.may(permission))
        ]
        if principal is None:
            return Navigation(here, () if sessions is not None else entries)
        has_session = sessions is not None and sessions.of(request) is not None
        name = principal.user or principal.name.partition(":")[2]
        return Navigation(
            here,
            entries,
            name,
            self.forms.proof(request),
            has_session,
            may_log_in=sessions is not None and not has_session,
        )


def may(request: web.BaseRequest, permission: Permission) -> bool:
    """Return whether the sender of a request has a permission. Without authenticators, all senders have."""
    principal = principal_of(request)
    return principal is None or principal.may(permission)
