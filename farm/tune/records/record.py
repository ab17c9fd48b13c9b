"""What a record holds, and the values that it is kept and found under.

Owns: those values, checked, and their plain form. Does not own: where they are kept (`database`).

Invariant: `Record.from_plain(record.to_plain()) == record`; a record's id depends on what it says and on nothing else,
so that importing one twice adds nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from farm.errors import FarmError, InvalidInput
from farm.ir import Function, parse, serialise
from farm.tune.expression import Value

MAX_TEXT = 1 << 20
MOST = 1e300
"""Of any number, so that what is computed of it is finite too."""
_HALF = re.compile("[\ud800-\udfff]")
"""Half of a character, which no encoding can express."""


class Outcome(StrEnum):
    """How a trial ended; only OK has a value that counts.

    As `farm.measuring.Status`, and what can go wrong before there is anything to measure.
    """

    OK = "ok"
    SLOW = "slow"
    WRONG = "wrong"
    CRASH = "crash"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    FORGED = "forged"
    BUILD_FAILED = "build_failed"
    QUARANTINED = "quarantined"
    """Two devices were lost while it ran."""
    SCHEDULE_REFUSED = "schedule_refused"


@dataclass(frozen=True, slots=True)
class Workload:
    """What is tuned: a function, whatever its name.

    Attributes
    ----------
    code
        Its canonical bytes.
    """

    name: str
    code: bytes

    @staticmethod
    def of(function: Function) -> Workload:
        """Return the workload of a function, without its target."""
        return Workload(function.name, serialise(replace(function, target=None)))

    @property
    def id(self) -> str:
        """16 hex digits that stand for the computation; functions that differ in their name have one."""
        nameless = replace(self.function, name="workload")
        return hashlib.sha256(serialise(nameless)).hexdigest()[:16]

    @property
    def function(self) -> Function:
        """The function in canonical form."""
        return parse(self.code)


@dataclass(frozen=True, slots=True)
class Key:
    """Where values are comparable.

    Attributes
    ----------
    workload
        Its id.
    target
        Canonical text.
    host
        Stands for the device and its host.
    cache
        The cache mode.
    toolchain
        Of the compiler.
    """

    workload: str
    target: str
    host: str
    cache: str
    toolchain: str


@dataclass(frozen=True, slots=True)
class Record:
    """One trial: a candidate, and what came of it on a device.

    Attributes
    ----------
    template
        What the configuration belongs to.
    trace
        The schedule's steps as JSON: what `farm.schedule.Trace` replays; empty if there was none.
    value
        Median of a call in `unit`; None unless the outcome is OK.
    samples
        Every raw sample, column by column, as measured.
    run
        Of which tuning.
    wall
        When, in seconds since 1970.
    """

    key: Key
    template: str
    configuration: Mapping[str, Value]
    trace: str
    outcome: Outcome
    value: float | None = None
    unit: str = ""
    clock: str = ""
    timing_class: str = ""
    grade: str = ""
    checked: bool = False
    device_id: str = ""
    error_code: str = ""
    error_message: str = ""
    samples: Mapping[str, Any] = field(default_factory=dict)
    statistics: Mapping[str, float] = field(default_factory=dict)
    fingerprint: Mapping[str, str | None] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)
    run: str = ""
    wall: float = 0.0

    def __post_init__(self) -> None:
        good = self.value is not None and is_number(self.value) and self.value > 0
        if good != (self.outcome is Outcome.OK):
            raise InvalidInput(
                f"record: outcome {self.outcome} with value {self.value}; ok ones have a number above 0, others none"
            )

    @property
    def id(self) -> str:
        """Digest of all that it says."""
        return hashlib.sha256(canonical(self.to_plain()).encode()).hexdigest()[:32]

    @property
    def configuration_text(self) -> str:
        """The configuration as canonical JSON."""
        return canonical(self.configuration)

    def to_plain(self) -> dict[str, Any]:
        """Return it as what JSON has."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        del plain["key"]
        for name in ("configuration", "samples", "statistics", "fingerprint", "phases"):
            plain[name] = dict(plain[name])
        return {**asdict(self.key), **plain, "outcome": self.outcome.value}

    @staticmethod
    def from_plain(plain: Mapping[str, Any]) -> Record:
        """Return the record that a plain form says.

        Raises
        ------
        InvalidInput
            It is malformed; names the field.
        """
        known = {each.name: each.type for each in fields(Record) if each.name != "key"}
        keys = [each.name for each in fields(Key)]
        checked(plain, {**dict.fromkeys(keys, "str"), **known}, "record")
        own = {name: plain[name] for name in known}
        own["outcome"] = _outcome(plain["outcome"])
        return Record(Key(**{name: plain[name] for name in keys}), **own)


