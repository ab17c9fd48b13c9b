"""Choosing what a device runs: for each public symbol, the best slice that it supports.

Owns: the rule of choice and the explanation when there is none.
Does not own: what a device provides (its agent says so) or loading (`farm.runtime`).

Invariant: pure and deterministic; a chosen section's requirements are all provided, its host stub's
too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm.artifact.abi import is_public
from farm.errors import HostMismatch, InvalidTarget, NoVariant
from farm.target import Target

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from farm.artifact.artifact import Artifact
    from farm.artifact.module import Section
    from farm.artifact.signature import Signature


@dataclass(frozen=True, slots=True)
class Choice:
    """What runs one symbol on one device."""

    symbol: str
    signature: Signature
    section: Section
    host: Section | None
    """The stub to link for an accelerator's function; None where the section is linked itself."""

    @property
    def linked(self) -> Section:
        """The section that provides the symbol to the linker."""
        return self.host or self.section


@dataclass(frozen=True, slots=True)
class _Refusal:
    section: Section
    why: str
    host_is_wrong: bool


def choose(
    artifact: Artifact, targets: Iterable[str | Target], provides: Collection[str]
) -> dict[str, Choice]:
    """Choose, for each public symbol, the first section by `Target.preference` that a device runs.

    A section may run if the device has a target of the same family and provides all that the
    section requires. A section of an accelerator also needs its host stub to run there; if it does
    not, the next variant is tried. Symbols without a slice for the device are left out.

    Parameters
    ----------
    targets
        What the device runs; only their families matter.
    provides
        What it has, such as ``arch:x86_64``; ``cpu-feature:*`` stands for every requirement of that
        class.

    Raises
    ------
    NoVariant
        No symbol has a slice for this device; the message lists what there is and what is missing.
    HostMismatch
        The only thing wrong with a symbol is that its accelerator's host stub was built for another
        host, or is absent.
    """
    families = _families(targets)
    found: dict[str, Choice] = {}
    refused: list[NoVariant | HostMismatch] = []
    for symbol, signature in artifact.symbols.items():
        if is_public(symbol):
            try:
                found[symbol] = _choose_one(artifact, symbol, signature, families, provides)
            except (NoVariant, HostMismatch) as error:
                refused.append(error)
    if refused and not found:
        raise refused[0]
    return found


def choose_private(
    artifact: Artifact, targets: Iterable[str | Target], provides: Collection[str]
) -> dict[str, Section]:
    """Return every private helper that this device can run; its symbol names its target."""
    families = _families(targets)
    found: dict[str, Section] = {}
    for symbol in artifact.symbols:
        if not is_public(symbol):
            candidates, _ = _rank(artifact, symbol, families, provides)
            found.update((symbol, section) for _, section in candidates)
    return found


def _families(targets: Iterable[str | Target]) -> set[str]:
    parsed = (it if isinstance(it, Target) else Target.parse(it, foreign=True) for it in targets)
    return {target.family for target in parsed}


def missing(requires: Iterable[str], provides: Collection[str]) -> tuple[str, ...]:
    """Return the requirements that are not provided, in order."""
    return tuple(
        requirement
        for requirement in requires
        if requirement not in provides and f"{requirement.partition(':')[0]}:*" not in provides
    )


def _choose_one(
    artifact: Artifact,
    symbol: str,
    signature: Signature,
    families: set[str],
    provides: Collection[str],
) -> Choice:
    candidates, refusals = _rank(artifact, symbol, families, provides)
    hosts = [s for s in artifact.sections if s.kind == "host" and s.symbol == symbol]
    for target, section in candidates:
        if not target.is_accelerator:
            return Choice(symbol, signature, section, None)
        for host in hosts:
            if not missing(host.requires, provides):
                return Choice(symbol, signature, section, host)
        refusals.append(_Refusal(section, _why_no_host(artifact, hosts, provides), True))
    raise _refused(symbol, refusals, families, provides)


def _rank(
    artifact: Artifact, symbol: str, families: set[str], provides: Collection[str]
) -> tuple[list[tuple[Target, Section]], list[_Refusal]]:
    candidates: list[tuple[Target, Section]] = []
    refusals: list[_Refusal] = []
    for section in artifact.sections:
        if section.symbol != symbol or section.kind != "device":
            continue
        try:
            target = Target.parse(section.target, foreign=True)
        except InvalidTarget:
            refusals.append(_Refusal(section, "unknown target here", False))
            continue
        why = _why_not(target, section, families, provides)
        if why:
            refusals.append(_Refusal(section, why, False))
        else:
            candidates.append((target, section))
    return sorted(candidates, key=lambda item: item[0].preference), refusals


def _why_not(
    target: Target, section: Section, families: set[str], provides: Collection[str]
) -> str:
    if target.family not in families:
        return f"the device runs no {target.family}"
    if target.id != section.target_id:
        return "built for another revision of this target"
    lacks = missing(section.requires, provides)
    return f"lacks {', '.join(lacks)}" if lacks else ""


def _why_no_host(artifact: Artifact, hosts: list[Section], provides: Collection[str]) -> str:
    if not hosts:
        return "its host stub is absent"
    lacks = missing(hosts[0].requires, provides)
    return (
        f"its host stub is for ({artifact.target_host}), the device's host lacks {', '.join(lacks)}"
    )


def _refused(
    symbol: str, refusals: list[_Refusal], families: set[str], provides: Collection[str]
) -> NoVariant | HostMismatch:
    ordered = sorted(refusals, key=lambda refusal: refusal.section.key)
    lines = [f"{refusal.section.target}: {refusal.why}" for refusal in ordered]
    facts: Mapping[str, str] = {
        "symbol": symbol,
        "has": ", ".join(refusal.section.target for refusal in ordered),
        "needs": ", ".join(sorted(families)),
        "provides": ", ".join(sorted(provides)),
    }
    if any(refusal.host_is_wrong for refusal in refusals):
        return HostMismatch(
            f"{symbol}: no host stub for this device ({'; '.join(lines)}); build with target_host "
            "for the device's host",
            **facts,
        )
    return NoVariant(
        f"{symbol}: no slice runs on this device ({'; '.join(lines) or 'nothing was built'}); "
        f"build for a target of {facts['needs'] or 'the device'}",
        **facts,
    )
