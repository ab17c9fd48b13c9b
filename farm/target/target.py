"""The target type: parse, canonical text, id, requirements.

Owns: the kinds of target and their options, and the one form that targets of installed accelerators have.
Does not own: what this machine is (`host`), whether LLVM knows a name (`farm.codegen`), which accelerators are
installed (`installed`).

Invariant: `Target.parse(str(target)) == target`; whatever generated code depends on is in the id.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from farm.ea.config import find_config
from farm.errors import InvalidTarget
from farm.target import host
from farm.target.cpus import RISCV_LINUX, cpu_features
from farm.target.installed import NAME, find_installed, usable_names
from farm.target.tags import TAGS

_OPTION = re.compile(r"-([a-z][a-z0-9-]*)=(\S+)")
_TRIPLE = re.compile(r"[A-Za-z0-9_.]+(-[A-Za-z0-9_.]+){1,3}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FEATURE = re.compile(r"[+-][A-Za-z0-9][A-Za-z0-9._-]*")
_CONFIG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAX_TEXT = 1024


@dataclass(frozen=True, slots=True)
class Target:
    """What a function is compiled for, such as ``llvm -mtriple=aarch64-linux-gnu -mcpu=generic``.

    Make one with `Target.parse`; `str` gives the canonical text.

    Attributes
    ----------
    host
        What the code that calls this target's functions is compiled for, if the author says so. It does not change
        the target's own code, so it counts neither in comparisons nor in the text and id.
    """

    kind: str
    options: tuple[tuple[str, str], ...]
    host: Target | None = field(default=None, compare=False)

    @staticmethod
    def parse(text: str, host: str | Target | None = None, *, foreign: bool = False) -> Target:
        """Parse a target in TVM's form: a kind, then ``-option=value`` pairs; defaults are filled in.

        ``llvm`` alone means this machine. A tag (`Target.from_tag`) may stand in place of all. The kind of an
        installed accelerator has one option, ``-config``, whose default is the kind's own name.

        Parameters
        ----------
        foreign
            Take kinds of accelerators that are not installed here too: for texts that others checked.

        Raises
        ------
        InvalidTarget
            The kind or an option is unknown, given twice, or has a malformed value; the message lists what is known.
        """
        if len(text) > MAX_TEXT:
            raise InvalidTarget(f"target: text too long ({len(text)}); use at most {MAX_TEXT}")
        words = text.split()
        if len(words) == 1 and words[0] in TAGS:
            return Target.from_tag(words[0], host)
        kind = _kind_named(words[0] if words else "", foreign)
        if kind is None:
            kinds = ", ".join(sorted((*KINDS, *usable_names())))
            raise InvalidTarget(
                f"target: unknown kind ({text!r}); known kinds are {kinds}, known tags {', '.join(sorted(TAGS))}"
            )
        given: dict[str, str] = {}
        for word in words[1:]:
            match = _OPTION.fullmatch(word)
            if not match or match[1] not in kind.options:
                known = ", ".join(f"-{name}=" for name in kind.options) or "none"
                raise InvalidTarget(
                    f"target {kind.name}: unknown option ({word!r}); known: {known}"
                )
            if match[1] in given:
                raise InvalidTarget(
                    f"target {kind.name}: -{match[1]} given twice ({text!r}); keep one"
                )
            given[match[1]] = match[2]
        return Target(kind.name, kind.complete(given), None if host is None else as_target(host))

    @staticmethod
    def from_tag(tag: str, host: str | Target | None = None) -> Target:
        """Return the target of a well-known board, such as ``raspberrypi-4b``.

        Raises
        ------
        InvalidTarget
            There is no such tag; the message lists them.
        """
        text = TAGS.get(tag)
        if text is None:
            raise InvalidTarget(
                f"target tag: unknown ({tag[:80]!r}); known tags are {', '.join(sorted(TAGS))}"
            )
        return Target.parse(text, host)

    @staticmethod
    def of_family(family: str) -> Target:
        """Return a usual target of a family such as ``llvm/aarch64``, to ask what builds the family.

        Raises
        ------
        InvalidTarget
            It is no family; the message lists those of known boards, this machine and accelerators. Whether LLVM knows
            an architecture, only a compiler can tell.
        """
        kind, _, arch = family.partition("/")
        system = "unknown-unknown" if arch.startswith("wasm") else "linux-gnu"
        try:
            target = Target.parse(f"{kind} -mtriple={arch}-{system}" if arch else kind)
        except InvalidTarget:
            target = None
        if target is None or target.family != family:
            known = {Target.parse(text).family for text in (*KINDS, *TAGS, *usable_names())}
            raise InvalidTarget(
                f"builds: unknown family ({family[:80]!r}); known are {', '.join(sorted(known))}, and llvm/ARCH of "
                "any other architecture of LLVM"
            )
        return target

    def __str__(self) -> str:
        """Return the canonical text."""
        return " ".join([self.kind, *(f"-{name}={value}" for name, value in self.options)])

    def option(self, name: str) -> str | None:
        """Return the value of an option, or None if it is not set."""
        return dict(self.options).get(name)

    @property
    def id(self) -> str:
        """16 hex digits that stand for everything generated code depends on."""
        facts = str(self) + _rules(self.kind).identity(self)
        return hashlib.sha256(facts.encode()).hexdigest()[:16]

    @property
    def is_accelerator(self) -> bool:
        """Whether functions of this target are launched by a host instead of called directly."""
        return _rules(self.kind).accelerator

    @property
    def is_plug_in(self) -> bool:
        """Whether the kind is that of an accelerator which a package brings."""
        return self.kind not in KINDS

    @property
    def family(self) -> str:
        """What an agent says it builds: ``llvm/aarch64``, ``ea``."""
        triple = self.option("mtriple")
        return f"{self.kind}/{triple.partition('-')[0]}" if triple else self.kind

    @property
    def requires(self) -> tuple[str, ...]:
        """What a device must provide to run this target's code, sorted."""
        return tuple(sorted(_rules(self.kind).requires(self)))

    @property
    def preference(self) -> tuple[int, int, str]:
        """Sort key among variants: accelerators first, then the most demanding code, then the text."""
        return (0 if self.is_accelerator else 1, -len(self.requires), str(self))


