"""The page: sections for each workload on each kind of device.

Owns: what is told and plotted. Does not own: how a plot is drawn (`svg`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from html import escape

import numpy as np

from farm.errors import FarmError
from farm.tune.ceilings import TEMPLATE, recorded_ceilings
from farm.tune.records.database import Records
from farm.tune.records.record import Key, Outcome, Record, Workload
from farm.tune.records.winner import Winner
from farm.tune.report.svg import Axis, Series, plot
from farm.tune.roofline import work_of
from farm.tune.task import shortened

SAMPLED = 12
"""Candidates whose samples are shown: the best ones."""
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72em; margin: 2em auto; padding: 0 1em; color: #222; }
svg { width: 100%; max-width: 760px; height: auto; } svg text { font-size: 11px; fill: #444; }
.frame { fill: #fff; stroke: #999; } .grid { stroke: #eee; } .line { fill: none; stroke-width: 1.5; }
text.x { text-anchor: middle; } text.y { text-anchor: end; } svg .legend tspan { font-weight: 600; }
table { border-collapse: collapse; } td, th { padding: 2px 12px 2px 0; text-align: left; vertical-align: top; }
code { background: #f4f4f4; padding: 0 3px; } section { border-top: 1px solid #ccc; margin-top: 2em; }
"""


def report(records: Records, *, title: str = "Tuning") -> str:
    """Return a page about everything in a database: one HTML document that needs nothing else."""
    workloads = {each.id: each for each in records.workloads()}
    groups: dict[Key, list[Record]] = {}
    for record in records.find():
        groups.setdefault(record.key, []).append(record)
    winners = records.standing()
    sections = [
        _section(records, key, own, workloads.get(key.workload), winners.get(key))
        for key, own in groups.items()
        if own[0].template != TEMPLATE
    ]
    body = "".join(sections) or "<p>No records.</p>"
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>{body}</body></html>\n"
    )


def _section(
    database: Records,
    key: Key,
    records: Sequence[Record],
    workload: Workload | None,
    winner: Winner | None,
) -> str:
    name = key.workload if workload is None else workload.name
    unit = next((record.unit for record in records if record.unit), "")
    return (
        f"<section><h2>{escape(name)} for <code>{escape(key.target)}</code></h2>"
        f"{_facts(key, records, winner, unit)}"
        f"<h3>Progress</h3>{_progress(records, unit)}"
        f"<h3>Landscape</h3>{_landscape(records, unit)}"
        f"<h3>Samples of the best</h3>{_samples(records, unit)}"
        f"<h3>Noise</h3>{_noise(records, unit)}"
        f"<h3>Roofline</h3>{_roofline(database, key, records, workload, unit)}"
        f"{_errors(records)}</section>"
    )


def _facts(key: Key, records: Sequence[Record], winner: Winner | None, unit: str) -> str:
    outcomes = Counter(record.outcome.value for record in records)
    grades = Counter(record.grade for record in records if record.grade)
    rows = {
        "device": f"{key.host}; cache {key.cache}; {key.toolchain}",
        "trials": ", ".join(f"{count} {kind}" for kind, count in outcomes.most_common()),
        "noise grades": ", ".join(f"{count} {grade}" for grade, count in sorted(grades.items())),
    }
    if winner is not None:
        chosen = ", ".join(f"{k}={v}" for k, v in winner.configuration.items())
        rows["winner"] = f"{winner.value:,.1f} {unit} a call: {chosen}"
        if winner.ratio != 1:
            rows["gain"] = (
                f"{1 / winner.ratio:.3g} times as fast as before, {1 / winner.high:.3g} to {1 / winner.low:.3g}"
            )
    known = next((record.fingerprint for record in records if record.fingerprint), {})
    told = ("cpu", "cores", "kernel", "governor", "pinned_core")
    rows |= {name: str(known[name]) for name in told if known.get(name) is not None}
    cells = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in rows.items())
    return f"<table>{cells}</table>"


def _label(record: Record) -> str:
    configuration = ", ".join(f"{k}={v}" for k, v in record.configuration.items())
    value = "-" if record.value is None else f"{record.value:,.1f} {record.unit}"
    return f"{value}; {configuration}"


def _progress(records: Sequence[Record], unit: str) -> str:
    good = [(n, r) for n, r in enumerate(records, 1) if r.value is not None]
    best, line = math.inf, []
    for number, record in good:
        best = min(best, record.value or math.inf)
        line.append((float(number), best))
    points = [(float(number), record.value or 0.0) for number, record in good]
    series = [
        Series("trial", points, titles=[_label(record) for _, record in good]),
        Series("best so far", line, line="steps"),
    ]
    return plot(series, Axis("trial"), Axis(f"{unit} a call", log=True))


