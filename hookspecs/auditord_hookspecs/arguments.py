"""Secrets in the arguments of programs, which are hidden wherever auditord prints a command.

The value of an option is hidden if the option's name looks like that of a secret: ``--password=…``, ``--api-key …``,
``PGPASSWORD=…``. Names that end in ``file``, ``path``, ``dir`` or ``fd`` are places of secrets and stay readable. A
secret behind a short option (``-pSECRET``) or without an option cannot be recognised. Other users of a host may see
any argument with ``ps``, so a file or a variable is a better place for a secret.
"""

import re
import shlex
from collections.abc import Sequence
from typing import Final

_SHORT: Final = 3
"""Characters of a value that could occur in any message."""
HIDDEN: Final = "**********"

_NAME: Final = (
    r"[\w.-]*(?i:passw|passphrase|pwd|secret|token|api[_-]?key|access[_-]?key)"
    r"(?![\w.-]*(?i:file|path|dir|fd)\b)[\w.-]*"
)
_HEADER: Final = (
    r"(?i:(?:[\w-]+-)?authorization|cookie|x-[\w-]*(?:token|key)|[\w-]+-(?:token|key)): *(?:Bearer +|Basic +)?"
)
# Only the words ignore case. A character set that does would take tens of milliseconds to compile.
_PASSWORD_IN_URL: Final = re.compile(r"(?<=://)([^\s:/@]*):[^\s/@]+@")
_URL_PARAMETER: Final = re.compile(rf"([?&]{_NAME}=)[^&#\s'\"`]+")
_OPTION: Final = re.compile(rf"--?{_NAME}")
_WHOLE: Final = re.compile(rf"({_NAME}=|{_HEADER}).+", re.DOTALL)
_VALUE: Final = r"""(?:'[^']*'|"[^"]*"|[^\s'"`]+)"""
_WITHIN: Final = re.compile(rf"(?<![\w.&?-])({_NAME}=|{_HEADER}|--?{_NAME}\s+(?!-)){_VALUE}")


def names_secret(name: str) -> bool:
    """Return whether the name of a variable looks like that of a secret."""
    return re.fullmatch(_NAME, name) is not None


def hide_secrets(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command without the values of options whose names look like those of secrets."""
    shown: list[str] = []
    is_value = False
    for each in arguments:
        if is_value and not each.startswith("--"):
            shown.append(HIDDEN)
            is_value = False
            continue
        is_value = _OPTION.fullmatch(each) is not None
        shown.append(_WHOLE.sub(rf"\1{HIDDEN}", each) if _WHOLE.fullmatch(each) else hide_in_text(each))
    return shown


def show_command(arguments: Sequence[str]) -> str:
    """Return a command line for a shell, without such values."""
    return shlex.join(hide_secrets(arguments))


def hide_in_text(text: str, arguments: Sequence[str] = ()) -> str:
    """Return a URL, a command line, or a message that quotes one, without passwords and such values.

    Args:
        text: the text.
        arguments: those of the program that wrote it; it may quote any of them.
    """
    for each, shown in zip(arguments, hide_secrets(arguments), strict=True):
        if each != shown and len(each) > _SHORT:
            text = text.replace(each, shown)
    text = _URL_PARAMETER.sub(rf"\1{HIDDEN}", _PASSWORD_IN_URL.sub(rf"\1:{HIDDEN}@", text))
    return _WITHIN.sub(rf"\1{HIDDEN}", text)
