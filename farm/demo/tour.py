"""The tour: start a farm, build the network for three targets, run it on three devices, compare with the oracle.

Owns: the order of the steps and their times. Does not own: the farm (`farm.testing`), the network (`network`).

Invariant: the farm is stopped however the tour ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from farm.artifact import Artifact
from farm.building import ItemOutcome, ItemState
from farm.client import Client, DeviceInfo, connect
from farm.core.clock import Clock, SystemClock
from farm.demo.network import Network, train
from farm.demo.report import Built, DemoResult, Ran, Section
from farm.ir import Function, interpret
from farm.target import Target
from farm.testing import EmbeddedFarm

Array = npt.NDArray[Any]
Report = Callable[[str], None]

REPEAT = 10
CROSS = "llvm -mtriple=aarch64-linux-gnu"
ACCELERATOR = "ea -config=ea16"
INTEGER_LAYERS = ("dense1", "dense2")
MAX_RELATIVE_ERROR = 1e-5  # of the float outputs: a few units in the last place of float32


def run_demo(report: Report, *, use_ray: bool = True) -> DemoResult:
    """Run the demo on an embedded farm that lives as long as this call.

    Parameters
    ----------
    report
        Called with one line of progress at a time.
    use_ray
        Let Ray manage the agents; else they are plain processes.

    Raises
    ------
    FarmError
        The farm did not start, or something that the demo needs is missing.
    """
    phases = _Phases(report, SystemClock())
    with ThreadPoolExecutor(1, "farm-demo") as pool:
        trained = pool.submit(train)
        with phases.phase("start", "starting a farm; meanwhile training a network on digits"):
            farm = EmbeddedFarm(agents="ray" if use_ray else "processes", progress=report)
            address = farm.start()
        try:
            with phases.phase("train", "waiting for the network"):
                network = trained.result()
            oracle = pool.submit(_oracle, network)
            with connect(address) as client:
                return _tour(client, network, oracle.result, phases)
        finally:
            report("stopping the farm")
            farm.stop()


def _tour(
    client: Client, network: Network, oracle: Callable[[], tuple[Array, ...]], phases: _Phases
) -> DemoResult:
    request = _request(network)
    count = sum(map(len, request.values()))
    builds = _Builds(phases.report)
    with phases.phase("build", f"building {count} functions for {len(request)} targets"):
        artifact = client.build(request, variants=True, progress=builds)
    phases.report(f"merged into one artifact, {artifact.digest}")
    with phases.phase("oracle", "waiting for the plain interpreter, the oracle"):
        expected = oracle()
    ran: list[Ran] = []
    skipped: dict[str, str] = {}
    with phases.phase("run", f"running {len(network.images)} images on each device"):
        for device in client.devices():
            if device.health != "good":
                skipped[device.device_id] = device.health_cause or f"health is {device.health}"
                phases.report(f"{device.device_id}: not run: {skipped[device.device_id]}")
            else:
                ran.append(_run(client, device, artifact, network, expected))
                phases.report(
                    f"{device.device_id}: {ran[-1].correct} of {len(network.labels)} right"
                )
    return _result(network, expected, artifact, builds, ran, skipped, phases.seconds)


def _request(network: Network) -> dict[Target, list[Function]]:
    """Place the integer layers on the accelerator and everything on the CPUs, as the fallback and for the rest."""
    everything = list(network.functions.values())
    return {
        Target.parse(ACCELERATOR): [network.functions[name] for name in INTEGER_LAYERS],
        Target.parse("llvm"): everything,
        Target.parse(CROSS): everything,
    }


def _oracle(network: Network) -> tuple[Array, ...]:
    return interpret(network.functions["network"], network.inputs, network.functions)


def _run(
    client: Client,
    device: DeviceInfo,
    artifact: Artifact,
    network: Network,
    expected: tuple[Array, ...],
) -> Ran:
    with client.acquire(f"device_id={device.device_id}", holder="demo") as session:
        module = session.load(artifact)
        logits, chances = module["network"](*network.inputs)
        timing = module.time("network", *network.inputs, repeat=REPEAT)
        placement = {name: module[name].target for name in network.functions}
    return Ran(
        device_id=device.device_id,
        target=device.targets[0],
        timing_class=timing.timing_class,
        agrees=_agrees(logits, chances, expected),
        correct=_correct(logits, network),
        median_s=timing.median_s,
        placement=placement,
    )


def _agrees(logits: Array, chances: Array, expected: tuple[Array, ...]) -> bool:
    same = np.array_equal(logits, expected[0])
    return same and np.allclose(chances, expected[1], rtol=MAX_RELATIVE_ERROR, atol=0)


def _correct(logits: Array, network: Network) -> int:
    return int((logits.argmax(axis=1) == network.labels).sum())


def _result(
    network: Network,
    expected: tuple[Array, ...],
    artifact: Artifact,
    builds: _Builds,
    ran: list[Ran],
    skipped: Mapping[str, str],
    phases_s: Mapping[str, float],
) -> DemoResult:
    images = len(network.labels)
    return DemoResult(
        accuracy=min([run.correct for run in ran] or [_correct(expected[0], network)]) / images,
        images=images,
        digest=str(artifact.digest),
        size_bytes=artifact.digest.size_bytes,
        sections=tuple(
            Section(s.target, s.symbol, s.kind, s.format, len(s.data)) for s in artifact.sections
        ),
        builds=builds.by_agent(),
        devices=tuple(ran),
        skipped=skipped,
        phases_s=phases_s,
    )


@dataclass
class _Phases:
    """Where the time goes."""

    report: Report
    clock: Clock
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str, what: str) -> Iterator[None]:
        """Announce and time one phase."""
        self.report(what)
        began = self.clock.now()
        yield
        self.seconds[name] = self.clock.now() - began


@dataclass
class _Builds:
    """Who built what, gathered from a build's progress."""

    report: Report
    done: list[ItemOutcome] = field(default_factory=list)

    def __call__(self, outcome: ItemOutcome) -> None:
        """Note one change of an item."""
        if outcome.state is ItemState.DONE:
            self.done.append(outcome)
            self.report(f"{outcome.agent_id} built {outcome.item} in {outcome.seconds:.3f} s")

    def by_agent(self) -> tuple[Built, ...]:
        """Return what each agent built for each target, in the order of the agents."""
        groups: dict[tuple[str, str], list[ItemOutcome]] = {}
        for outcome in self.done:
            groups.setdefault((outcome.agent_id, str(outcome.item.target)), []).append(outcome)
        return tuple(
            Built(target, agent_id, len(group), sum(outcome.seconds for outcome in group))
            for (agent_id, target), group in sorted(groups.items())
        )
