"""Tags: short names of well-known boards and machines, and the targets that they stand for.

Owns: the table. Does not own: what a target is (`farm.target.target`).

Invariant: a tag's target runs on every unit sold under its name: for a chip with several kinds of core, what all of
them have; for one whose maker left the cryptography out, without it.

Notes
-----
CPU names are LLVM's. Which cores a board has is what its maker's data sheet says; the chip is named beside each.
"""

from __future__ import annotations

_A64 = "llvm -mtriple=aarch64-linux-gnu -mcpu="
_A32 = "llvm -mtriple=armv7-linux-gnueabihf -mcpu="
_R64 = "llvm -mtriple=riscv64-linux-gnu -mcpu="
_NO_CRYPTOGRAPHY = " -mattr=-aes,-sha2"

TAGS: dict[str, str] = {
    # Broadcom's chips before the BCM2712 have no cryptography extension.
    "raspberrypi-2b": f"{_A32}cortex-a7",  # BCM2836
    "raspberrypi-3b": f"{_A64}cortex-a53{_NO_CRYPTOGRAPHY}",  # BCM2837
    "raspberrypi-4b": f"{_A64}cortex-a72{_NO_CRYPTOGRAPHY}",  # BCM2711
    "raspberrypi-5": f"{_A64}cortex-a76",  # BCM2712
    "raspberrypi-zero2w": f"{_A64}cortex-a53{_NO_CRYPTOGRAPHY}",  # RP3A0 with BCM2710A1
    "beaglebone-black": f"{_A32}cortex-a8",  # AM3358
    "odroid-n2": f"{_A64}cortex-a53",  # S922X: 4 A73, 2 A53
    "rock-5b": f"{_A64}cortex-a76",  # RK3588: 4 A76, 4 A55 with the same features
    "jetson-nano": f"{_A64}cortex-a57",  # Tegra X1
    "jetson-xavier": f"{_A64}carmel",  # Xavier
    "jetson-orin": f"{_A64}cortex-a78ae",  # Orin
    "pixel-6": "llvm -mtriple=aarch64-linux-android -mcpu=cortex-a76",  # Tensor: X1, A76, A55
    "graviton2": f"{_A64}neoverse-n1",
    "graviton3": f"{_A64}neoverse-v1",
    "visionfive2": f"{_R64}sifive-u74",  # JH7110
    "bananapi-f3": f"{_R64}spacemit-x60",  # K1, with vectors of 256 bits
    "wasm": "llvm -mtriple=wasm32-unknown-unknown -mattr=+simd128",
}
