"""Makes src/device/cuda/kernels.ptx from kernels.cu, or checks that the one in the tree was made from it. Needs no GPU.

    python scripts/kernels.py            writes kernels.ptx
    python scripts/kernels.py --check    compares it byte for byte, and assembles it for the processors in use

The compiler is NVRTC 12.0, pinned: its PTX (version 8.0) is taken by every driver from 525 on. The assembler only checks; a driver
assembles what it loads by itself. Both are wheels of python/requirements-dev.txt.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib.util
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent / "src" / "device" / "cuda"
SOURCE, PTX = HERE / "kernels.cu", HERE / "kernels.ptx"
VERSION = (12, 0)
OPTIONS = (b"--gpu-architecture=compute_75", b"--std=c++14", b"--fmad=false")
PROCESSORS = ("sm_75", "sm_80", "sm_90")


def fail(why: str) -> None:
    """Ends with `why` on standard error."""
    sys.exit(f"kernels: {why}")


def wheel(module: str, inside: str) -> Path:
    """The file `inside` of an installed NVIDIA wheel."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(root) / module / inside
        if path.exists():
            return path
    fail(f"nvidia/{module}/{inside} is not installed; see python/requirements-dev.txt")
    raise AssertionError


def compiled(source: bytes) -> bytes:
    """PTX of `source`, with a first line that names the source by its hash."""
    folder = wheel("cuda_nvrtc", "lib/libnvrtc.so.12").parent
    for builtins in folder.glob("libnvrtc-builtins.so*"):
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
    nvrtc = ctypes.CDLL(str(folder / "libnvrtc.so.12"))
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    if (major.value, minor.value) != VERSION:
        fail(f"NVRTC {major.value}.{minor.value} is installed; {VERSION[0]}.{VERSION[1]} makes the PTX in the tree")
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernels.cu", 0, None, None)
    status = nvrtc.nvrtcCompileProgram(program, len(OPTIONS), (ctypes.c_char_p * len(OPTIONS))(*OPTIONS))
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    if status != 0 or log.value.strip():
        fail(f"{SOURCE.name} does not compile cleanly\n{log.value.decode(errors='replace')}")
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, ptx)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return b"// kernels.cu sha256 " + hashlib.sha256(source).hexdigest().encode() + b"\n" + ptx.value


def assemble(ptx: Path) -> None:
    """Assembles for each of PROCESSORS; a kernel that spills registers to memory is refused."""
    ptxas = wheel("cuda_nvcc", "bin/ptxas")
    with tempfile.TemporaryDirectory() as folder:
        for processor in PROCESSORS:
            target = [f"--gpu-name={processor}", "--verbose", "--warn-on-spills", f"--output-file={folder}/out"]
            done = subprocess.run([ptxas, *target, ptx], capture_output=True, text=True, check=False)
            said = done.stdout + done.stderr
            spilled = [n for n in re.findall(r"(\d+) bytes spill", said) if n != "0"]
            if done.returncode != 0 or spilled or "warning" in said:
                fail(f"ptxas {processor}: {said}")
            registers = [int(n) for n in re.findall(r"Used (\d+) registers", said)]
            print(f"kernels: {len(registers)} kernels for {processor}, at most {max(registers)} registers, no spills")


def main() -> None:
    """Writes or checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail where kernels.ptx is not what would be written"
    )
    check = parser.parse_args().check
    if check and platform.machine() != "x86_64":
        print(f"kernels: not checked: NVIDIA has no NVRTC {VERSION[0]}.{VERSION[1]} for {platform.machine()}")
        return
    made = compiled(SOURCE.read_bytes())
    if not check:
        PTX.write_bytes(made)
    elif not PTX.exists() or PTX.read_bytes() != made:
        fail(f"{PTX} was not made from {SOURCE.name} as it is; run python scripts/kernels.py and commit the result")
    assemble(PTX)


if __name__ == "__main__":
    main()
