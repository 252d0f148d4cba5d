"""How a request is refused: the same for what is forbidden and for what is not there."""

from typing import Final

from aiohttp import web

from auditord.web.answers import TEXT, Answer
from auditord.web.api.problems import PREFIX, Refused
from auditord.web.targets import read_target

_UNKNOWN: Final = "Nobody who may do this was recognised: send a bearer token or a client certificate."
_FORBIDDEN: Final = "Insufficient permissions"
_CHALLENGE: Final = 'Bearer realm="auditord"'


def refusal(request: web.BaseRequest, *, known: bool) -> Answer:
    """The answer to somebody who was recognised, or was not. The connection ends, whatever its body still holds."""
    path = read_target(request.raw_path).path
    if path.startswith(PREFIX):
        return _PROBLEMS[known]
    return _CUT_SHORT[known] if request.method == "POST" else _TEXTS[known]


def _text(*, known: bool) -> Answer:
    status, text = (403, _FORBIDDEN) if known else (401, _UNKNOWN)
    return Answer(status, text.encode(), TEXT, challenge=None if known else _CHALLENGE, close=True)


def _problem(*, known: bool) -> Answer:
    if known:
        remedy = "ask whoever runs this server for a role; there may also be nothing at this path"
        return Refused(403, _FORBIDDEN, remedy=remedy).answer().closing()
    remedy = "send Authorization: Bearer <token>, or use a client certificate"
    return Refused(401, _UNKNOWN, remedy=remedy, challenge=_CHALLENGE).answer().closing()


_TEXTS: Final = (_text(known=False), _text(known=True))
_PROBLEMS: Final = (_problem(known=False), _problem(known=True))
_CUT_SHORT: Final = tuple(each.cut_short() for each in _TEXTS)
"""For ``POST``: AUDITOR's clients take every whole answer for success, and their queues forget the record. One that
ends before its announced length is a fault to them, while people still read the reason."""