@dataclass(frozen=True, slots=True)
class TargetKind:
    """One kind of target and its rules."""

    name: str
    options: tuple[str, ...]
    accelerator: bool
    complete: Callable[[dict[str, str]], tuple[tuple[str, str], ...]]
    requires: Callable[[Target], set[str]]
    identity: Callable[[Target], str]


def _kind_named(name: str, foreign: bool) -> TargetKind | None:
    """Return the rules of a kind; raises InvalidTarget for an accelerator that is installed but cannot be used."""
    if name in KINDS:
        return KINDS[name]
    if foreign:
        return _rules(name) if NAME.fullmatch(name) else None
    found = find_installed(name)
    if found is None:
        return None
    if found.problem:
        raise InvalidTarget(f"target {name}: {found.problem}")
    return _rules(name)


def _rules(name: str) -> TargetKind:
    """Return the rules of a kind that is known, or of an accelerator's."""
    return KINDS.get(name) or _accelerator(name)


@functools.lru_cache(maxsize=64)
def _accelerator(name: str) -> TargetKind:
    """Return the rules of an accelerator's kind: its device has the configuration that the code is for."""

    def complete(given: dict[str, str]) -> tuple[tuple[str, str], ...]:
        config = given.get("config", name)
        if not _CONFIG.fullmatch(config):
            raise InvalidTarget(
                f"target {name}: malformed configuration ({config[:80]!r}); use letters, digits, dots and dashes"
            )
        return (("config", config),)

    return TargetKind(
        name=name,
        options=("config",),
        accelerator=True,
        complete=complete,
        requires=lambda target: {f"{name}-config:{target.option('config')}"},
        identity=lambda target: "",
    )


