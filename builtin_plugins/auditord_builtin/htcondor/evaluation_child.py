"""Evaluates ClassAds in a child process with limits, since users' expressions can crash or block the library.

Run by its path with two arguments: seconds of CPU per request, and bytes of memory. It reads requests and writes
answers, each as one line of JSON. It imports nothing from auditord, so that it restarts fast after a crash.
"""

import json
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

_LARGEST = 1 << 20
"""The maximum number of characters of an ad's values."""


def main() -> None:
    """Answer each request until standard input ends."""
    seconds, memory = float(sys.argv[1]), int(sys.argv[2])
    for number in (signal.SIGTERM, signal.SIGINT):  # systemd signals all processes, but the parent decides when to stop
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    try:
        import classad2  # type: ignore[import-untyped, unused-ignore] # noqa: F401, PLC0415 after the limits
        import htcondor2  # type: ignore[import-untyped, unused-ignore] # noqa: F401, PLC0415 it has functions
    except ImportError as error:
        _answer({"missing": str(error)})
    else:
        _answer({"ready": True})
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal kills the process even within the library
        answer = _handle(line)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _answer(answer)


def _answer(answer: Mapping[str, Any]) -> None:  # Any: JSON
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()


def _handle(line: bytes) -> Mapping[str, Any]:  # Any: JSON
    import classad2  # noqa: PLC0415 after the limits

    try:
        request = json.loads(line)
        lines: Sequence[str] = request["lines"]
        ad = classad2.parseOne("\n".join(lines), parser=classad2.ParserType.Old) if lines else classad2.ClassAd()
        if len(ad) != len(lines):  # the parser silently stops at a line that is nested too deeply
            text = f"HTCondor's library stops after {len(ad)} of the {len(lines)} attributes that matter"
            return {"reason": text}
        for name, value in request["values"].items():
            ad[name] = _restore(value)
        for name, text in request["expressions"].items():
            ad[name] = _expression(text)
        texts = [_evaluate(column, ad) for column in request["columns"]]
    except Exception as error:  # noqa: BLE001 any error concerns only this ad
        return {"reason": f"{error}" or type(error).__name__}
    if (size := sum(map(len, texts))) > _LARGEST:  # a few attributes that repeat each other make a gigabyte
        return {"reason": f"the values have {size} characters, more than {_LARGEST}"}
    return {"texts": texts}


def _restore(value: Any) -> Any:  # Any: JSON; a list or mapping with ExprTrees
    """Return the value with the expressions in nested ads and lists, which the parent has marked."""
    if isinstance(value, dict):
        return {name: _restore(each) for name, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_restore(each) for each in cast("Sequence[Any]", value)]
    is_expression = isinstance(value, str) and value.startswith("\0Expr(")
    return _expression(value.removeprefix("\0Expr(").removesuffix(")/")) if is_expression else value


def _expression(text: str) -> Any:  # Any: an ExprTree
    import classad2  # noqa: PLC0415 after the limits

    try:
        return classad2.ExprTree(text)
    except Exception:  # noqa: BLE001 versions that escape every slash print strings "/Expr(…)/" in the same way
        return f"/Expr({text})/"


def _evaluate(column: str, ad: Any) -> str:  # Any: a ClassAd
    import classad2  # noqa: PLC0415 after the limits

    library: Any = classad2  # it has no types
    try:
        value = library.ExprTree(column).eval(ad)
    except Exception as error:
        raise ValueError(f"{column}: {error}") from error
    if isinstance(value, classad2.Value):  # undefined or error
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    # Format a list or ad as HTCondor does, since patterns for scores expect that.
    nested = library.ClassAd()
    nested["x"] = value
    text: str = nested.printOld()
    return text.split("=", 1)[1].strip()


if __name__ == "__main__":
    main()
