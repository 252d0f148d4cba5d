"""A browser without a screen, for tests of the page: it keeps cookies and sends forms as they were made."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import unescape
from http.client import HTTPConnection
from http.cookies import SimpleCookie
from typing import Final
from urllib.parse import urlencode, urlsplit

HTML: Final = {"Accept": "text/html,application/xhtml+xml"}


@dataclass(frozen=True)
class Response:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    text: str
    cookies: SimpleCookie

    @property
    def location(self) -> str:
        return self.headers["Location"]

    def fields(self, action: str) -> dict[str, str]:
        """The hidden fields of the first form that leads there."""
        form = re.search(rf'<form[^>]+action="{re.escape(action)}"[^>]*>(.*?)</form>', self.text, re.DOTALL)
        assert form is not None, f"there is no form for {action}"
        found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form[1])
        return {name: unescape(value) for name, value in found}


@dataclass
class Browser:
    """Asks one server."""

    url: str
    cookies: dict[str, str] = field(default_factory=dict[str, str])
    headers: dict[str, str] = field(default_factory=dict[str, str])
    source: str = "127.0.0.1"

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> Response:
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=60, source_address=(self.source, 0))
        sent = HTML | self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        cookies: SimpleCookie = SimpleCookie()
        for line in answer.headers.get_all("Set-Cookie", []):
            cookies.load(line)
        got = Response(answer.status, dict(answer.getheaders()), answer.read().decode(), cookies)
        connection.close()
        for name, morsel in cookies.items():
            self.cookies[name] = morsel.value
            if morsel["max-age"] == "0":
                del self.cookies[name]
        return got

    def get(self, path: str, **headers: str) -> Response:
        return self.ask("GET", path, **headers)

    def send(self, path: str, fields: Mapping[str, str], **headers: str) -> Response:
        """Send a form."""
        form = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        return self.ask("POST", path, urlencode(fields), **form)

    def log_in(self, token: str, target: str = "/") -> Response:
        fields = self.get(f"/login?{urlencode({'next': target})}").fields("/login")
        return self.send("/login", {**fields, "token": token})
