"""Templates and texts, and answers made of them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web
from markupsafe import Markup

from auditord.config.ui import UiSection
from auditord.web.page import numbers
from auditord.web.page.assets import Assets
from auditord.web.page.sheet import Sheet, without_variables
from auditord_hookspecs.zones import zone_named

if TYPE_CHECKING:
    from jinja2 import Environment

_LANGUAGE: Final = "en"
_HTML: Final = "text/html; charset=utf-8"

Values = Mapping[str, Any]
"""The values that a template shows. Any: each template knows its own values."""


@dataclass(frozen=True, slots=True)
class Navigation:
    """The frame of a page: the other pages, and the visitor.

    Args:
        here: the path of the page.
        entries: paths and names of the pages that the visitor may see.
        visitor: the name of the visitor, if it is known.
        proof: proves that a form was made for this visitor.
        has_session: whether the visitor has logged in here and so can log out.
        may_log_in: whether the visitor was recognised otherwise and can log in.
    """

    here: str
    entries: Sequence[tuple[str, str]]
    visitor: str | None = None
    proof: str = ""
    has_session: bool = False
    may_log_in: bool = False


class Renderer:
    """Makes pages.

    Args:
        ui: title, links and the like.
        assets: the static files.
        now: the clock.
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

    def text(self, key: str, **values: object) -> str:
        """A text of the catalogue, with values put in."""
        return self._texts[key].format(**values)

    def answer(
        self, template: str, values: Values, navigation: Navigation, status: HTTPStatus = HTTPStatus.OK
    ) -> web.Response:
        """A page."""
        everything = {
            "is_frame": False,
            "language": _LANGUAGE,
            "t": self.text,
            "ui": self._ui,
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
        """Lead the browser to another page."""
        return web.Response(status=303, headers={"Location": self.path(path), "Cache-Control": "no-store"})

    def again(self, target: str) -> web.Response:
        """Have the browser go on from a page of ours to a path or a URL.

        Browsers keep cookies that are ``SameSite=Strict`` back where a link of another site leads here.
        """
        return self.answer("again.html", {"target": target}, Navigation("", ()))

    def url(self, request: web.BaseRequest, path: str) -> str:
        """A path of ours as the sender of a request reaches it."""
        return f"{request.scheme}://{request.headers.get('Host', 'localhost')}{self.path(path)}"

    def sheet(self, title: str, lines: Sequence[str], keys: Sequence[tuple[str, int]]) -> Sheet:
        """A sheet for a chart, whose first line begins with the name of the page that it is from."""
        named = [f"{self._ui.title} · {lines[0]}", *lines[1:]]
        return Sheet(title, named, keys, without_variables(self._assets.content("chart.css")))

    def path(self, path: str) -> str:
        """A path of ours as a browser asks for it, which a proxy may have put below another one."""
        return self._ui.root_path + path

    def _asset(self, name: str) -> str:
        return self.path(self._assets.names[name])

    def _ago(self, moment: datetime | None) -> str:
        return numbers.ago(moment, self._now(), self._texts["time.past"], self._texts["time.future"])

    @cached_property
    def _texts(self) -> Mapping[str, str]:
        texts: dict[str, str] = json.loads(files("auditord.web.page").joinpath(f"texts/{_LANGUAGE}.json").read_text())
        return texts

    @cached_property
    def _environment(self) -> "Environment":
        from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape  # noqa: PLC0415 for visitors

        environment = Environment(
            loader=PackageLoader("auditord.web.page"),
            autoescape=select_autoescape(),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        environment.filters |= {
            "instant": partial(numbers.instant, zone=zone_named(self._ui.timezone)),
            "duration": numbers.duration,
            "with_unit": numbers.with_unit,
            "html": Markup,  # of the manual, see auditord.manual.html
            "ago": self._ago,
        }
        return environment
