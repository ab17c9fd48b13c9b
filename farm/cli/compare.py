"""``farm compare``.

Owns: its options. Does not own: candidates (`farm.cli.candidates`), waiting (`farm.cli.wait`), what is shown
(`farm.cli.compared`).

Invariant: exit code 0 means that no candidate is slower than the first.
"""

from __future__ import annotations

import click

from farm.cli.candidates import keys_of, read_candidate, read_workload, workload_options
from farm.cli.compared import show_comparison
from farm.cli.connection import connect, tracker_option
from farm.cli.job import headline, job_json
from farm.cli.output import Output, output_option
from farm.cli.run import check_number
from farm.cli.wait import timeout_option, watch
from farm.core.limits import MAX_JOB_LIMIT_S


@click.command("compare")
@click.argument("first", metavar="FILE.farm[:FUNCTION]")
@click.argument("others", metavar="FILE.farm[:FUNCTION]...", nargs=-1, required=True)
@click.option("--device", "selector", default="", help="Which devices will do; empty: any.")
@workload_options
@click.option(
    "--unchecked",
    is_flag=True,
    help="Look at times alone, also of candidates that compute something else than the first.",
)
@click.option(
    "--threshold",
    type=click.FloatRange(0.001, 0.5),
    callback=check_number,
    default=0.02,
    show_default=True,
    help="Differences below it do not matter, as a part of 1.",
)
@click.option(
    "--rounds",
    metavar="LEAST MOST",
    nargs=2,
    type=click.IntRange(10, 10_000),
    default=(40, 400),
    show_default=True,
    help="In a round, each candidate has one sample.",
)
@click.option(
    "--limit",
    "limit_s",
    metavar="SECONDS",
    type=click.FloatRange(1, MAX_JOB_LIMIT_S),
    callback=check_number,
    default=120.0,
    show_default=True,
    help="Time limit of all of it; half of it goes to rounds at most.",
)
@click.option(
    "--key",
    "client_key",
    default="",
    help="Names this request: the same again is the same job.  [default: a new one]",
)
@timeout_option
@tracker_option
@output_option
def command(
    first: str,
    others: tuple[str, ...],
    selector: str,
    seed: int,
    reference: str | None,
    cache: str,
    sample_s: float,
    unchecked: bool,
    threshold: float,
    rounds: tuple[int, int],
    limit_s: float,
    client_key: str,
    timeout_s: float | None,
    tracker: str | None,
    output: Output,
) -> None:
    """Compare candidates with the first of them, interleaved on one device.

    Each is checked alone: it has to give what the reference gives, or without one what the first candidate gives. Then
    all run in turns until every difference is known: the median of the paired ratios of CPU time, with its 95 %
    interval. It is a job: Ctrl-C ends the waiting, and `farm result JOB` shows it later.

    \b
    Exit codes: 0 none is slower than the first, 9 one is, 11 of one nothing could be said, 1 one did not
    run right; others as `farm wait`.

    \b
    Example:
      farm compare old.farm:layer new.farm:layer --device kind=cpu
      farm compare a.farm b.farm c.farm --reference plain.farm --threshold 0.01

    \b
    JSON: {"job": as in `farm get`, "device_id", "rounds", "candidates": [{"name", as in `farm measure`}],
           "pairs": [{"name", "first", "verdict", "ratio", "low", "high", "pairs", "clean"}]}
    """  # noqa: D301 - click's mark
    from farm.measuring import CacheMode, Options

    if rounds[0] > rounds[1]:
        raise click.BadParameter(f"{rounds[0]} are more than {rounds[1]}", param_hint="--rounds")
    if unchecked and reference is not None:
        raise click.UsageError("--unchecked and --reference exclude each other; leave one out")
    texts = (first, *others)
    keys = keys_of(texts)
    candidates = [read_candidate(text, key) for text, key in zip(texts, keys, strict=True)]
    workload = read_workload(seed, reference if reference or unchecked else first)
    options = Options(
        cache=CacheMode(cache),
        samples=3,
        sample_s=sample_s,
        budget_s=limit_s / 2,
        limit_s=limit_s,
    )
    with connect(tracker) as client:
        job = client.compare(
            candidates,
            workload=workload,
            selector=selector,
            options=options,
            threshold=threshold,
            rounds=rounds,
            client_key=client_key,
        )
        info = watch(job, output, timeout_s)
        if info.failure is not None:
            output.result({"job": job_json(info)}, headline(info))
            raise info.failure
        show_comparison(job.result(), output)
