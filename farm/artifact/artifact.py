"""Artifacts: everything that was built for one request, as one value and one file.

Owns: putting modules together, taking slices, merging, and the checks across sections.
Does not own: the bytes (`farm.artifact.container`), choosing a slice for a device
(`farm.artifact.choice`), or running it.

Invariant: sections are sorted and unique by (symbol, kind, target id); all sections of a symbol
share one signature; `Artifact.from_bytes(a.to_bytes()) == a`, and equal artifacts have equal bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from farm.artifact import container
from farm.artifact.container import Entry
from farm.artifact.manifest import Manifest, decode_manifest, encode_manifest
from farm.artifact.module import BuiltModule, Kind, Section, SectionKey
from farm.core.digest import Digest, digest_of
from farm.core.files import read_regular, regular_size, write_atomic
from farm.errors import (
    ArtifactCorrupt,
    ArtifactVersion,
    DuplicateSymbol,
    HostMismatch,
    InvalidInput,
    InvalidTarget,
    NoVariant,
)
from farm.target import Target, as_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from farm.artifact.signature import Signature

_KIND_OF: dict[int, Kind] = {container.KIND_DEVICE: "device", container.KIND_HOST: "host"}
_NUMBER_OF = {name: number for number, name in _KIND_OF.items()}


@dataclass(frozen=True, slots=True)
class Artifact:
    """What one build gave. Make one with `assemble`, `Artifact.from_bytes` or `Artifact.load`."""

    target_host: str
    sections: tuple[Section, ...]
    signatures: tuple[tuple[str, Signature], ...]

    @property
    def symbols(self) -> Mapping[str, Signature]:
        """The signature of each symbol, private helpers included, sorted by symbol."""
        return MappingProxyType(dict(self.signatures))

    @property
    def digest(self) -> Digest:
        """Digest of `to_bytes`."""
        return digest_of(self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the `.farm` file: the same bytes for equal artifacts."""
        manifest = Manifest(
            target_host=self.target_host,
            targets={section.target_id: section.target for section in self.sections},
            symbols=self.symbols,
            toolchains={section.key: section.toolchain for section in self.sections},
        )
        head = Entry(
            container.KIND_MANIFEST, 0, 1, "", "", "farm-manifest", (), encode_manifest(manifest)
        )
        return container.encode([head, *map(_entry, self.sections)])

    @staticmethod
    def from_bytes(data: bytes) -> Artifact:
        """Read a `.farm` file and check all of it; nothing in it is executed.

        Sections of unknown optional kinds are left out.

        Raises
        ------
        ArtifactTruncated
            It ends early; copy it again.
        ArtifactCorrupt
            A digest or a field is wrong; copy or build it again.
        ArtifactVersion
            It needs a newer reader.
        """
        _, entries = container.decode(data)
        if not entries or entries[0].kind != container.KIND_MANIFEST:
            raise _corrupt("the first section is no manifest")
        manifest = decode_manifest(entries[0].data)
        known = [entry for entry in entries[1:] if _is_known(entry)]
        try:
            sections = tuple(_section(entry, manifest) for entry in known)
        except InvalidInput as error:
            if isinstance(error, ArtifactCorrupt):
                raise
            raise _corrupt(error.message) from error
        keys = [section.key for section in sections]
        if keys != sorted(set(keys)):
            raise _corrupt("sections are not sorted and unique")
        if {key.symbol for key in keys} != set(manifest.symbols):
            raise _corrupt("the manifest's symbols are not those of the sections")
        return Artifact(manifest.target_host, sections, tuple(sorted(manifest.symbols.items())))

    @staticmethod
    def load(path: Path | str) -> Artifact:
        """Read the file at `path`.

        Raises
        ------
        ArtifactError
            As `from_bytes`.
        InvalidInput
            It is no regular file.
        OSError
            The file cannot be read.
        """
        path = Path(path)
        size = regular_size(path)
        if size > container.MAX_FILE_BYTES:
            raise _corrupt(f"{path.name} is too large ({size} bytes)")
        return Artifact.from_bytes(read_regular(path))

    def save(self, path: Path | str) -> None:
        """Write the file whole or not at all."""
        write_atomic(Path(path), self.to_bytes())

    def thin(self, targets: Iterable[str | Target]) -> Artifact:
        """Return only the slices for `targets`, with the host stubs that these still need.

        Raises
        ------
        NoVariant
            Nothing was built for any of them; the message lists what there is.
        """
        wanted = {str(as_target(target)) for target in targets}
        device = [s for s in self.sections if s.kind == "device" and s.target in wanted]
        launched = {s.symbol for s in device if needs_host(s)}
        host = [s for s in self.sections if s.kind == "host" and s.symbol in launched]
        if not device:
            has = ", ".join(sorted({s.target for s in self.sections if s.kind == "device"}))
            needs = ", ".join(sorted(wanted))
            raise NoVariant(
                f"artifact: nothing was built for ({needs}); it has {has or 'no functions'}",
                has=has,
                needs=needs,
            )
        return _collect(self.target_host, [*device, *host], self.symbols)


