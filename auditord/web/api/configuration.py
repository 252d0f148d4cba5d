"""``POST /api/v1/configuration/reload``: what the files say, compared with what runs, and taken over."""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import msgspec
from aiohttp import web

from auditord.config.comparing import Changes
from auditord.errors import ConfigurationError
from auditord.web.answers import JSON, Answer
from auditord.web.api.operation import BODY_PROBLEMS, Operation, decoded
from auditord.web.problem_shapes import doc
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


class ReloadWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reload that is asked for."""

    dry_run: Annotated[bool, doc("compare, and change nothing.")] = False


class OptionDifference(msgspec.Struct, frozen=True):
    """An option that the files say differently."""

    option: Annotated[str, doc("its dotted path.")]
    running: Annotated[Any, doc("the value in use; null if there is none, masked if it is secret.")]
    written: Annotated[Any, doc("the value in the files.")]


class Reloaded(msgspec.Struct, frozen=True):
    """The differences between the daemon and its files."""

    applied: Annotated[bool, doc("whether the daemon uses what the files say now.")]
    differences: Annotated[Sequence[OptionDifference], doc("option by option.")]
    instances: Annotated[Sequence[str], doc("instances that can be exchanged, with their sections.")]
    restart: Annotated[Sequence[str], doc("what takes a restart; if there is anything, nothing was changed.")]


@dataclass(frozen=True, slots=True)
class ConfigurationHandlers:
    """The handlers of the configuration.

    Args:
        reload: exchanges it.
    """

    reload: Reload

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Compare, and take over what can be."""
        wanted = await decoded(request, ReloadWanted)
        try:
            changes = await self.reload(dry_run=wanted.dry_run)
        except ConfigurationError as error:
            raise Refused(422, str(error), remedy="auditord config check; the daemon goes on as it was") from error
        names = [".".join(each) for each in changes.instances]
        differences = [OptionDifference(each.option, each.running, each.written) for each in changes.differences]
        return Answer(
            200, msgspec.json.encode(Reloaded(changes.applied, differences, names, list(changes.restart))), JSON
        )

    def operations(self) -> Sequence[Operation]:
        """The call, as it is routed and described."""
        return (
            Operation(
                "POST",
                "/api/v1/configuration/reload",
                "reloadConfiguration",
                "Take over what the configuration files say now, or only compare.",
                self.answer,
                Permission.OPERATE,
                {200: {JSON: Reloaded}},
                problems=(*BODY_PROBLEMS, 422),
                body={JSON: ReloadWanted},
                guarded=True,
            ),
        )
