"""``POST /api/v1/configuration/reload``: what the files say, compared with what runs, and taken over."""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from auditord.config.comparing import Changes
from auditord.errors import ConfigurationError
from auditord.web.answers import JSON, json_answer
from auditord.web.api.operation import BODY_PROBLEMS, Operation, decoded
from auditord.web.api.shapes import OptionDifference, Reloaded, ReloadWanted
from auditord.web.problems import Refused
from auditord_hookspecs import Permission


class Reload(Protocol):
    """The exchange of the configuration of a running daemon."""

    def __call__(self, *, dry_run: bool) -> Awaitable[Changes]:
        """Take over what the files say, or only compare.

        Raises:
            ConfigurationError: the files cannot be used.
        """
        ...


@dataclass(frozen=True, slots=True)
class ConfigurationHandlers:
    """The handlers of the configuration."""

    reload: Reload

    @Operation(
        "POST",
        "/api/v1/configuration/reload",
        "reloadConfiguration",
        "Take over what the configuration files say now, or only compare.",
        Permission.OPERATE,
        {200: {JSON: Reloaded}},
        problems=(*BODY_PROBLEMS, 422),
        body={JSON: ReloadWanted},
        guarded=True,
    )
    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Compare, and take over what can be."""
        wanted = await decoded(request, ReloadWanted)
        try:
            changes = await self.reload(dry_run=wanted.dry_run)
        except ConfigurationError as error:
            raise Refused(422, str(error), remedy="auditord config check; the daemon goes on as it was") from error
        names = [".".join(each) for each in changes.instances]
        differences = [OptionDifference(each.option, each.running, each.written) for each in changes.differences]
        return json_answer(Reloaded(changes.applied, differences, names, list(changes.restart)))