def workload_to_plain(workload: Workload) -> dict[str, Any]:
    """Return a workload as what JSON has."""
    return {
        "id": workload.id,
        "name": workload.name,
        "code": base64.b64encode(workload.code).decode(),
    }


def workload_from_plain(plain: Mapping[str, Any]) -> Workload:
    """Return the workload that a plain form says; raises InvalidInput if it is malformed or not the one named."""
    checked(plain, dict.fromkeys(("id", "name", "code"), "str"), "workload")
    try:
        found = Workload(plain["name"], base64.b64decode(plain["code"], validate=True))
        named = found.id
    except (ValueError, FarmError) as error:
        raise InvalidInput(f"workload {plain['name'][:80]}: no function ({error})") from error
    if named != plain["id"]:
        raise InvalidInput(
            f"workload {plain['name'][:80]}: its function is {named}, not {plain['id'][:80]}; export it again"
        )
    return found


def canonical(value: Any) -> str:  # noqa: ANN401 - what JSON has
    """Return JSON that is equal for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=dict)


_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "bool": (bool,),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "Outcome": (str,),
}


def is_number(value: object) -> bool:
    """Tell whether a value is a number that databases, JSON and plots can all express."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return -MOST <= value <= MOST  # False for what is not a number


def checked(plain: Mapping[str, Any], known: Mapping[str, Any], what: str) -> None:
    """Raise InvalidInput unless a plain form has exactly these fields, each of its kind."""
    if not isinstance(plain, Mapping) or set(plain) != set(known):
        shown = ", ".join(sorted(map(str, plain)))[:500] if isinstance(plain, Mapping) else "none"
        raise InvalidInput(f"{what}: has fields {shown}; it needs {', '.join(known)}")
    for name, kind in known.items():
        value = plain[name]
        wanted = _KINDS.get(str(kind), (dict,))
        wrong = not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted)
        if wrong or not _is_sane(value):
            raise InvalidInput(f"{what}: bad {name} ({_shown(value)}); it is {kind}")
        is_right = _INNER.get(name)
        if is_right is None:
            continue
        for key, inner in value.items():
            if not _is_sane(key) or not is_right(key, inner):
                raise InvalidInput(f"{what}: bad {name} ({_shown(key)}: {_shown(inner)})")


def _is_sane(value: object) -> bool:
    """Tell whether a text or a number can be kept, and is not too large; anything else is."""
    if isinstance(value, str):
        return len(value) <= MAX_TEXT and not _HALF.search(value)
    return not isinstance(value, int | float) or isinstance(value, bool) or is_number(value)


def _is_column(value: object) -> bool:
    """Tell whether a value is a list of numbers; it is looked at as a whole, since there are many."""
    if not isinstance(value, list) or not set(map(type, value)) <= {int, float}:
        return False
    return not value or (
        min(value) >= -MOST and max(value) <= MOST and not any(map(_is_nan, value))
    )


def _is_nan(value: float) -> bool:
    return value != value


def _is_sample_column(name: str, value: object) -> bool:
    match name:
        case "calls":
            return type(value) is int and 0 < value <= MOST
        case "observed":
            return isinstance(value, dict) and all(map(_is_column, value.values()))
        case _:
            return _is_column(value)


_INNER: dict[str, Callable[[str, Any], bool]] = {
    "configuration": lambda _, value: isinstance(value, int | float | str) and _is_sane(value),
    "samples": _is_sample_column,
    "statistics": lambda _, value: is_number(value),
    "phases": lambda _, value: is_number(value),
    "fingerprint": lambda _, value: value is None or (isinstance(value, str) and _is_sane(value)),
}
"""What is inside of fields that hold several values, by their names."""


def _shown(value: object) -> str:
    return ascii(value)[:80]


def _outcome(text: str) -> Outcome:
    try:
        return Outcome(text)
    except ValueError:
        raise InvalidInput(
            f"record: unknown outcome ({text[:80]!r}); use one of {', '.join(Outcome)}"
        ) from None