def needs_host(section: Section) -> bool:
    """Tell whether a device section needs a host stub; of a target unknown here, assume it."""
    try:
        return Target.parse(section.target, foreign=True).is_accelerator
    except InvalidTarget:
        return True


def assemble(target_host: str | Target, modules: Iterable[BuiltModule]) -> Artifact:
    """Put built modules together; their order does not matter.

    Raises
    ------
    DuplicateSymbol
        Two modules have the same (kind, target, symbol), or a symbol has two signatures.
    InvalidTarget
        A module's target is unknown here.
    HostMismatch
        A host module was compiled for another target than `target_host`.
    """
    host = str(as_target(target_host))
    sections: list[Section] = []
    symbols: dict[str, Signature] = {}
    for module in modules:
        target = Target.parse(module.target, foreign=True)
        if module.kind == "host" and str(target) != host:
            raise HostMismatch(
                f"artifact: host stub of {module.symbol} was compiled for ({target}); compile it "
                f"for {host}",
                has=str(target),
                needs=host,
            )
        _add_signature(symbols, module.symbol, module.signature)
        sections.append(
            Section(
                kind=module.kind,
                symbol=module.symbol,
                target=str(target),
                target_id=target.id,
                format=module.format,
                format_version=module.format_version,
                requires=module.requires,
                toolchain=module.toolchain,
                data=module.data,
            )
        )
    _refuse_repeats(sections)
    return _collect(host, sections, symbols)


def merge(a: Artifact, b: Artifact) -> Artifact:
    """Return the union of two artifacts; a section that both hold must be the same in both.

    Commutative, associative and idempotent.

    Raises
    ------
    DuplicateSymbol
        The two hold different code for one (kind, target, symbol), or different signatures of one
        symbol.
    HostMismatch
        Their host stubs are for different hosts.
    """
    if a.target_host != b.target_host:
        first, second = sorted((a.target_host, b.target_host))
        raise HostMismatch(
            f"merge: the artifacts have different hosts ({first}; {second}); build both with one "
            "target_host"
        )
    symbols = dict(a.signatures)
    for symbol, signature in b.signatures:
        _add_signature(symbols, symbol, signature)
    sections = {section.key: section for section in a.sections}
    for section in b.sections:
        if sections.setdefault(section.key, section) != section:
            raise DuplicateSymbol(
                f"merge: different code for {section}; rename one function, or keep one artifact",
                symbol=section.symbol,
            )
    return _collect(a.target_host, sections.values(), symbols)


def _collect(
    target_host: str, sections: Iterable[Section], symbols: Mapping[str, Signature]
) -> Artifact:
    ordered = tuple(sorted(sections, key=lambda section: section.key))
    used = sorted({section.symbol for section in ordered})
    return Artifact(target_host, ordered, tuple((name, symbols[name]) for name in used))


def _add_signature(symbols: dict[str, Signature], symbol: str, signature: Signature) -> None:
    if symbols.setdefault(symbol, signature) != signature:
        raise DuplicateSymbol(
            f"artifact: two signatures of {symbol}; rename one of the functions", symbol=symbol
        )


def _refuse_repeats(sections: Sequence[Section]) -> None:
    seen = set()
    for section in sections:
        if section.key in seen:
            raise DuplicateSymbol(
                f"artifact: {section} was built twice; pass each function once for a target",
                symbol=section.symbol,
            )
        seen.add(section.key)


def _entry(section: Section) -> Entry:
    return Entry(
        kind=_NUMBER_OF[section.kind],
        flags=0,
        format_version=section.format_version,
        target_id=section.target_id,
        symbol=section.symbol,
        format=section.format,
        requires=section.requires,
        data=section.data,
    )


def _is_known(entry: Entry) -> bool:
    if entry.kind in _KIND_OF:
        return True
    if entry.kind == container.KIND_MANIFEST:
        raise _corrupt("it has two manifests")
    if entry.flags & container.FLAG_OPTIONAL:
        return False
    raise ArtifactVersion(
        f"artifact: unknown kind of section that is not optional ({entry.kind}); update kernel-farm"
    )


def _section(entry: Entry, manifest: Manifest) -> Section:
    target = manifest.targets.get(entry.target_id)
    if target is None:
        raise _corrupt(f"the manifest does not name target {entry.target_id[:80]!r}")
    kind = _KIND_OF[entry.kind]
    toolchain = manifest.toolchains.get(SectionKey(entry.symbol, kind, entry.target_id))
    if toolchain is None:
        raise _corrupt(f"the manifest does not list {entry.symbol[:80]!r} ({kind}, {target[:80]})")
    return Section(
        kind=kind,
        symbol=entry.symbol,
        target=target,
        target_id=entry.target_id,
        format=entry.format,
        format_version=entry.format_version,
        requires=entry.requires,
        toolchain=toolchain,
        data=entry.data,
    )


def _corrupt(what: str) -> ArtifactCorrupt:
    return ArtifactCorrupt(f"artifact: {what}; copy or build it again")
