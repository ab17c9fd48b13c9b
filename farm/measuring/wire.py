"""Measuring on the wire.

Owns: messages of options, samples, measurements and comparisons, and the values behind them. Does not own: requests
(`farm.client.measuring`, `farm_agents.worker.measure`).

Invariant: what comes from a message is checked; `measurement_from_proto(measurement_to_proto(m)) == m` but for its
error, which becomes one of the same code and message.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeVar

from farm.api.v1 import device_pb2, measure_pb2
from farm.core.limits import MAX_DETAIL_BYTES
from farm.core.wire import cut, error_from_proto, error_to_proto
from farm.errors import InfrastructureError
from farm.measuring.values import (
    MAX_COMPARED,
    CacheMode,
    ComparedPair,
    Comparison,
    Grade,
    Measurement,
    Options,
    Samples,
    Statistics,
    Status,
    Verdict,
)

E = TypeVar("E", bound=StrEnum)

_DEFAULT = Options()
MAX_FACTS = 128
"""Names in one measurement: facts of the host, phases, observers."""
MAX_NUMBER = 1e300


def options_to_proto(options: Options) -> measure_pb2.MeasureOptions:
    """Return the message for options."""
    return measure_pb2.MeasureOptions(
        cache=_code(measure_pb2.CacheMode, "CACHE_MODE_", options.cache),
        samples=options.samples,
        sample_s=options.sample_s,
        warm_up_s=options.warm_up_s,
        budget_s=options.budget_s,
        limit_s=options.limit_s,
        race_factor=options.race_factor,
    )


def options_from_proto(message: measure_pb2.MeasureOptions) -> Options:
    """Return the options that a message holds; raises InvalidInput if one is out of range."""
    cache = CacheMode.WARM
    if message.cache:
        cache = _word(measure_pb2.CacheMode, "CACHE_MODE_", message.cache, CacheMode)
    return Options(
        cache=cache,
        samples=message.samples or _DEFAULT.samples,
        sample_s=message.sample_s or _DEFAULT.sample_s,
        warm_up_s=message.warm_up_s or _DEFAULT.warm_up_s,
        budget_s=message.budget_s or _DEFAULT.budget_s,
        limit_s=message.limit_s or _DEFAULT.limit_s,
        race_factor=message.race_factor or _DEFAULT.race_factor,
    )


def samples_to_proto(samples: Samples) -> measure_pb2.Samples:
    """Return the message for samples."""
    return measure_pb2.Samples(
        calls=samples.calls,
        **samples.columns(),
        observed={
            name: measure_pb2.Column(values=values) for name, values in samples.observed.items()
        },
        disturbed=samples.disturbed,
    )


def samples_from_proto(message: measure_pb2.Samples) -> Samples:
    """Return the samples of a message; raises InvalidInput if columns do not fit each other."""
    columns = {name: tuple(getattr(message, name)) for name in Samples().columns()}
    return Samples(
        calls=message.calls or 1,
        **columns,
        observed={name: tuple(column.values) for name, column in sorted(message.observed.items())},
        disturbed=tuple(message.disturbed),
    )


def measurement_to_proto(found: Measurement) -> measure_pb2.Measurement:
    """Return the message for a measurement."""
    message = measure_pb2.Measurement(
        status=_code(measure_pb2.MeasureStatus, "MEASURE_STATUS_", found.status),
        unit=found.unit,
        clock=found.clock,
        timing_class=_timing_class(found.timing_class),
        cache=_code(measure_pb2.CacheMode, "CACHE_MODE_", found.cache),
        samples=samples_to_proto(found.samples),
        grade=_code(measure_pb2.NoiseGrade, "NOISE_GRADE_", found.grade),
        checked=found.checked,
        fingerprint={
            name: cut(text, MAX_DETAIL_BYTES)
            for name, text in found.fingerprint.items()
            if text is not None
        },
        target=found.target,
        phases=dict(found.phases),
        host=found.host,
    )
    if found.error is not None:
        message.error.CopyFrom(error_to_proto(found.error))
    if found.statistics is not None:
        message.statistics.CopyFrom(_statistics_to_proto(found.statistics))
    return message


def measurement_from_proto(message: measure_pb2.Measurement) -> Measurement:
    """Return what a message says.

    Raises
    ------
    InvalidInput, InfrastructureError
        It is malformed, or speaks of something that this version does not know.
    """
    found = Measurement(
        status=_word(measure_pb2.MeasureStatus, "MEASURE_STATUS_", message.status, Status),
        error=error_from_proto(message.error) if message.HasField("error") else None,
        unit=message.unit,
        clock=message.clock,
        timing_class=timing_class_word(message.timing_class),
        cache=_word(measure_pb2.CacheMode, "CACHE_MODE_", message.cache, CacheMode),
        samples=samples_from_proto(message.samples),
        statistics=(
            _statistics_from_proto(message.statistics) if message.HasField("statistics") else None
        ),
        grade=_word(measure_pb2.NoiseGrade, "NOISE_GRADE_", message.grade, Grade),
        checked=message.checked,
        fingerprint=dict(sorted(message.fingerprint.items())),
        host=message.host,
        target=message.target,
        phases=dict(message.phases),
    )
    _check(found)
    return found


def comparison_to_proto(found: Comparison) -> measure_pb2.Comparison:
    """Return the message for a comparison."""
    return measure_pb2.Comparison(
        measurements=map(measurement_to_proto, found.measurements),
        pairs=[
            measure_pb2.ComparedPair(
                verdict=_code(measure_pb2.ComparisonVerdict, "COMPARISON_VERDICT_", pair.verdict),
                ratio=pair.ratio,
                low=pair.low,
                high=pair.high,
                pairs=pair.pairs,
                clean=pair.clean,
            )
            for pair in found.pairs
        ],
        rounds=found.rounds,
        error=error_to_proto(found.error) if found.error is not None else None,
    )


def comparison_from_proto(message: measure_pb2.Comparison) -> Comparison:
    """Return what a message says; raises as `measurement_from_proto`."""
    return Comparison(
        measurements=tuple(map(measurement_from_proto, message.measurements)),
        pairs=tuple(
            ComparedPair(
                verdict=_word(
                    measure_pb2.ComparisonVerdict, "COMPARISON_VERDICT_", pair.verdict, Verdict
                ),
                ratio=pair.ratio,
                low=pair.low,
                high=pair.high,
                pairs=pair.pairs,
                clean=pair.clean,
            )
            for pair in message.pairs
        ),
        rounds=message.rounds,
        error=error_from_proto(message.error) if message.HasField("error") else None,
    )


def _check(found: Measurement) -> None:
    """Raise InfrastructureError if a measurement says what nobody can keep or compute with."""
    observed = found.samples.observed
    named = (found.fingerprint, found.phases, observed)
    texts = (found.unit, found.clock, found.host, found.target, *found.fingerprint.values())
    names = [name for facts in named for name in facts]
    if len(names) > MAX_FACTS or any(len(it or "") > MAX_DETAIL_BYTES for it in (*texts, *names)):
        raise _senseless("texts", f"{len(names)} names")
    numbers = [*found.phases.values(), *(value for column in observed.values() for value in column)]
    if not all(-MAX_NUMBER <= it <= MAX_NUMBER for it in numbers):  # nor what is no number
        raise _senseless("numbers", "phases or observers")
    columns = [*found.samples.columns().values(), *observed.values()]
    if max(map(len, columns)) > MAX_COMPARED:
        raise _senseless("samples", f"{max(map(len, columns))}, at most {MAX_COMPARED}")


def _senseless(what: str, which: str) -> InfrastructureError:
    return InfrastructureError(f"measure: impossible {what} ({which}); measure again")


def _statistics_to_proto(found: Statistics) -> measure_pb2.Statistics:
    return measure_pb2.Statistics(
        **{name: getattr(found, name) for name in Statistics.__dataclass_fields__}
    )


def _statistics_from_proto(message: measure_pb2.Statistics) -> Statistics:
    found = Statistics(**{name: getattr(message, name) for name in Statistics.__dataclass_fields__})
    numbers = (found.min, found.p10, found.median, found.spread, found.low, found.high)
    if not all(0 <= it <= MAX_NUMBER for it in numbers):  # nor what is no number
        raise _senseless("statistics", ", ".join(f"{it:g}" for it in numbers))
    return found


def timing_class_word(number: int) -> str:
    """Return ``native`` for TIMING_CLASS_NATIVE; raises InfrastructureError for a number that is unknown here."""
    for name, known in device_pb2.TimingClass.items():
        if known == number:
            return name.removeprefix("TIMING_CLASS_").lower()
    raise _impossible("timing class", number)


def _timing_class(word: str) -> device_pb2.TimingClass.ValueType:
    return device_pb2.TimingClass.Value(f"TIMING_CLASS_{word.upper()}")


def _code(kind: Any, prefix: str, value: StrEnum) -> Any:  # noqa: ANN401 - any enum of the contract
    return kind.Value(prefix + value.value.upper())


def _word(kind: Any, prefix: str, number: int, words: type[E]) -> E:  # noqa: ANN401
    for word in words:
        name = prefix + word.value.upper()
        if name in kind.keys() and kind.Value(name) == number:  # noqa: SIM118 - not a mapping
            return word
    raise _impossible(prefix.strip("_").lower(), number)


def _impossible(what: str, number: int) -> InfrastructureError:
    return InfrastructureError(
        f"measure: an impossible {what} ({number}); run the same version of kernel-farm at both ends"
    )
