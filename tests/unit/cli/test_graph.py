"""``farm graph``: what it shows, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from graph_examples import quantised_pair

from farm.graph import GraphBuilder, to_json

OWN = """
import sys
sys.path.insert(0, {tests!r})
from graph_examples import Takes, quantised_pair
graph = quantised_pair()
backends = [Takes("own", frozenset({{"bent"}}), knobs={{"tile": (4, 8), "fast": (True, False)}})]
"""


@pytest.fixture
def document(tmp_path):
    path = tmp_path / "pair.json"
    path.write_bytes(to_json(quantised_pair()))
    return path


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN.format(tests=str(Path(__file__).parents[2])))
    return path


def test_show_prints_a_graph_and_as_json_its_document(cli, document):
    assert cli("graph", "show", document).out.startswith("graph pair(x: int8[6, 24]) -> layer2\n")
    value = cli("graph", "show", document, "-o", "json").json
    assert value == json.loads(document.read_bytes())


def test_place_says_where_and_why(cli, document):
    value = cli("graph", "place", document, "--backend", "ea -config=ea8", "-o", "json").json
    assert [r["target"] for r in value["regions"]] == [
        "ea -config=ea8",
        "any CPU",
        "ea -config=ea8",
    ]
    assert [n["reason"] for n in value["nodes"] if n["node"] == "bent"] == [
        "no backend has a pattern for it"
    ]
    assert "pair_ea_0" in cli("graph", "place", document, "--backend", "ea").out


def test_place_uses_the_files_own_backends_and_options(cli, own):
    for options, tile in (([], 4), (["--backend", "own", "--option", "own.tile=8"], 8)):
        value = cli("graph", "place", own, *options, "-o", "json").json
        (region,) = [r for r in value["regions"] if r["backend"] == "own"]
        assert region["options"] == {"tile": tile, "fast": True}


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--option", "tile=8"], "INVALID_INPUT", "malformed; use BACKEND.KNOB=VALUE"),
        (["--option", "own.tile=5"], "INVALID_INPUT", "option tile is 5; use one of 4, 8"),
        (["--option", "own.tile=true"], "INVALID_INPUT", "option tile is True; use one of 4, 8"),
        (["--option", "else.tile=4"], "INVALID_INPUT", "no such backend; there is own"),
        (["--backend", "npu9000"], "INVALID_TARGET", "npu9000"),
    ],
)
def test_options_that_do_not_fit_end_with_2(cli, own, options, code, message):
    ended = cli("graph", "place", own, *options, "-o", "json")
    assert (ended.code, ended.error["code"]) == (2, code)
    assert message in ended.error["message"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{}", "a.json: graph document: format is not 'kernel-farm graph'"),
        ("a.py", "x = 1", "defines no `graph`"),
        ("a.py", "graph = 3", "defines no `graph`"),
        (
            "a.py",
            "from farm.graph import find_operator\nfind_operator('gemm')",
            "a.py:2: operator 'gemm'",
        ),
    ],
)
def test_files_that_are_no_graph_end_with_2(cli, tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    ended = cli("graph", "show", path, "-o", "json")
    assert ended.code == 2
    assert message in ended.error["message"]


def test_what_backends_print_or_raise_is_not_in_the_result(cli, own):
    own.write_text(
        own.read_text()
        + """
class Loud(Takes):
    @property
    def patterns(self):
        print("patterns!")
        return super().patterns
    def compile(self, region, options):
        print("compile!")
        return super().compile(region, options)
class Nameless(Takes):
    name = property(lambda self: 1 / 0)
    def __init__(self):
        pass
backends = [Nameless(), Loud("loud", frozenset({"bent"}))]
"""
    )
    ended = cli("graph", "place", own, "-o", "json")
    assert [r["backend"] for r in ended.json["regions"] if r["backend"] != "cpu"] == ["loud"]
    assert "compile!" in ended.err
    assert any("ZeroDivisionError" in problem for problem in ended.json["problems"])
    ended = cli("graph", "place", own, "--backend", "loud", "-o", "json")
    assert (ended.code, ended.json["problems"]) == (0, [])


def test_values_whose_names_are_alike_have_inputs_of_their_own(cli, tmp_path):
    b = GraphBuilder("g")
    values = [b.input(name, (2,)) for name in ("a.b", "a_b", "a b", "9")]
    total = b.op("concat", *values)
    (tmp_path / "g.json").write_bytes(to_json(b.finish(total)))
    message = cli("graph", "run", tmp_path / "g.json", "-o", "json").error["message"]
    assert "missing a_b: float32[2], a_b_2: float32[2], a_b_3: float32[2], _9:" in message


def test_backends_that_are_no_list_end_with_2(cli, own):
    own.write_text(own.read_text() + "backends = 3\n")
    assert "`backends` is no list" in cli("graph", "place", own, "-o", "json").error["message"]


def test_run_without_inputs_names_them_before_it_connects(cli, document, tmp_path):
    ended = cli("graph", "run", document, "-o", "json")
    assert ended.code == 2
    assert "inputs: missing x: int8[6, 24]" in ended.error["message"]
    np.save(tmp_path / "x.npy", np.zeros((6, 24), np.int16))
    ended = cli("graph", "run", document, "--input", f"x={tmp_path / 'x.npy'}", "-o", "json")
    assert "does not fit argument x (has int16[6, 24])" in ended.error["message"]