def _landscape(records: Sequence[Record], unit: str) -> str:
    """Plot values over each parameter that takes several, a panel each."""
    good = [record for record in records if record.value is not None]
    names = list(dict.fromkeys(name for record in good for name in record.configuration))
    panels = []
    for name in names:
        values = sorted({str(r.configuration.get(name)) for r in good}, key=_sortable)
        if len(values) < 2:
            continue
        points = [
            (values.index(str(r.configuration.get(name))) + 0.0, r.value or 0.0) for r in good
        ]
        medians = []
        for place in range(len(values)):
            own = [value for at, value in points if at == place]
            medians.append((float(place), float(np.median(own))))
        legend = ", ".join(f"{n}: {value}" for n, value in enumerate(values))
        series = [
            Series(name, points, titles=[_label(r) for r in good]),
            Series("median", medians, line="line"),
        ]
        drawn = plot(series, Axis(name), Axis(f"{unit} a call", log=True))
        panels.append(
            f"<details><summary>{escape(name)}</summary>{drawn}<p>{escape(legend)}</p></details>"
        )
    return "".join(panels) or "<p>Nothing to show.</p>"


def _sortable(text: str) -> tuple[int, float, str]:
    try:
        return (0, float(text), "")
    except ValueError:
        return (1, 0.0, text)


def _samples(records: Sequence[Record], unit: str) -> str:
    good = sorted((r for r in records if r.value is not None), key=lambda r: r.value or 0.0)
    points, titles = [], []
    for place, record in enumerate(good[:SAMPLED], 1):
        column = record.samples.get(record.clock) or record.samples.get("wall_ns") or []
        column = column or record.samples.get("observed", {}).get(record.clock, [])
        calls = record.samples.get("calls", 1) or 1
        for sample in column:
            points.append((float(place), sample / calls))
            titles.append(_label(record))
    series = [Series("sample", points, titles=titles)]
    return plot(series, Axis("rank"), Axis(f"{unit} a call"))


def _noise(records: Sequence[Record], unit: str) -> str:
    points, titles = [], []
    for record in records:
        found = record.statistics
        if record.value and found.get("high") is not None and found.get("low") is not None:
            half = (found["high"] - found["low"]) / 2 / record.value
            points.append((record.value, 100 * half))
            titles.append(f"grade {record.grade}; {_label(record)}")
    series = [Series("half the 95 % interval", points, titles=titles)]
    return plot(series, Axis(f"{unit} a call", log=True), Axis("% of the median"))


def _roofline(
    database: Records, key: Key, records: Sequence[Record], workload: Workload | None, unit: str
) -> str:
    """Plot how much arithmetic each candidate did a unit of time, over how much it does for each byte."""
    good = [record for record in records if record.value]
    if workload is None or not good:
        return "<p>Nothing to show.</p>"
    try:
        work = work_of(workload.function)
        ceilings = recorded_ceilings(database, key, workload.function)
    except FarmError:  # a function that no schedule is made of
        return "<p>Nothing to show.</p>"
    if not work.operations:
        return "<p>It moves data only.</p>"
    rates = [work.operations / (record.value or 1.0) for record in good]
    name = "operations a ns (G/s)" if unit == "ns" else f"operations a {unit.rstrip('s')}"
    titles = [_label(record) for record in good]
    series = [Series("candidates", [(work.intensity, rate) for rate in rates], titles=titles)]
    told = (
        f"{work.operations:,} operations and {work.size_bytes:,} bytes a call: {work.intensity:.3g} operations a byte; "
        f"at best {max(rates):.4g} {name}"
    )
    if ceilings is not None:
        ridge = ceilings.operations / ceilings.bytes_
        ends = (min(work.intensity, ridge) / 8, ridge, max(work.intensity, ridge) * 8)
        roof = [(at, min(ceilings.operations, at * ceilings.bytes_)) for at in ends]
        series.append(Series("roof, as measured", roof, line="line"))
        part = max(rates) * ceilings.bound(work) / work.operations
        told += f", {100 * part:.0f} % of the roof"
    drawn = plot(series, Axis("operations a byte", log=True), Axis(name, log=True))
    return f"{drawn}<p>{escape(told)}</p>"


def _errors(records: Sequence[Record]) -> str:
    counted = Counter(
        (record.outcome.value, shortened(record.error_message))
        for record in records
        if record.outcome not in (Outcome.OK, Outcome.SLOW)
    )
    if not counted:
        return ""
    rows = "".join(
        f"<tr><td>{count}</td><td>{escape(kind)}</td><td>{escape(message)}</td></tr>"
        for (kind, message), count in counted.most_common(20)
    )
    return f"<h3>Failures</h3><table>{rows}</table>"
