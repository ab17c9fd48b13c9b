"""Target texts: parsing, the canonical form, ids, requirements, preference."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.codegen.llvm.machine import machine_for
from farm.ea import config as ea_config
from farm.errors import InvalidTarget
from farm.target import Target, as_target, host
from farm.target.cpus import CPUS
from farm.target.tags import TAGS

NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,8}", fullmatch=True)
PARTS = st.sampled_from(["unknown", "pc", "none", "linux", "gnu", "musl", "apple", "elf"])
TRIPLES = st.builds(
    lambda arch, rest: "-".join([arch, *rest]),
    st.sampled_from(["x86_64", "amd64", "AMD64", "arm64", "aarch64", "riscv64"]),
    st.lists(PARTS, min_size=1, max_size=3),
)
FEATURES = st.dictionaries(NAMES, st.sampled_from("+-"), min_size=1, max_size=4).map(
    lambda chosen: ",".join(sign + name for name, sign in chosen.items())
)
TAG_NAMES = ", ".join(sorted(TAGS))


@st.composite
def texts(draw: st.DrawFn) -> str:
    options = {"mtriple": TRIPLES, "mcpu": NAMES, "mattr": FEATURES}
    chosen = draw(st.lists(st.sampled_from(sorted(options)), unique=True))
    return " ".join(["llvm", *(f"-{name}={draw(options[name])}" for name in chosen)])


@given(texts() | st.sampled_from(["ea", "ea -config=ea8", "ea -config=ea32"]))
def test_parse_of_the_canonical_text_gives_the_same_target(text: str) -> None:
    target = Target.parse(text)
    again = Target.parse(str(target))
    assert (again, str(again), again.id) == (target, str(target), target.id)
    assert as_target(text) == target == as_target(target)


LINUX = "llvm -mtriple=x86_64-linux-gnu -mcpu=generic"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("llvm -mtriple=x86_64-unknown-linux-gnu", LINUX),
        ("llvm -mtriple=x86_64-pc-linux-gnu", LINUX),
        ("  llvm   -mcpu=generic -mtriple=amd64-linux-gnu ", LINUX),
        ("llvm -mtriple=arm64-linux-gnu", "llvm -mtriple=aarch64-linux-gnu -mcpu=generic"),
        ("llvm -mtriple=arm64-apple-darwin", "llvm -mtriple=aarch64-apple-darwin -mcpu=generic"),
        ("llvm -mtriple=aarch64-none-elf", "llvm -mtriple=aarch64-none-elf -mcpu=generic"),
        (f"{LINUX} -mattr=+b,-c,+a,+b", f"{LINUX} -mattr=+a,+b,-c"),
        ("ea", "ea -config=ea16"),
    ],
)
def test_parse_aliases_vendor_and_order_give_one_text(text: str, canonical: str) -> None:
    assert str(Target.parse(text)) == canonical
    assert Target.parse(text) == Target.parse(canonical)


def test_parse_llvm_alone_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "host_triple", lambda: "aarch64-linux-gnu")
    monkeypatch.setattr(host, "host_cpu", lambda: "some-cpu")
    assert str(Target.parse("llvm")) == "llvm -mtriple=aarch64-linux-gnu -mcpu=some-cpu"
    assert str(Target.parse("llvm -mcpu=other")) == "llvm -mtriple=aarch64-linux-gnu -mcpu=other"
    elsewhere = Target.parse("llvm -mtriple=riscv64-linux-gnu")
    assert elsewhere.option("mcpu") == "generic"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "",
            "target: unknown kind (''); known kinds are ea, llvm, opencl, known tags " + TAG_NAMES,
        ),
        (
            "cuda",
            "target: unknown kind ('cuda'); known kinds are ea, llvm, opencl, known tags "
            + TAG_NAMES,
        ),
        (
            "-mcpu=generic",
            "target: unknown kind ('-mcpu=generic'); known kinds are ea, llvm, opencl, known tags "
            + TAG_NAMES,
        ),
        ("llvm " + "x" * 1020, "target: text too long (1025); use at most 1024"),
        (
            "llvm -march=x",
            "target llvm: unknown option ('-march=x'); known: -mtriple=, -mcpu=, -mattr=, -debug=",
        ),
        (
            "llvm mcpu=x",
            "target llvm: unknown option ('mcpu=x'); known: -mtriple=, -mcpu=, -mattr=, -debug=",
        ),
        (
            "llvm -mcpu=",
            "target llvm: unknown option ('-mcpu='); known: -mtriple=, -mcpu=, -mattr=, -debug=",
        ),
        ("ea -mcpu=x", "target ea: unknown option ('-mcpu=x'); known: -config="),
        (
            "llvm -mcpu=a -mcpu=a",
            "target llvm: -mcpu given twice ('llvm -mcpu=a -mcpu=a'); keep one",
        ),
        (
            "llvm -mcpu=a/b",
            "target llvm: malformed CPU name ('a/b'); use a name such as cortex-a72",
        ),
        (
            "llvm -mtriple=x86_64",
            "target llvm: malformed triple ('x86_64'); use arch-os-abi such as aarch64-linux-gnu",
        ),
        (
            "llvm -mtriple=a-b-c-d-e",
            "target llvm: malformed triple ('a-b-c-d-e'); use arch-os-abi such as aarch64-linux-gnu",
        ),
        (
            "llvm -mattr=avx2",
            "target llvm: malformed feature ('avx2'); use +name or -name, comma-separated",
        ),
        (
            "llvm -mattr=+a,",
            "target llvm: malformed feature (''); use +name or -name, comma-separated",
        ),
        ("llvm -mattr=+a,-a", "target llvm: a both on and off ('+a,-a'); keep one"),
        ("ea -config=ea99", "ea config: unknown name ('ea99'); use one of ea8, ea16, ea32"),
    ],
)
def test_parse_impossible_text_is_refused_with_what_is_known(text: str, problem: str) -> None:
    with pytest.raises(InvalidTarget) as error:
        Target.parse(text)
    assert error.value.message == problem


@given(st.text(max_size=40) | st.text("lvmea -=+,cpuonfigtr16", max_size=40))
def test_parse_random_text_gives_a_target_or_invalid_target(text: str) -> None:
    for given_text in (text, f"llvm {text}", f"llvm -mtriple=a-b -mcpu={text}"):
        try:
            target = Target.parse(given_text)
        except InvalidTarget:
            continue
        assert Target.parse(str(target)) == target


def test_id_differs_with_everything_code_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [
        LINUX,
        "llvm -mtriple=aarch64-linux-gnu",
        "llvm -mtriple=x86_64-linux-musl",
        "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3",
        f"{LINUX} -mattr=+avx2",
        f"{LINUX} -mattr=-avx2",
        "ea -config=ea8",
        "ea -config=ea16",
    ]
    ids = [Target.parse(text).id for text in texts]
    assert len(set(ids)) == len(texts)
    assert all(len(each) == 16 and int(each, 16) >= 0 for each in ids)
    changed = dataclasses.replace(ea_config.EA16, clock_hz=1)
    monkeypatch.setitem(ea_config.CONFIGS, "ea16", changed)
    assert Target.parse("ea").id != ids[-1]
    assert str(Target.parse("ea")) == "ea -config=ea16"


@pytest.mark.parametrize(
    ("text", "requires", "family", "accelerator"),
    [
        (LINUX, ("arch:x86_64",), "llvm/x86_64", False),
        (
            "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72 -mattr=+neon,-sve",
            ("arch:aarch64", *(f"cpu-feature:{name}" for name in ("aes", "crc", "neon", "sha2"))),
            "llvm/aarch64",
            False,
        ),
        (
            "raspberrypi-4b",
            ("arch:aarch64", "cpu-feature:crc", "cpu-feature:neon"),
            "llvm/aarch64",
            False,
        ),
        (
            "llvm -mtriple=aarch64-linux-gnu -mcpu=ampere1",
            ("arch:aarch64", "cpu:ampere1"),
            "llvm/aarch64",
            False,
        ),
        (
            "llvm -mtriple=amd64-linux-gnu -mcpu=x86-64-v2 -mattr=-cx16,+avx",
            (
                "arch:x86_64",
                *(
                    f"cpu-feature:{name}"
                    for name in ("avx", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
                ),
            ),
            "llvm/x86_64",
            False,
        ),
        ("ea -config=ea8", ("ea-config:ea8",), "ea", True),
    ],
)
def test_target_tells_what_a_device_must_provide(
    text: str, requires: tuple[str, ...], family: str, accelerator: bool
) -> None:
    target = Target.parse(text)
    found = (target.requires, target.family, target.is_accelerator)
    assert found == (requires, family, accelerator)
    assert target.option("nothing") is None


def test_preference_puts_accelerators_first_then_the_most_demanding() -> None:
    best_first = [
        "ea -config=ea16",
        "ea -config=ea8",
        "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v4",
        "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3",
        "llvm -mtriple=x86_64-linux-gnu -mcpu=generic -mattr=+avx2",
        "llvm -mtriple=aarch64-linux-gnu -mcpu=generic",
        "llvm -mtriple=x86_64-linux-gnu -mcpu=generic",
    ]
    shuffled = sorted(map(Target.parse, best_first), key=str, reverse=True)
    assert [str(t) for t in sorted(shuffled, key=lambda t: t.preference)] == best_first


@pytest.mark.parametrize("tag", TAGS)
def test_tag_stands_for_a_target_that_the_compiler_knows(tag: str) -> None:
    target = Target.from_tag(tag)
    assert machine_for(target).cpu == target.option("mcpu")
    assert Target.parse(tag) == target == Target.parse(str(target))
    assert all(not requirement.startswith("cpu:") for requirement in target.requires)


def test_unknown_tag_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidTarget, match=f"'toaster'.*{TAG_NAMES}"):
        Target.from_tag("toaster")


@pytest.mark.parametrize(("arch", "cpu"), [(arch, cpu) for arch in CPUS for cpu in CPUS[arch]])
def test_listed_cpu_and_its_features_are_names_that_the_compiler_knows(arch: str, cpu: str) -> None:
    names = ",".join(f"+{name}" for name in sorted(CPUS[arch][cpu]))
    triple = {"armv7": "armv7-linux-gnueabihf"}.get(arch, f"{arch}-linux-gnu")
    text = f"llvm -mtriple={triple} -mcpu={cpu} -mattr={names}"
    assert machine_for(Target.parse(text)).cpu == cpu
