"""The kind ``priority``, and a run of it: compute priorities from usage, and run the commands that set them."""

import re
import shlex
import shutil
from collections.abc import AsyncGenerator, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import msgspec

from auditord_builtin.priority import metrics
from auditord_builtin.priority.config import PriorityConfig
from auditord_builtin.priority.history import read_state
from auditord_builtin.priority.importing import import_config
from auditord_builtin.priority.usage import Targets, Usage, look_up_usage, rounded, smoothed, targets
from auditord_hookspecs import AuditordError, CommandFailed, Context, PluginContext, PluginKind
from auditord_hookspecs.checks import Finding, Severity

_PLACEHOLDER: Final = re.compile(r"\{(priority|resources?|group|[1-9]\d*)\}", re.ASCII)

MAX_OUTPUT: Final = 1024 * 1024


class PrioritiesNotSet(AuditordError):
    """Some commands failed. All others were run.

    Remedy:
        run the command in the text as the service's user; the next run sets all priorities again.
    """


async def set_priorities(config: PriorityConfig, context: PluginContext) -> None:
    """Set the priority of each group. Without any usage, nothing changes.

    Raises:
        PrioritiesNotSet: commands failed.
        AuditordError: the records cannot be read, or are stale; no command was run.
    """
    usage = await look_up_usage(config, context)
    wanted = targets(usage, config.computation_mode, config.min_priority, config.max_priority)
    if not context.dry_run:
        metrics.show_usage(context.instance, config.metrics, usage)
    if wanted is None:
        context.log.warning("no group has any usage: no command is run, and priorities do not change")
        return
    wanted = smoothed(wanted, _last(config, context.state), config.smoothing)
    failed = await _run_commands(config, context, usage, {group: rounded(each) for group, each in wanted.items()})
    if not context.dry_run:
        await _conclude(config, context, wanted, failed)


async def _run_commands(
    config: PriorityConfig, context: PluginContext, usage: Usage, priorities: dict[str, int]
) -> Mapping[str, CommandFailed]:
    """Run every command, or show it in a dry run. Return the failures, the last one of each group."""
    failed: dict[str, CommandFailed] = {}
    for group, argv in all_commands(config, usage, priorities):
        if context.dry_run:
            context.show(shlex.join(argv))
            continue
        try:
            await context.run_command(argv, timeout=config.command_timeout, max_output=MAX_OUTPUT)
        except CommandFailed as error:
            failed[group] = error
            metrics.FAILURES.labels(context.instance, group).inc()
            context.log.error("a command for group %s failed: %s", group, error)  # noqa: TRY400 says enough
    return failed


async def _conclude(
    config: PriorityConfig, context: PluginContext, wanted: Targets, failed: Mapping[str, CommandFailed]
) -> None:
    """Save and show the priorities that were set, without those of failed commands."""
    applied = {group: each for group, each in wanted.items() if group not in failed}
    kept = {group: each for group, each in _last(config, context.state).items() if group in failed}
    state = read_state(context.state).followed_by(kept | applied, context.now())
    await context.save_state(msgspec.to_builtins(state))
    metrics.show_applied(context.instance, config.metrics, {group: rounded(each) for group, each in applied.items()})
    if failed:
        group, error = next(iter(failed.items()))
        raise PrioritiesNotSet(
            f"commands failed for {len(failed)} of {len(wanted)} groups, all others ran; {group}: {error}"
        )


def _last(config: PriorityConfig, state: Any) -> Mapping[str, Fraction]:  # Any: the JSON that a run before has kept
    """Return the last unrounded priorities, within the current bounds."""
    low, high = config.min_priority, config.max_priority
    return {group: Fraction(min(max(each, low), high)) for group, each in read_state(state).last.items()}


def all_commands(config: PriorityConfig, usage: Usage, priorities: dict[str, int]) -> Iterator[tuple[str, list[str]]]:
    """Yield each group with a command line, command by command, in AUDITOR's order."""
    for template in config.commands:
        words = shlex.split(template)
        for group, parameters in config.group_mapping.items():
            values = {
                "priority": str(priorities[group]),
                "resource": printed(usage[group]),
                "resources": printed(usage[group]),
                "group": group,
                **{str(place): parameter for place, parameter in enumerate(parameters, start=1)},
            }
            yield group, [_filled(word, values) for word in words]


def _filled(word: str, values: dict[str, str]) -> str:
    """Fill in all placeholders in one pass, so that braces in a name stay text. An unknown number stays as well."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), word)


def printed(usage: Fraction) -> str:
    """Return AUDITOR's form of a number: the shortest decimal of the 64-bit float, without exponent."""
    text = format(Decimal(repr(float(usage))), "f")
    return text.removesuffix(".0")


async def check(config: PriorityConfig, _: Context) -> AsyncGenerator[Finding, None]:
    """Check that the programs that set priorities exist. None is run, since the effect is unknown."""
    for program in dict.fromkeys(shlex.split(command)[0] for command in config.commands):
        if shutil.which(program) is None:
            yield Finding(Severity.FAILURE, program, "there is no such program", "install it, or name its path")
        else:
            yield Finding(Severity.OK, program, "it is there")


PRIORITY: Final = PluginKind(
    name="priority",
    config=PriorityConfig,
    run=set_priorities,
    import_config=import_config,
    check=check,
)
