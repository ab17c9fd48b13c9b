"""``farm ea``: what it writes, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest

HEAD = ".isa 1\n.mach ea16\n.args A[64], C[64]\n.sem x\n"
LOAD = "ld.s s[0], A+0, rows=4 cols=16 dstride=16 lstride=4"
STORE = "st.s C+0, s[0], rows=4 cols=16 dstride=16 lstride=4"
COPY = f"{HEAD}{LOAD} | post x\n{STORE} | wait x\nhalt\n"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "copy.eas"
    path.write_text(COPY)
    return path


def test_what_is_assembled_disassembles_to_a_program_with_the_same_image(cli, source, tmp_path):
    first, second = tmp_path / "first.ea", tmp_path / "second.ea"
    ended = cli("ea", "asm", source, "--out", first, "-o", "json")
    assert (ended.code, ended.json["args"]) == (0, {"A": 64, "C": 64})
    assert ended.json["size_bytes"] == first.stat().st_size
    text = cli("ea", "disasm", first, "-o", "json").json["text"]
    source.write_text(text)
    assert cli("ea", "asm", source, "--out", second).code == 0
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("form", ["text", "image"])
def test_a_run_saves_what_it_stored_and_says_where_the_cycles_went(cli, source, tmp_path, form):
    if form == "image":
        cli("ea", "asm", source, "--out", tmp_path / "copy.ea")
    file = source if form == "text" else tmp_path / "copy.ea"
    names = ("A", "C") if form == "text" else ("arg0", "arg1")
    values = np.arange(64, dtype=np.int8)
    np.save(tmp_path / "a.npy", values)
    options = [
        "--arg",
        f"{names[0]}={tmp_path / 'a.npy'}",
        "--save",
        f"{names[1]}={tmp_path / 'c.npy'}",
    ]
    ended = cli("ea", "run", file, *options, "-o", "json")
    assert (ended.code, ended.err) == (0, "")
    assert np.array_equal(np.load(tmp_path / "c.npy"), values)
    assert ended.json["instructions"] == 3
    assert ended.json["busy"] == {"LD": 6, "GE": 0, "VE": 0, "ST": 6}
    # Load from 1 to 7, complete at 107; store to 113, complete at 213; then HALT.
    assert ended.json["cycles"] == 214
    shown = cli("ea", "run", file, *options)
    assert "214 cycles, 2.1 us at 100 MHz" in shown.out


def test_another_legal_order_gives_the_same_bytes(cli, source, tmp_path):
    values = np.arange(64, dtype=np.int8)
    np.save(tmp_path / "a.npy", values)
    save = f"C={tmp_path / 'c.npy'}"
    arg = f"A={tmp_path / 'a.npy'}"
    ended = cli("ea", "run", source, "--arg", arg, "--save", save, "--chaos", "3", "-o", "json")
    assert (ended.code, "cycles" in ended.json) == (0, False)
    assert np.array_equal(np.load(tmp_path / "c.npy"), values)


def test_a_trace_holds_every_instruction(cli, source, tmp_path):
    ended = cli("ea", "trace", source, "--out", tmp_path / "trace.json", "-o", "json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert (ended.code, ended.json["cycles"]) == (0, 214)
    assert [event["name"] for event in events if event["ph"] == "X"] == ["ld.s", "st.s"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (COPY.replace("cols=16", "colz=16", 1), "copy.eas:5:"),
        (COPY.replace("| wait x", ""), "HAZARD at pc 1"),
        (COPY.replace("A[64]", "A[63]"), "DRAM_OOB at pc 0"),
        (COPY.replace("ea16", "ea17"), "unknown configuration"),
        ("\0\1", "copy.eas:1:1:"),
    ],
)
def test_a_wrong_program_is_refused_with_its_place(cli, source, tmp_path, text, words):
    source.write_text(text)
    out = tmp_path / "copy.ea"
    ended = cli("ea", "asm", source, "--out", out, "-o", "json")
    assert (ended.code, out.exists()) == (2, False)
    assert words in ended.error["message"]


def test_an_unchecked_run_faults_with_the_facts(cli, source):
    source.write_text(HEAD + "st.s C, s[0], rows=1 cols=16\nhalt\n")
    ended = cli("ea", "run", source, "--no-check", "-o", "json")
    assert ended.code == 1
    assert ended.error["details"]["fault"] == "UNINIT"
    assert "pc 0" in ended.error["message"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--arg", "B=64"], "the program has A, C"),
        (["--arg", "A"], "no NAME=VALUE"),
        (["--arg", "A=64", "--arg", "A=65"], "given once"),
        (["--arg", f"A={1 << 40}"], "too large"),
        (["--arg", f"A={'9' * 5000}"], "too large (99999999999999999999)"),
        (["--arg", f"B={'9' * 5000}"], "the program has A, C"),
        (["--arg", "A=missing.npy"], "missing.npy"),
        (["--arg", "A=63"], "DRAM_OOB"),
        (["--save", "C"], "no NAME=VALUE"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(cli, source, options, words):
    ended = cli("ea", "run", source, *options)
    assert ended.code == 2
    assert words in ended.err


def test_a_file_that_is_neither_text_nor_image_is_refused(cli, source):
    source.write_bytes(b"\xff\xfe\x00")
    ended = cli("ea", "disasm", source)
    assert ended.code == 2
    assert "neither an image (EAPR) nor text" in ended.err
