"""A CUDA program without CUDA's toolkit: it calls the driver's own library, and the driver compiles its kernels.

``cuda_program.py hold MIB`` allocates, says "held MIB" or "refused CODE by CALL", and stays until its input ends. More
lines of its input: ``hold MIB``, ``managed MIB``, ``memory`` and ``busy SECONDS``. ``fault`` writes to the
address 0, ``misaligned`` to an odd one. A call that fails ends the program with "failed CALL: CODE" (2: out of memory,
700: illegal address, 716: misaligned address).
"""

from __future__ import annotations

import ctypes
import sys
import time

KERNELS = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 nanoseconds)
{
    .reg .u64 %t<4>;
    .reg .pred %p;
    ld.param.u64 %t3, [nanoseconds];
    mov.u64 %t0, %globaltimer;
again:
    mov.u64 %t1, %globaltimer;
    sub.u64 %t2, %t1, %t0;
    setp.lt.u64 %p, %t2, %t3;
    @%p bra again;
    ret;
}
.visible .entry store(.param .u64 address)
{
    .reg .u64 %a;
    .reg .u32 %v;
    ld.param.u64 %a, [address];
    mov.u32 %v, 1;
    st.global.u32 [%a], %v;
    ret;
}
"""


class CudaError(Exception):
    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: {code}")
        self.call, self.code = call, code


class Cuda:
    """The primary context of the first GPU that the process sees."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self._module: ctypes.c_void_p | None = None

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self._lib, name)(*arguments)
        if code:
            raise CudaError(name, code)

    def hold(self, mib: int) -> int:
        """Allocate, and return the address."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(mib << 20))
        return address.value

    def hold_managed(self, mib: int) -> None:
        """Allocate memory that the driver moves between host and GPU, visible to all streams (flag 1), and fill it."""
        address = ctypes.c_uint64()
        self.call("cuMemAllocManaged", ctypes.byref(address), ctypes.c_size_t(mib << 20), ctypes.c_uint(1))
        self.call("cuMemsetD8_v2", address, ctypes.c_ubyte(1), ctypes.c_size_t(mib << 20))
        self.call("cuCtxSynchronize")

    def memory(self) -> tuple[int, int]:
        """Free and whole memory in bytes, as the program sees them."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def run(self, kernel: bytes, argument: int) -> None:
        """Run one thread of a kernel, and wait for its end."""
        if self._module is None:
            self._module = ctypes.c_void_p()
            self.call("cuModuleLoadData", ctypes.byref(self._module), KERNELS)
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), self._module, kernel)
        value = ctypes.c_uint64(argument)
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(value), ctypes.c_void_p))
        self.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
        self.call("cuCtxSynchronize")


def say(text: str) -> None:
    print(text, flush=True)


def do(cuda: Cuda, words: list[str]) -> None:
    match words:
        case ["hold" | "managed" as how, mib]:
            try:
                (cuda.hold if how == "hold" else cuda.hold_managed)(int(mib))
                say(f"held {mib}")
            except CudaError as error:
                say(f"refused {error.code} by {error.call}")
        case ["memory"]:
            free, total = cuda.memory()
            say(f"memory {free >> 20} {total >> 20}")
        case ["busy", seconds]:
            until = time.monotonic() + float(seconds)
            say("busy")
            while time.monotonic() < until:
                cuda.run(b"spin", 200_000_000)
            say("idle")
        case ["fault"]:
            cuda.run(b"store", 0)
        case ["misaligned"]:
            cuda.run(b"store", cuda.hold(1) + 1)
        case _:
            raise SystemExit(f"unknown: {words}")


def main(words: list[str]) -> int:
    try:
        cuda = Cuda()
        do(cuda, words)
        for line in sys.stdin:
            do(cuda, line.split())
    except CudaError as error:
        say(f"failed {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
