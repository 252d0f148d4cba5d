"""Mails to users about their own jobs."""

import logging
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from auditord_builtin.utilisation.asking import Usages, Who
from auditord_builtin.utilisation.config import Level, UserMail, UtilisationConfig
from auditord_builtin.utilisation.delivering import Parcel
from auditord_builtin.utilisation.figures import HOUR, Usage
from auditord_builtin.utilisation.periods import Period
from auditord_builtin.utilisation.report import report_on

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._+-]{0,62}[A-Za-z0-9])?")


def parcels_to_users(
    usages: Usages,
    config: UtilisationConfig,
    options: UserMail,
    period: Period,
    log: "logging.LoggerAdapter[logging.Logger]",
) -> Sequence[Parcel]:
    """A report for each user who has an address and used enough, about their own jobs and nobody else's."""
    own: defaultdict[str, dict[Who, Usage]] = defaultdict(dict)
    for who, usage in usages.items():
        if who.user is not None:
            own[who.user][who] = usage
    levels = config.model_copy(update={"levels": (Level.SITE, Level.GROUP, Level.GROUP_TOTAL)})
    parcels: list[Parcel] = []
    for user, theirs in sorted(own.items()):
        held = sum(usage.core_time for usage in theirs.values())
        address = address_of(user, options)
        if address is None:
            log.info("the user %r has no mail address", user)
        elif held >= options.least_core_hours * HOUR:
            title = f"{config.title}: your jobs"
            parcels.append(Parcel(user, address, report_on(theirs, levels, period, title=title)))
    return parcels


def address_of(user: str, options: UserMail) -> str | None:
    """Where a user's mails go; None for names that cannot be part of an address."""
    if user in options.addresses:
        return options.addresses[user]
    if options.address is None or not _NAME.fullmatch(user):
        return None
    return options.address.replace("{user}", user)
