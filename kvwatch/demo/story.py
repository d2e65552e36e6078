"""What the verdict's changes are in words, a line each. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kvwatch.diagnose import Incident, incidents
from kvwatch.report import Verdict
from kvwatch.summary import where_of

_Key = tuple[str, str]


@dataclass(slots=True)
class Story:
    """Remembers which incidents were told, and whether as beginning or as firing."""

    told: dict[_Key, bool] = field(default_factory=dict)
    quiet: bool = False

    def lines(self, said: Verdict, second: float) -> Iterator[str]:
        """A line for each change since the last verdict: a critical incident begins, one fires, one is over, nothing is left."""
        now = {(i.roots[0].rule, i.roots[0].subject.target): i for i in incidents(said.findings) if i.roots[0].severity != "info"}
        yield from self._passed(now, second)
        for key, incident in now.items():
            fires = any(f.status == "firing" for f in incident.roots)
            if self.told.get(key) not in {fires, True} and (fires or incident.roots[0].severity == "critical"):
                yield from _told(incident, where_of(incident, said.ranks), second, fires=fires)
                self.told[key] = fires
        was_quiet, self.quiet = self.quiet, not self.told and said.status != "unknown"
        if self.quiet and not was_quiet:
            yield _line(second, said.status, said.summary)

    def _passed(self, now: Mapping[_Key, Incident], second: float) -> Iterator[str]:
        """What fired and is over; what only began and did not last is worth no line."""
        for key in [k for k in self.told if k not in now]:
            if self.told.pop(key):
                yield _line(second, "over", f"{key[1]}: {key[0]}")


def _told(incident: Incident, where: str, second: float, *, fires: bool) -> Iterator[str]:
    root = incident.roots[0]
    name = root.rule if root.reason is None else f"{root.rule}, {root.reason}"
    effects = ", ".join(dict.fromkeys(f.rule for f in incident.effects))
    text = f"{where}: {root.title} ({name}{'; causes ' + effects if effects else ''})"
    yield _line(second, root.severity.upper() if fires else "beginning", text)
    if fires and root.severity == "critical" and root.remedy:
        yield _line(None, "", f"Do first: {root.remedy[0].do}")


def _line(second: float | None, kind: str, text: str) -> str:
    return f"{'' if second is None else f'{second:.0f} s':>6}  {kind:9}  {text}"
