"""Graphs on a farm: one artifact, an accelerator with the CPU for the rest, and an author's own code generator."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import plug_ins
import pytest

import farm
from farm.cli import main
from farm.client import connect
from farm.graph import (
    GraphBuilder,
    GraphModule,
    TargetBackend,
    build_graph,
    execute,
    partition,
    placement,
    to_json,
)

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
PAIR = EXAMPLES / "graph" / "pair.py"
BYOC = EXAMPLES / "port" / "byoc"


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(PAIR))


@pytest.fixture
def conv8(monkeypatch):
    monkeypatch.syspath_prepend(str(BYOC))
    import conv8

    yield conv8
    del sys.modules["conv8"]


def run_program(*arguments, **environment):
    run = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_quantised_pair_is_one_artifact_and_equals_the_oracle_on_every_device(
    example, embedded_farm
):
    graph, backends = example["graph"], example["backends"]
    x = np.random.default_rng(4).integers(-128, 128, graph.types["x"].shape).astype(np.int8)
    (wanted,) = execute(graph, [x])
    assert len(np.unique(wanted)) > 50  # not saturated away
    ran = {}
    with connect(embedded_farm.address) as client:
        built = build_graph(graph, backends, builder=client.build)
        for selector in ("kind=ea", "kind=cpu,emulator!=qemu-user"):
            with client.acquire(selector) as session:
                module = GraphModule(built, session.load(built.artifact))
                (found,) = module([x])
                measured = module.measure([x], repeat=2)
            assert found.dtype == wanted.dtype
            assert (found == wanted).all()
            report = placement(built.partition, measured)
            ran[selector] = [place.target.partition(" ")[0] for place in report.regions]
            assert all(place.measured_s > 0 for place in report.regions)
    assert list(ran.values()) == [["ea", "llvm", "ea"], ["llvm", "llvm", "llvm"]]
    places = {node.node: (node.backend, node.reason) for node in report.nodes}
    assert places["layer1"] == ("ea", "matches layer")
    assert places["bent"] == ("cpu", "no backend has a pattern for it")


def test_program_of_the_example_shows_what_ran_where(embedded_farm):
    said = run_program(PAIR, FARM_TRACKER=embedded_farm.address)
    assert re.search(
        r"pair_ea_0 +ea: ea -config=ea16 +3 +2048 B +1536 B +[0-9.]+ us +[0-9.]+ us", said
    )


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path, embedded_farm):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FARM_TRACKER", embedded_farm.address)

    def run(*arguments):
        code = main.run([str(argument) for argument in arguments])
        return code, capsys.readouterr().out

    return run


def test_command_runs_a_graph_and_tells_where_in_json(cli, tmp_path):
    code, said = cli(
        "graph",
        "run",
        PAIR,
        "--device",
        "kind=ea",
        "--random",
        1,
        "--save",
        "out",
        "--repeat",
        1,
        "-o",
        "json",
    )
    value = json.loads(said)
    assert (code, value["agrees"], value["device"]) == (0, True, "ea-1-ea")
    assert [r["backend"] for r in value["placement"]["regions"]] == ["ea", "cpu", "ea"]
    assert all(r["measured_s"] > 0 for r in value["placement"]["regions"])
    assert (tmp_path / "out" / "pair.farm").exists()
    assert np.load(tmp_path / "out" / "layer2.npy").shape == (32, 16)


def layer(seed=2, size=9, channels=5, outputs=16, **convolution):
    """Return a convolution with bias, rescaling and ReLU."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder("layer")
    x = b.input("x", (1, size, size, channels), "int8")
    weight = b.constant(rng.integers(-90, 90, (3, 3, channels, outputs)).astype(np.int8))
    options = {"layout": "NHWC", "padding": [1, 1], **convolution}
    y = b.op("conv2d", x, weight, **options)
    y = b.op("add", y, b.constant(rng.integers(-999, 999, outputs).astype(np.int32)))
    factors = b.constant(rng.integers(1 << 30, 1 << 31, outputs).astype(np.int32))
    y = b.op("requantize", y, factors, b.constant(np.full(outputs, 39, np.int32)), zero_point=-3)
    return b.finish(b.op("relu", y, name="y")), rng.integers(
        -128, 128, (1, size, size, channels)
    ).astype(np.int8)


