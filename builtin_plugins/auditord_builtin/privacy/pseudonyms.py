"""Pseudonyms for users, computed from their names with a secret key. Without the key they cannot be reversed.

A pseudonym is ``u-`` and the first 80 bits of HMAC-SHA-256 over the name, in hexadecimal. The same name gets the same
pseudonym under every meta key, such as ``user_id`` and ``user``. By default, a name that looks like a pseudonym is
kept, since a site may have pseudonymised its records before it shipped them here.
"""

import hmac
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec
from pydantic import Field, SecretStr, field_validator

from auditord_hookspecs import InstanceConfig, Record, Secret, Transform, TransformKind
from auditord_hookspecs.config import PersonalKeys
from auditord_hookspecs.proposals import Answers, Host, NewSecret, Proposal, Question

_MIN_KEY_LENGTH: Final = 16
_PSEUDONYM: Final = re.compile(r"u-[0-9a-f]{20}")
_CACHE_SIZE: Final = 65_536
_DIGITS: Final = 20


class PseudonymsConfig(InstanceConfig):
    """Replaces users' names by pseudonyms."""

    key: Secret = Field(
        description="A random secret of at least 16 characters, best as a reference such as file:/path. A new key "
        "gives every user a new pseudonym, so keep it."
    )
    meta: PersonalKeys = Field(
        default=(),
        description="The labels whose values become pseudonyms; default: that of labels.user, user_id and user.",
    )
    keep_pseudonyms: bool = Field(
        default=True,
        description="Keep names that look like a pseudonym, because a site may have pseudonymised its records before "
        "it shipped them here. Set false if no site does: a user with such a name then gets a pseudonym "
        "as well.",
    )

    @field_validator("key")
    @classmethod
    def _long_enough(cls, key: SecretStr) -> SecretStr:
        if len(key) < _MIN_KEY_LENGTH:
            raise ValueError(
                f"a short key can be guessed, which reveals the names: use at least {_MIN_KEY_LENGTH} characters"
            )
        return key


def transform(config: PseudonymsConfig) -> Transform:
    """Return a function that replaces users' names in a record by pseudonyms.

    The daemon applies it to each record before the record is stored or queued.
    """
    key, personal = config.key.get_secret_value().encode(), frozenset(config.meta)

    @lru_cache(maxsize=_CACHE_SIZE)
    def pseudonym(name: str) -> str:
        is_pseudonym = config.keep_pseudonyms and _PSEUDONYM.fullmatch(name)
        return name if is_pseudonym else "u-" + hmac.digest(key, name.encode(), "sha256").hex()[:_DIGITS]

    def change(record: Record) -> Record:
        meta = record.meta
        if meta is None or personal.isdisjoint(meta):
            return record
        changed = {name: tuple(map(pseudonym, values)) if name in personal else values for name, values in meta.items()}
        return msgspec.structs.replace(record, meta=changed)

    return change


def detect(host: Host) -> Proposal:
    """Ask in ``auditord init`` whether to use pseudonyms. The question does not depend on the host."""
    del host
    text = "Users in records: 'names', or 'pseudonyms' (sums per user remain, e-mails to users stop)"
    comments = {
        "key": "With it, anyone can compute the pseudonym of a name. Another key gives every user another pseudonym."
    }
    purpose = "Users' names become pseudonyms before a record is kept: auditord manual privacy."
    return Proposal(purpose, _options, [Question("users", text, "names")], comments)


def _options(answers: Answers) -> Mapping[str, Any]:
    if answers["users"] not in {"names", "pseudonyms"}:
        raise ValueError(f"users: '{answers['users']}' is neither names nor pseudonyms")
    return {"key": NewSecret("pseudonym-key")} if answers["users"] == "pseudonyms" else {}


KIND: Final = TransformKind(
    name="pseudonyms", config=PseudonymsConfig, make=transform, detect=detect, labels=lambda _: ()
)