def as_target(value: str | Target) -> Target:
    """Return `value` as a target, parsing text."""
    return value if isinstance(value, Target) else Target.parse(value)


def _complete_llvm(given: dict[str, str]) -> tuple[tuple[str, str], ...]:
    triple = given.get("mtriple")
    if triple is None:
        triple, default_cpu = host.host_triple(), host.host_cpu()
    else:
        triple, default_cpu = _canonical_triple(triple), "generic"
    cpu = given.get("mcpu", default_cpu)
    if not _NAME.fullmatch(cpu):
        raise InvalidTarget(
            f"target llvm: malformed CPU name ({cpu!r}); use a name such as cortex-a72"
        )
    options = [("mtriple", triple), ("mcpu", cpu)]
    if "mattr" in given:
        options.append(("mattr", _canonical_features(given["mattr"])))
    if "debug" in given:
        if given["debug"] != "lines":
            raise InvalidTarget(f"target llvm: debug {given['debug'][:80]!r}; use -debug=lines")
        options.append(("debug", "lines"))
    return tuple(options)


def _canonical_triple(text: str) -> str:
    if not _TRIPLE.fullmatch(text):
        raise InvalidTarget(
            f"target llvm: malformed triple ({text!r}); use arch-os-abi such as aarch64-linux-gnu"
        )
    arch, *rest = text.split("-")
    if len(rest) == 3 and rest[0] in ("unknown", "pc", "none"):
        rest = rest[1:]
    return "-".join([host.canonical_arch(arch), *rest])


def _canonical_features(text: str) -> str:
    chosen: dict[str, str] = {}
    for feature in text.split(","):
        if not _FEATURE.fullmatch(feature):
            raise InvalidTarget(
                f"target llvm: malformed feature ({feature!r}); use +name or -name, comma-separated"
            )
        if chosen.setdefault(feature[1:], feature) != feature:
            raise InvalidTarget(f"target llvm: {feature[1:]} both on and off ({text!r}); keep one")
    return ",".join(chosen[name] for name in sorted(chosen))


def _llvm_requires(target: Target) -> set[str]:
    triple, cpu = target.option("mtriple") or "", target.option("mcpu") or "generic"
    arch = triple.partition("-")[0]
    required = {f"arch:{arch}"}
    features = cpu_features(arch, cpu)
    if arch == "riscv64" and cpu == "generic" and "linux" in triple:
        features = RISCV_LINUX
    if features is None:
        required.add(f"cpu:{cpu}")
    else:
        required.update(f"cpu-feature:{name}" for name in features)
    for feature in (target.option("mattr") or "").split(","):
        if feature.startswith("+"):
            required.add(f"cpu-feature:{feature[1:]}")
        elif feature:
            required.discard(f"cpu-feature:{feature[1:]}")
    return required


def _complete_ea(given: dict[str, str]) -> tuple[tuple[str, str], ...]:
    name = given.get("config", "ea16")
    find_config(name)  # raises InvalidTarget and lists the known ones
    return (("config", name),)


KINDS: dict[str, TargetKind] = {
    kind.name: kind
    for kind in (
        TargetKind(
            name="llvm",
            options=("mtriple", "mcpu", "mattr", "debug"),
            accelerator=False,
            complete=_complete_llvm,
            requires=_llvm_requires,
            identity=lambda target: "",
        ),
        TargetKind(
            name="ea",
            options=("config",),
            accelerator=True,
            complete=_complete_ea,
            requires=lambda target: {f"ea-config:{target.option('config')}"},
            identity=lambda target: find_config(target.option("config") or "").config_id,
        ),
        TargetKind(
            name="opencl",
            options=(),
            accelerator=True,
            complete=lambda given: (),
            requires=lambda target: {"opencl-c:1.2"},
            identity=lambda target: "",
        ),
    )
}
