"""Hostile artifacts: whatever is in them, loading ends in an error of the artifact and the session goes on."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from farm import te
from farm.artifact import Artifact
from farm.ea.encoding import decode_program, encode_program
from farm.ea.isa import Fence, Gemm, Load, Transfer
from farm.errors import ArtifactError, DeviceFault, FarmError, TimeLimit

TARGETS = {"cpu": "llvm", "ea": "ea"}
SEEDS = range(4)
LIMIT_S = 1.0


@pytest.fixture(scope="module")
def artifact():
    import farm

    x = te.placeholder((16,), "int8", name="x")
    double = te.function("double", [x, te.compute((16,), lambda i: x[i] + x[i], name="y")])
    return farm.build({TARGETS["ea"]: [double]}, "llvm")


@pytest.fixture(scope="module")
def session(client):
    with client.acquire("kind=ea") as held:
        yield held


def is_well(session, artifact):
    result = session.load(artifact)["double"](np.arange(16, dtype=np.int8))
    assert result.tolist() == [2 * i for i in range(16)]


@pytest.mark.parametrize("kind", ["device", "host"])
@pytest.mark.parametrize("seed", SEEDS)
def test_section_with_damaged_bytes_is_refused_or_fails_as_a_kernel(session, artifact, kind, seed):
    damaged = _damage(artifact, kind, random.Random(seed))
    code = ""
    try:
        session.load(damaged)["double"](np.arange(16, dtype=np.int8), limit_s=2.0)
    except FarmError as error:
        code = error.code
    # A place that does not matter, or a wrong result of its own call, are possible; blaming the farm is not.
    assert code not in {"INFRASTRUCTURE", "FARM_ERROR"}
    is_well(session, artifact)


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_artifact_that_is_cut_is_refused(session, artifact, size, tmp_path):
    path = tmp_path / "cut.farm"
    path.write_bytes(artifact.to_bytes()[:size])
    with pytest.raises(ArtifactError):
        session.load(path)
    is_well(session, artifact)


def test_program_that_does_not_end_is_killed_at_its_limit(session, artifact):
    honest = session.load(artifact)["double"]
    endless = session.load(_burning(artifact, 40_000))["double"]
    with pytest.raises(TimeLimit) as caught:
        endless(np.arange(16, dtype=np.int8), limit_s=LIMIT_S)
    assert caught.value.details["limit_s"] == f"{LIMIT_S:g}"
    assert honest(np.arange(16, dtype=np.int8)).tolist() == [2 * i for i in range(16)]


def test_program_of_faults_is_a_record_of_the_device(session, artifact):
    unready = Gemm(m=16, a=0, w=16, c=0)  # reads rows that nothing has written
    with pytest.raises(DeviceFault) as caught:
        session.load(_with(artifact, (unready,)))["double"](np.arange(16, dtype=np.int8))
    assert caught.value.details["fault"] == "UNINIT"
    is_well(session, artifact)


def _burning(artifact: Artifact, products: int) -> Artifact:
    """The artifact with so many matrix products before its own work; there are no loops, so this is what endless is."""
    zero = Load(space=Transfer.SPAD_I8, row=0, rows=4064, cols=16, fill=True)
    product = Gemm(m=16, a=0, w=16, c=0, nt=63, kt=4, cns=16)
    return _with(artifact, (zero, Fence(), *[product] * products, Fence()))


def _with(artifact: Artifact, before) -> Artifact:
    sections = []
    for section in artifact.sections:
        if section.kind == "device":
            program = decode_program(section.data)
            longer = replace(program, instructions=(*before, *program.instructions))
            section = replace(section, data=encode_program(longer))
        sections.append(section)
    return replace(artifact, sections=tuple(sections))


def _damage(artifact: Artifact, kind: str, rng: random.Random) -> Artifact:
    """The artifact with some bytes of one section changed, and digests that say it is whole."""
    sections = []
    for section in artifact.sections:
        data = bytearray(section.data)
        if section.kind == kind:
            for _ in range(32):
                data[rng.randrange(len(data))] = rng.randrange(256)
        sections.append(replace(section, data=bytes(data)))
    return replace(artifact, sections=tuple(sections))
