"""What the reference leaves for the processes of candidates."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from farm_agents.worker import expect as reference
from farm_agents.worker import subject
from farm_agents.worker.blobs import Blobs, blob_path, keep_blob
from farm_agents.worker.inputs import GENERATED, generate
from farm_agents.worker.measure import measure

import farm
from farm import te
from farm.api.v1 import device_pb2, measure_pb2
from farm.core.digest import Digest, digest_of
from farm.core.wire import digest_to_proto, tensor_from_proto
from farm.errors import InfrastructureError
from farm.measuring import Options, Status
from farm.measuring.wire import options_to_proto
from farm.runtime.local import local_capabilities
from farm.runtime.native import native_loader

SHAPE = (96, 64)
OPTIONS = Options(samples=3, sample_s=0.0001, warm_up_s=0.0, budget_s=0.001)


@pytest.fixture(scope="module")
def loader():
    here = local_capabilities()
    return native_loader(here.targets, here.provides)


def subject_of(name, function):
    data = farm.build({"llvm": [function]}).to_bytes()
    ref = measure_pb2.ArtifactRef(digest=digest_to_proto(digest_of(data)), inline=data)
    return measure_pb2.Subject(artifact=ref, symbol=name, name=name)


def scaled(name, factor):
    x = te.placeholder(SHAPE, "float32", name="x")
    y = te.compute(SHAPE, lambda i, j: x[i, j] * factor, name="y")
    return subject_of(name, te.function(name, [x, y]))


@pytest.fixture(scope="module")
def request_of():
    """A request for a candidate whose reference doubles."""
    double, triple, right = scaled("double", 2.0), scaled("triple", 3.0), scaled("right", 2.0)

    def make(name="right"):
        request = measure_pb2.MeasureRequest(
            subject={"right": right, "triple": triple}[name], options=options_to_proto(OPTIONS)
        )
        request.workload.seed = 5
        request.workload.reference.CopyFrom(double)
        request.context.timing_class = device_pb2.TIMING_CLASS_NATIVE
        return request

    return make


def expected(request, loader, folder):
    return reference.expect(request, loader, Blobs(folder), partial(keep_blob, folder))


def measured(request, cases, loader, folder):
    request.context.expected.extend(cases)
    return measure(request, loader, Blobs(folder), 1, lambda: None)


def test_candidates_are_given_the_inputs_that_they_would_make(
    request_of, loader, tmp_path, monkeypatch
):
    cases = expected(request_of(), loader, tmp_path)
    signature = (
        loader.load(subject.read_artifact(request_of().subject.artifact, Blobs(tmp_path)))
        .function("right")
        .signature
    )
    for case, known in zip(GENERATED, cases, strict=True):
        (own,) = generate(signature, 5, case)
        (tensor,) = known.inputs
        assert tensor.WhichOneof("content") == "blob"
        given = tensor_from_proto(tensor, Blobs(tmp_path).map, "input")
        assert np.array_equal(given, own)
        assert not given.flags.writeable
    monkeypatch.setattr(subject, "generate", pytest.fail)
    found = measured(request_of(), cases, loader, tmp_path)
    assert (found.status, found.checked) == (Status.OK, True)


def test_inputs_that_are_large_are_made_by_each_candidate(
    request_of, loader, tmp_path, monkeypatch
):
    monkeypatch.setattr(reference, "MAX_KEPT_BYTES", 2 * 4 * SHAPE[0] * SHAPE[1] - 1)
    cases = expected(request_of(), loader, tmp_path)
    assert [list(case.inputs) for case in cases] == [[], []]
    assert measured(request_of(), cases, loader, tmp_path).status is Status.OK


@pytest.mark.parametrize("part", ["inputs", "outputs"])
def test_damaged_file_of_the_reference_makes_no_candidate_wrong(request_of, loader, tmp_path, part):
    cases = expected(request_of(), loader, tmp_path)
    (tensor,) = getattr(cases[0], part)
    path = blob_path(tmp_path, Digest(tensor.blob.sha256, tensor.blob.size_bytes))
    content = np.frombuffer(path.read_bytes(), np.float32) + np.float32(1)
    path.chmod(0o600)
    path.write_bytes(content.tobytes())
    with pytest.raises(InfrastructureError, match="damaged") as caught:
        measured(request_of(), cases, loader, tmp_path)
    assert caught.value.details == {"blob": tensor.blob.sha256}


def test_wrong_candidate_is_wrong_where_all_files_are_whole(request_of, loader, tmp_path):
    cases = expected(request_of(), loader, tmp_path)
    found = measured(request_of("triple"), cases, loader, tmp_path)
    assert found.status is Status.WRONG


def test_blob_that_is_cut_off_or_gone_is_not_mapped(tmp_path):
    digest = keep_blob(tmp_path, b"content")
    assert bytes(Blobs(tmp_path).map(digest)) == b"content"
    empty = keep_blob(tmp_path, b"")
    assert bytes(Blobs(tmp_path).map(empty)) == b""
    blob_path(tmp_path, digest).write_bytes(b"conten")
    with pytest.raises(InfrastructureError, match=r"damaged .*6 bytes"):
        Blobs(tmp_path).map(digest)
    blob_path(tmp_path, digest).unlink()
    with pytest.raises(InfrastructureError, match="unreadable"):
        Blobs(tmp_path).map(digest)
