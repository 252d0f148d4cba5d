"""Plays condor_history over history files, by HTCondor's own ClassAds; and, as asked, cuts, caps, fails and hangs.

The options, the order and the way of output follow HTCondor's manual page and the program's published source (versions
8.8 to 25): ads are printed newest first, ``-since`` ends the scan before the ad for which it is true, a limit of the
scan ends it silently with exit code 0, a schedd that knows no ``-forwards`` answers backwards.

Usage as a program: ``python history_player.py FOLDER [options of condor_history]``. ``FOLDER/NAME.history`` is the
history of schedd NAME (``local`` without ``-name``), ``FOLDER/faults.json`` says what goes wrong, by NAME.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import classad2  # type: ignore[import-untyped, unused-ignore] # HTCondor's wheel has no types

EPOCH = 1_774_785_600  # 2026-03-29T12:00:00Z
_WITH_VALUE = {"-name", "-pool", "-file", "-since", "-limit", "-scanlimit", "-attributes"}
_FLAGS = {"-epochs", "-forwards", "-backwards", "-json", "-jsonl"}


@dataclass
class Call:
    """An argument vector, understood."""

    options: dict[str, str] = field(default_factory=dict[str, str])
    columns: list[str] = field(default_factory=list[str])
    job: str | None = None


def understand(arguments: Sequence[str]) -> Call:
    call, rest = Call(), list(arguments)
    while rest:
        option = rest.pop(0)
        if option == "-af":
            while rest and not rest[0].startswith("-"):
                call.columns.append(rest.pop(0))
        elif option in _WITH_VALUE:
            call.options[option] = rest.pop(0)
        elif option in _FLAGS:
            call.options[option] = ""
        else:
            assert not option.startswith("-"), f"condor_history has no option {option}"
            call.job = option
    return call


def read_ads(path: Path) -> list[Any]:
    """The ads of a history file, the oldest first."""
    texts: list[list[str]] = [[]]
    for line in path.read_text().splitlines():
        if line.startswith("***"):
            texts.append([])
        else:
            texts[-1].append(line)
    return [classad2.parseOne("\n".join(each), parser=classad2.ParserType.Old) for each in texts if each]


def chosen(call: Call, ads: Sequence[Any], fault: Mapping[str, Any]) -> Iterator[Any]:
    """The ads that are printed."""
    forwards = "-forwards" in call.options and not fault.get("old")
    stop = classad2.ExprTree(call.options["-since"]) if "-since" in call.options else None
    cap = int(fault.get("cap", call.options.get("-scanlimit", sys.maxsize)))
    limit = int(call.options.get("-limit", sys.maxsize))
    printed = 0
    for number, ad in enumerate(ads if forwards else reversed(ads)):
        if number >= cap or printed >= limit or (stop is not None and stop.eval(ad) is True):
            return
        if call.job is None or call.job in {str(ad["ClusterId"]), f"{ad['ClusterId']}.{ad['ProcId']}"}:
            printed += 1
            yield ad


def text_of(value: Any) -> str:
    """As -af prints it."""
    if isinstance(value, classad2.Value):
        return str(value.name).lower()
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    one = classad2.ClassAd()
    one["x"] = value
    return str(one.printOld().split("=", 1)[1].strip())


def print_ads(call: Call, ads: Sequence[Any]) -> str:
    if call.columns:
        rows = ([text_of(classad2.ExprTree(column).eval(ad)) for column in call.columns] for ad in ads)
        return "".join(" ".join(row) + "\n" for row in rows)
    documents = [json.loads(projected(ad, call.options["-attributes"].split(",")).printJson()) for ad in ads]
    if "-jsonl" in call.options:
        return "".join(f"{json.dumps(document)}\n" for document in documents)
    return "[\n" + ",\n".join(json.dumps(document, indent=2) for document in documents) + "\n]\n"


def projected(ad: Any, names: Sequence[str]) -> Any:
    made = classad2.ClassAd()
    for name in names:
        if name in ad:
            made[name] = ad[name]
    return made


@dataclass
class Player:
    """A pool of schedds, their histories being files in a folder."""

    folder: Path

    def run(self, arguments: Sequence[str]) -> tuple[str, str, int]:
        """Standard output, standard error, exit code."""
        call = understand(arguments)
        name = call.options.get("-name", "local")
        fault = self.faults().get(name, {})
        if fault.get("hang"):
            time.sleep(3600)
        if fault.get("fail"):
            return "", "Failed to receive remote ad.", 1
        path = self.folder / f"{name}.history"
        ads = list(chosen(call, read_ads(path) if path.exists() else [], fault))
        output = print_ads(call, ads)
        if "cut" in fault:
            output = output[: int(len(output) * fault["cut"])]
        if "lines" in fault:
            output = "".join(output.splitlines(keepends=True)[: fault["lines"]])
        return output, "", int(fault.get("exit", 0))

    def faults(self) -> dict[str, dict[str, Any]]:
        path = self.folder / "faults.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def disturb(self, **faults: Mapping[str, Any]) -> None:
        (self.folder / "faults.json").write_text(json.dumps(faults))

    def add(self, schedd: str, cluster: int, **attributes: Any) -> str:
        """Append a job to a schedd's history; returns its GlobalJobId."""
        ad = job_ad(schedd, cluster, **attributes)
        with (self.folder / f"{schedd}.history").open("a") as file:
            file.write(history_text(ad))
        return str(ad.get("GlobalJobId"))

    def rotate(self, schedd: str, keep: int) -> None:
        """Forget all but the newest ads."""
        path = self.folder / f"{schedd}.history"
        ads = read_ads(path) if path.exists() else []
        path.write_text("".join(history_text(ad) for ad in ads[len(ads) - min(keep, len(ads)) :]))


def job_ad(schedd: str, cluster: int, **attributes: Any) -> Any:
    """A finished job; an attribute given as None is left out."""
    end = attributes.pop("end", EPOCH + cluster)
    known = {
        "GlobalJobId": f"{schedd}#{cluster}.0#{end - 7200}",
        "ClusterId": cluster,
        "ProcId": 0,
        "Owner": "alice",
        "VoName": "atlas",
        "JobStatus": 4,
        "JobUniverse": 5,
        "NumJobStarts": 1,
        "NumShadowStarts": 1,
        "LastMatchTime": end - 3600,
        "JobCurrentStartDate": end - 3598,
        "CompletionDate": end,
        "EnteredCurrentStatus": end,
        "CpusProvisioned": 4,
        "MemoryProvisioned": 8192,
        "RemoteUserCpu": 100.75,
        "RemoteSysCpu": 2.5,
        "LastRemoteHost": "slot1_1@wn1.a.example.org",
    }
    ad = classad2.ClassAd()
    for name, value in {**known, **attributes}.items():
        if value is not None:
            ad[name] = value
    return ad


def history_text(ad: Any) -> str:
    """As the schedd appends it: old ClassAd syntax, then the line that ends it."""
    body = "\n".join(line for line in ad.printOld().splitlines() if line)
    return f'{body}\n*** Offset = 0 ClusterId = {ad["ClusterId"]} ProcId = {ad["ProcId"]} Owner = "x"\n'


def main() -> None:
    output, complaint, code = Player(Path(sys.argv[1])).run(sys.argv[2:])
    sys.stdout.write(output)
    sys.stderr.write(complaint)
    sys.exit(code)


if __name__ == "__main__":
    main()
