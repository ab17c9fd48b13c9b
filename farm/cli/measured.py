"""Measurements as commands show them.

Owns: their JSON and their words. Does not own: what is measured (`farm.cli.measure`, `farm.cli.compare`).

Invariant: JSON has every raw sample; a number that does not exist is null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farm.cli.output import seconds

if TYPE_CHECKING:
    from farm.measuring import Measurement


def measurement_json(found: Measurement) -> dict[str, Any]:
    """Return a measurement for JSON."""
    samples, statistics = found.samples, found.statistics
    return {
        "status": found.status,
        "value": found.value,
        "unit": found.unit,
        "clock": found.clock,
        "timing_class": found.timing_class,
        "cache": found.cache,
        "grade": found.grade,
        "checked": found.checked,
        "statistics": None
        if statistics is None
        else {name: getattr(statistics, name) for name in type(statistics).__dataclass_fields__},
        "samples": {
            "calls": samples.calls,
            **{name: list(column) for name, column in samples.columns().items()},
            "observed": {name: list(column) for name, column in samples.observed.items()},
            "disturbed": list(samples.disturbed),
        },
        "target": found.target,
        "host": found.host,
        "fingerprint": dict(found.fingerprint),
        "phases": dict(found.phases),
        "error": None
        if found.error is None
        else {"code": found.error.code, "message": found.error.message},
    }


def measurement_text(found: Measurement) -> str:
    """Return what a call takes, for people: ``12.3 us ± 0.4 %, grade A (10 samples, 9 clean, native)``."""
    statistics = found.statistics
    if found.value is None or statistics is None:
        return f"{found.status}: {found.error.message}" if found.error else found.status
    value = f"{found.value:.0f} cycles" if found.unit == "cycles" else seconds(found.value / 1e9)
    half = max(statistics.high - statistics.median, statistics.median - statistics.low)
    part = 100 * half / statistics.median if statistics.median else 0.0
    checked = "" if found.checked else ", numbers not checked"
    return (
        f"{value} ± {part:.1f} %, grade {found.grade} ({statistics.n} samples, {statistics.clean} clean, "
        f"{found.timing_class}, {found.cache} caches{checked})"
    )
