"""Plays condor_history over history files, by HTCondor's own ClassAds; and, as asked, cuts, caps, fails and hangs.

The options, the order and the form of the output are those of HTCondor 24.0.23, as recorded from a pool (``recorded/``;
a test compares): ads are printed newest first, ``-since`` ends the scan before the ad for which it is true. From the
manual page and the published source (8.8 to 25): a limit of the scan ends it silently with exit code 0, a schedd that
knows no ``-forwards`` answers backwards. Like the real one it evaluates what users wrote for ``-af``, which may end it.

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
import htcondor2  # type: ignore[import-untyped, unused-ignore] # noqa: F401 brings the functions that condor_history has

EPOCH = 1_774_785_600  # 2026-03-29T12:00:00Z
_WITH_VALUE = {"-name", "-pool", "-file", "-since", "-limit", "-attributes", "-constraint"}
_FLAGS = {"-epochs", "-forwards", "-backwards", "-json", "-jsonl", "-long"}


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
    for line in path.read_text().split("\n"):
        if line.startswith("***"):
            texts.append([])
        else:
            texts[-1].append(line)
    return [classad2.parseOne("\n".join(each), parser=classad2.ParserType.Old) for each in texts if any(each)]


def chosen(call: Call, ads: Sequence[Any], fault: Mapping[str, Any]) -> Iterator[Any]:
    """The ads that are printed."""
    forwards = "-forwards" in call.options and not fault.get("old")
    stop = classad2.ExprTree(call.options["-since"]) if "-since" in call.options else None
    only = classad2.ExprTree(call.options.get("-constraint", "true"))
    cap = int(fault.get("cap", sys.maxsize))
    limit = int(call.options.get("-limit", sys.maxsize))
    printed = 0
    for number, ad in enumerate(ads if forwards else reversed(ads)):
        if number >= cap or printed >= limit or (stop is not None and stop.eval(ad) is True):
            return
        jobs = {None, str(ad["ClusterId"]), f"{ad['ClusterId']}.{ad['ProcId']}"}
        if call.job in jobs and only.eval(ad) is True:
            printed += 1
            yield ad


def evaluated(column: str, ad: Any) -> Any:
    if column in ad and column == "HangsThePlayer":
        time.sleep(3600)
    library: Any = classad2  # it has no types
    try:
        return library.ExprTree(column).eval(ad)
    except library.ClassAdException:  # such as random(0)
        return library.Value.Error


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
        rows = ([text_of(evaluated(column, ad)) for column in call.columns] for ad in ads)
        return "".join(" ".join(row) + "\n" for row in rows)
    if "-long" in call.options:
        return "".join(f"{long_text(ad)}\n" for ad in ads)
    names = call.options.get("-attributes")
    texts = [json_text(ad if names is None else projected(ad, names.split(","))) for ad in ads]
    if "-jsonl" in call.options:
        return "".join(one_line(text) + "\n" for text in texts)
    return "[\n" + ",\n".join(texts) + "]\n"


def long_text(ad: Any) -> str:
    """As -long and history files have it: attributes in the order of their names."""
    return "".join(f"{line}\n" for line in sorted(ad.printOld().split("\n"), key=str.lower) if line)


def json_text(ad: Any) -> str:
    """As -json prints it: attributes in the order of their names."""
    _, *lines, _ = ad.printJson().strip().split("\n")
    members: list[list[str]] = []
    for line in lines:  # a nested ad takes several lines
        if line.startswith('  "'):
            members.append([line.removesuffix(",")])
        else:
            members[-1].append(line if line[:3] != "  }" and line[:3] != "  ]" else line.removesuffix(","))
    ordered = sorted(("\n".join(each) for each in members), key=str.lower)
    return "{\n" + ",\n".join(ordered) + "\n}\n"


def one_line(text: str) -> str:
    return "".join(line.strip() for line in text.split("\n"))


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
        if "-forwards" in call.options and "-since" in call.options:
            return "", "Error: Argument -forwards cannot be combined with -since.\n", 1
        path = Path(call.options.get("-file", self.folder / f"{name}.history"))
        if "-file" in call.options and not path.exists():
            return "", f"Error opening history file {path}: No such file or directory\n", 1
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
        self.append(schedd, history_text(ad))
        return str(ad.get("GlobalJobId"))

    def append(self, schedd: str, text: str) -> None:
        """Append an ad as it is to a schedd's history."""
        with (self.folder / f"{schedd}.history").open("a") as file:
            file.write(text)

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
    job = f"ClusterId = {ad['ClusterId']} ProcId = {ad['ProcId']}"
    return f'{long_text(ad)}*** Offset = 0 {job} Owner = "x" CompletionDate = {EPOCH} CurrentTime = {EPOCH}\n'


def main() -> None:
    output, complaint, code = Player(Path(sys.argv[1])).run(sys.argv[2:])
    sys.stdout.write(output)
    sys.stderr.write(complaint)
    sys.exit(code)


if __name__ == "__main__":
    main()