@pytest.mark.parametrize(
    ("options", "cpu", "selector"),
    [
        ({}, "llvm", "kind=cpu,emulator!=qemu-user"),
        pytest.param(
            {"block": 16, "columns": 7},
            "llvm -mtriple=aarch64-linux-gnu",
            "arch=aarch64",
            marks=pytest.mark.skipif(
                shutil.which("qemu-aarch64") is None,
                reason="qemu-aarch64 is missing: install qemu-user",
            ),
        ),
    ],
)
def test_own_code_generator_runs_a_layer_on_the_farm_bit_for_bit(
    conv8, embedded_farm, options, cpu, selector
):
    graph, image = layer(stride=[2, 1])
    with connect(embedded_farm.address) as client:
        built = build_graph(
            graph,
            [conv8.BACKEND],
            cpus=[cpu],
            builder=client.build,
            options={"conv8": options},
            strict=True,
        )
        with client.acquire(selector) as session:
            (found,) = GraphModule(built, session.load(built.artifact))([image])
    (placed,) = built.partition.regions
    assert placed.region.backend == "conv8"
    assert placed.code.document["stride_h"] == 2
    assert (found == execute(graph, [image])[0]).all()


@pytest.mark.parametrize(
    ("convolution", "reason"),
    [
        ({"dilation": [2, 2], "padding": [2, 2]}, "dilation (2, 2); it has none"),
        ({"outputs": 10}, "10 output channels; it does 8 at a time"),
    ],
)
def test_own_check_says_why_not_and_the_cpu_takes_the_layer(conv8, convolution, reason):
    graph, _ = layer(**convolution)
    parts = partition(graph, [conv8.BACKEND])
    assert {placed.region.backend for placed in parts.regions} == {"cpu"}
    assert parts.reasons["y"] == f"conv8: layer: {reason}"


def test_own_code_generator_is_found_where_its_package_is_installed(cli, monkeypatch, tmp_path):
    plug_ins.install(tmp_path / "site", BYOC)
    plug_ins.find_from(monkeypatch, tmp_path / "site")
    (tmp_path / "layer.json").write_bytes(to_json(layer()[0]))
    code, said = cli("graph", "place", "layer.json", "--backend", "conv8", "-o", "json")
    assert (code, [r["backend"] for r in json.loads(said)["regions"]]) == (0, ["conv8"])
    sys.modules.pop("conv8")


def test_accelerators_that_packages_bring_take_what_they_compile_of_a_graph(monkeypatch, tmp_path):
    plug_ins.install(tmp_path, EXAMPLES / "port" / "marlann", EXAMPLES / "port" / "target")
    plug_ins.find_from(monkeypatch, tmp_path)
    graph, image = layer(outputs=7, stride=[2, 1])
    built = build_graph(graph, [TargetBackend("marlann"), TargetBackend("tile8")])
    (wanted,) = execute(graph, [image])
    with farm.load(built.artifact) as module:
        loaded = GraphModule(built, module)
        assert (loaded([image])[0] == wanted).all()
        targets = [target.partition(" ")[0] for target in loaded.targets().values()]
    assert targets == ["marlann", "llvm"]
    reasons = built.partition.reasons
    assert reasons["conv2d_1"] == "matches layer"
    assert "marlann: layer: what is around the sum is more than" in reasons["requantize_1"]
    assert "tile8: layer: conv2d_1 (conv2d) was taken before" in reasons["requantize_1"]


def test_page_of_the_own_code_generator_runs_and_its_file_is_short(embedded_farm):
    page = (BYOC / "README.md").read_text()
    (code,) = re.findall(r"^```python farm\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    said = run_program("-c", code, FARM_TRACKER=embedded_farm.address, PYTHONPATH=str(BYOC))
    assert re.search(r"residual_conv8_0 +conv8: any CPU", said) or "conv8: llvm" in said
    assert re.search(r"\(\{'block': \d+, 'columns': \d\}, [0-9.e-]+\)", said)
    assert len((BYOC / "conv8.py").read_text().splitlines()) <= 150
