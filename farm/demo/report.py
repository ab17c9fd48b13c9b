"""What the demo found, as data and as text.

Owns: the form of the report, and what counts as success. Does not own: finding it (`tour`).

Invariant: a device that disagrees, or none that ran, is never a success.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

MIN_ACCURACY = 0.95


@dataclass(frozen=True, slots=True)
class Section:
    """One slice of the artifact."""

    target: str
    symbol: str
    kind: str
    format: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Built:
    """What one agent built for one target."""

    target: str
    agent_id: str
    functions: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Ran:
    """One device's run over all images.

    Attributes
    ----------
    agrees
        Integer outputs equal the oracle's bit for bit, float ones within a few units in the last place.
    placement
        Whose slice served each function.
    """

    device_id: str
    target: str
    timing_class: str
    agrees: bool
    correct: int
    median_s: float
    placement: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The outcome of the demo."""

    accuracy: float
    images: int
    digest: str
    size_bytes: int
    sections: tuple[Section, ...]
    builds: tuple[Built, ...]
    devices: tuple[Ran, ...]
    skipped: Mapping[str, str]
    phases_s: Mapping[str, float]

    @property
    def ok(self) -> bool:
        """Whether the network is good enough and every device agrees with the oracle."""
        agrees = all(device.agrees for device in self.devices)
        return bool(self.devices) and agrees and self.accuracy >= MIN_ACCURACY

    def to_json(self) -> dict[str, object]:
        """Return one JSON object."""
        return {
            "ok": self.ok,
            "accuracy": self.accuracy,
            "images": self.images,
            "artifact": {
                "digest": self.digest,
                "size_bytes": self.size_bytes,
                "sections": [asdict(section) for section in self.sections],
            },
            "builds": [asdict(built) for built in self.builds],
            "devices": [{**asdict(ran), "placement": dict(ran.placement)} for ran in self.devices],
            "skipped": dict(self.skipped),
            "phases_s": dict(self.phases_s),
        }

    def to_text(self) -> str:
        """Return the report for people."""
        lines = [
            f"Handwritten digits: {self.images} held-out images, accuracy {self.accuracy:.3f}",
            "",
        ]
        lines += ["Built by"]
        lines += _table(
            (built.agent_id, built.target, f"{built.functions} functions", f"{built.seconds:.3f} s")
            for built in self.builds
        )
        lines += ["", f"One artifact, {self.size_bytes} bytes, {self.digest}"]
        lines += _table(
            (s.symbol, s.kind, s.target, s.format, f"{s.size_bytes} B") for s in self.sections
        )
        lines += ["", "Run on"]
        lines += _table(
            (
                ran.device_id,
                ran.target,
                f"{ran.median_s * 1e3:.3f} ms ({ran.timing_class})",
                f"{ran.correct}/{self.images} right",
                "agrees with the oracle" if ran.agrees else "DISAGREES WITH THE ORACLE",
            )
            for ran in self.devices
        )
        lines += [f"  {device_id}: not run: {why}" for device_id, why in self.skipped.items()]
        lines += ["", "Time: " + ", ".join(f"{k} {v:.1f} s" for k, v in self.phases_s.items())]
        return "\n".join(lines)


def _table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
