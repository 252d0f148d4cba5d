"""The pages ``/manual`` and ``/manual/TOPIC``: the manual of the command line, as HTML."""

from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from itertools import groupby
from typing import Final

import msgspec
from aiohttp import web
from anyio import CapacityLimiter, to_thread

from auditord.manual import Topic, as_html, text_of, topics
from auditord.manual.topics import INDEX
from auditord.web.page.rendering import Renderer, Visitors
from auditord.web.problems import Refused
from auditord.web.requests import read_target
from auditord_hookspecs import AuditordError

PATH: Final = "/manual"


class ManualPages(msgspec.Struct, frozen=True):
    """Shows the manual. Each topic is rendered from its Markdown once.

    Args:
        made: the HTML of the topics rendered so far.
        alone: limits rendering to one topic at a time, because references import every command and every kind.
    """

    renderer: Renderer
    visitors: Visitors
    made: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    alone: CapacityLimiter = msgspec.field(default_factory=lambda: CapacityLimiter(1))

    async def contents(self, request: web.BaseRequest) -> web.StreamResponse:
        """Show the chapters and their topics."""
        values = {"title": "Manual", "chapters": _chapters(topics()), "here": INDEX}
        return self.renderer.answer("manual.html", values, self.visitors.navigation(request, PATH))

    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        name = read_target(request.raw_path).segment(1)
        topic = topics().get(name)
        if topic is None:
            raise Refused(HTTPStatus.NOT_FOUND, f"The manual has no topic '{name}'.")
        if name not in self.made:
            try:
                text = await to_thread.run_sync(partial(text_of, name), limiter=self.alone)
            except AuditordError as error:  # a hook module was disabled because it is broken
                raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
            self.made[name] = await to_thread.run_sync(partial(as_html, text, self._address), limiter=self.alone)
        values = {"title": topic.title, "chapters": _chapters(topics()), "here": name, "text": self.made[name]}
        return self.renderer.answer("manual.html", values, self.visitors.navigation(request, PATH))

    def _address(self, name: str) -> str:
        return self.renderer.path(PATH if name == INDEX else f"{PATH}/{name}")


def _chapters(known: Mapping[str, Topic]) -> Sequence[tuple[str, Sequence[Topic]]]:
    """Return the chapters in order. A chapter may appear twice in ``known``, where references come last."""
    order = list(dict.fromkeys(topic.chapter for topic in known.values()))
    listed = sorted(known.values(), key=lambda topic: order.index(topic.chapter))
    return [(chapter, list(found)) for chapter, found in groupby(listed, key=lambda topic: topic.chapter)]
