"""The emulator: main memory, sequencer and compute core.

Owns what an instruction does and a count of cycles. Where the description is silent, this is what holds here:

- accumulators wrap around at 24 bits; Save extends their sign to 32 bits, LdSet and its like take the low 24 bits;
- addresses are sums modulo 2**17; an access that reaches beyond the memory, or is not aligned as it has to be, is a
  fault;
- max takes the least 24-bit number from coefficients that are to be ignored, so that they change nothing.

The count of cycles is this package's own: a word that is fetched or loaded from main memory and an instruction of the
compute core take one cycle each (the core can do 16 multiply-adds in it), and so does a byte over the host's quad SPI.
"""

import numpy as np

from farm.errors import DeviceFault
from marlann.isa import SEQUENCER, Instruction, decode

MEMORY_BYTES = 1 << 17
CODE_WORDS = 512
COEFFICIENTS = 512
MAX_CALLS = 64
FUEL = 1 << 28
"""Cycles after which a run is a fault."""
_IGNORED = -128


class Machine:
    """One device. Everything in it is zero at first."""

    def __init__(self) -> None:
        self.memory = np.zeros(MEMORY_BYTES, np.uint8)
        self.code: list[Instruction | None] = [None] * CODE_WORDS
        self.coefficients = np.zeros((2, COEFFICIENTS, 8), np.int32)
        self.accumulators = [0, 0]
        self.lbp = self.sbp = self.cbp = 0
        self.cycles = 0
        self._loading: tuple[str, int, int] | None = None
        self._decoded: dict[int, Instruction] = {}

    def write(self, address: int, data: np.ndarray) -> None:
        """Write bytes into main memory, as the host does."""
        sent = data.reshape(-1).view(np.uint8)
        self._check(address, len(sent), 2, "host")
        self.memory[address : address + len(sent)] = sent
        self.cycles += len(sent)

    def read(self, address: int, size: int) -> np.ndarray:
        """Return bytes of main memory, as the host reads them."""
        self._check(address, size, 2, "host")
        self.cycles += size
        return self.memory[address : address + size].copy()

    def run(self, address: int) -> None:
        """Run from an address until Return with an empty call stack; raises DeviceFault."""
        calls: list[int] = []
        limit = self.cycles + FUEL
        self._loading = None
        while True:
            instruction = self._fetch(address)
            self.cycles += 1
            address += 4
            if self.cycles > limit:
                raise _fault("FUEL", f"more than {FUEL} cycles", address)
            if instruction.name == "Call":
                if len(calls) == MAX_CALLS:
                    raise _fault("CALLS", f"more than {MAX_CALLS} calls inside each other", address)
                calls.append(address)
                address = instruction.operand("maddr")
            elif instruction.name == "Return":
                if not calls:
                    return
                address = calls.pop()
            elif instruction.name in SEQUENCER:
                self._sequence(instruction, address)
            else:
                self._compute(instruction)
            if instruction.name not in ("LoadCode", "LoadCoeff0", "LoadCoeff1", "ContinueLoad"):
                self._loading = None

    def _fetch(self, address: int) -> Instruction:
        self._check(address, 4, 4, "fetch")
        word = int(self.memory[address : address + 4].view(np.uint32)[0])
        found = self._decoded.get(word)
        if found is None:
            found = self._decoded[word] = decode(word)
        return found

    def _sequence(self, it: Instruction, address: int) -> None:
        match it.name:
            case "Execute":
                first, count = it.operand("caddr"), it.operand("len")
                if first + count > CODE_WORDS:
                    raise _fault(
                        "CODE", f"{it} reaches beyond the {CODE_WORDS} words of code", address
                    )
                for at in range(first, first + count):
                    instruction = self.code[at]
                    if instruction is None or instruction.name in SEQUENCER:
                        raise _fault(
                            "CODE", f"{it}: word {at} is {instruction or 'not loaded'}", address
                        )
                    self._compute(instruction)
            case "LoadCode" | "LoadCoeff0" | "LoadCoeff1":
                self._loading = (it.name, it.operand("maddr"), it.operand("caddr"))
                self._load(1)
            case "ContinueLoad":
                if self._loading is None:
                    raise _fault("LOAD", "ContinueLoad does not follow a load", address)
                self._load(it.operand("arg"))

    def _load(self, count: int) -> None:
        assert self._loading is not None
        name, source, to = self._loading
        size = 4 if name == "LoadCode" else 8
        if to + count > CODE_WORDS:
            raise _fault(
                "LOAD", f"{name} of {count} words to {to} reaches beyond {CODE_WORDS}", source
            )
        self._check(source, size * count, 4 if size == 4 else 2, name)
        data = self.memory[source : source + size * count]
        if size == 4:
            self.code[to : to + count] = [decode(int(word)) for word in data.view(np.uint32)]
        else:
            self.coefficients[int(name[-1]), to : to + count] = data.view(np.int8).reshape(count, 8)
        self.cycles += count
        self._loading = (name, source + size * count, to + count)

    def _compute(self, it: Instruction) -> None:
        self.cycles += 1
        name, address = it.name, it.operand("maddr")
        match name:
            case "SetLBP":
                self.lbp = address
            case "AddLBP":
                self.lbp = (self.lbp + address) % MEMORY_BYTES
            case "SetSBP":
                self.sbp = address
            case "AddSBP":
                self.sbp = (self.sbp + address) % MEMORY_BYTES
            case "SetCBP":
                self.cbp = it.operand("caddr")
            case "AddCBP":
                self.cbp = (self.cbp + it.operand("caddr")) % COEFFICIENTS
            case "MACC" | "MACCZ" | "MMAX" | "MMAXZ" | "MMAXN":
                self._products(name, (address + self.lbp) % MEMORY_BYTES, it.operand("caddr"))
            case _:
                self._moved(name.rstrip("01"), name[-1], address, it.operand("arg"))

    def _products(self, name: str, address: int, coefficient: int) -> None:
        self._check(address, 8, 2, name)
        values = self.memory[address : address + 8].view(np.int8).astype(np.int32)
        row = self.coefficients[:, (coefficient + self.cbp) % COEFFICIENTS]
        if name.startswith("MACC"):
            sums = (row @ values).tolist()
            kept = [0, 0] if name == "MACCZ" else self.accumulators
            self.accumulators = [_wrapped(a + b) for a, b in zip(kept, sums, strict=True)]
            return
        least = -(1 << 23)
        found = np.where(row == _IGNORED, least, row * values).max(axis=1).tolist()
        kept = {"MMAX": self.accumulators, "MMAXZ": [0, 0], "MMAXN": [least, least]}[name]
        self.accumulators = [max(a, b) for a, b in zip(kept, found, strict=True)]

    def _moved(self, name: str, which: str, address: int, shift: int) -> None:
        """Do what stores, saves and loads do, for one accumulator or both."""
        size = 1 if name in ("Store", "ReLU") else 4
        base = self.lbp if name.startswith("Ld") else self.sbp
        for bank in (int(which),) if which in "01" else (0, 1):
            at = (address + base + bank * size) % MEMORY_BYTES
            self._check(at, size, 1 if size == 1 else 2, name)
            place = self.memory[at : at + size]
            value = self.accumulators[bank]
            if size == 1:
                least = 0 if name == "ReLU" else -128
                place.view(np.int8)[0] = min(max(value >> shift, least), 127)
            elif name == "Save":
                place[:] = np.frombuffer(value.to_bytes(4, "little", signed=True), np.uint8)
            else:
                loaded = _wrapped(int.from_bytes(place.tobytes(), "little"))
                combined = {
                    "LdSet": loaded,
                    "LdAdd": _wrapped(value + loaded),
                    "LdMax": max(value, loaded),
                }
                self.accumulators[bank] = combined[name]

    def _check(self, address: int, size: int, align: int, what: str) -> None:
        if address % align:
            raise _fault("ALIGN", f"{what} at {address}: not a multiple of {align}", address)
        if not 0 <= address <= MEMORY_BYTES - size:
            raise _fault(
                "MEMORY", f"{what} of {size} bytes at {address}: memory has {MEMORY_BYTES}", address
            )


def _wrapped(value: int) -> int:
    """Return the 24-bit number with the low bits of a value."""
    return (value + (1 << 23)) % (1 << 24) - (1 << 23)


def _fault(code: str, what: str, address: int) -> DeviceFault:
    return DeviceFault(f"marlann: {what}; correct the program", fault=code, address=str(address))
