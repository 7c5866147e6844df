"""Extract the page's two libraries from their packages as classic scripts: `python scripts/vendor_page.py`.

Preact with htm comes from datasette-preact, Vega-Lite with Vega and vega-embed from vl-convert-python; both are
installed to a scratch folder. A page opened from disk cannot import modules, so a module's exports become one global
name; the rest is unchanged. `LICENSES.txt` in the same folder has their licences.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

VENDOR = Path(__file__).resolve().parents[1] / "jaxrl_sql" / "report" / "page" / "vendor"
PACKAGES = ("datasette-preact==0.0.1", "vl-convert-python==1.9.0.post1")
PREACT = "// Preact 10.27.2 with htm 3.1.1, from datasette-preact 0.0.1. Licences: LICENSES.txt\n"
VEGA = "// Vega-Lite 6.4, Vega 6.2.0, vega-embed 7.0.2, from vl-convert-python 1.9.0.post1. Licences: LICENSES.txt\n"


def main() -> int:
    """Write both files and print their sizes."""
    with TemporaryDirectory() as scratch:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", scratch]
        subprocess.run([*pip, *PACKAGES], check=True)
        (path,) = Path(scratch, "datasette_preact", "static").glob("preact-*.js")
        preact = as_script(path.read_text(encoding="utf-8"), "preact")
        bundle = "import vl_convert; print(vl_convert.javascript_bundle('window.vegaEmbed=vegaEmbed;'), end='')"
        done = subprocess.run([sys.executable, "-c", bundle], check=True, capture_output=True, text=True, cwd=scratch)
    for name, head, body in (("preact.js", PREACT, preact), ("vega.js", VEGA, done.stdout)):
        if "</script" in body.lower():
            raise SystemExit(f"{name} contains an end tag, so a page cannot include it")
        text = f"{head}(function(){{{body}\n}})();\n"
        (VENDOR / name).write_text(text, encoding="utf-8")
        print(f"{VENDOR / name}: {len(text):,} characters")
    return 0


def as_script(module: str, name: str) -> str:
    """Return a module whose exports are the properties of a global name."""
    body, exports = re.fullmatch(r"(.*)export\{([^}]*)\};?\s*", module, re.DOTALL).groups()  # type: ignore[union-attr]
    pairs = [export.split(" as ") for export in exports.split(",")]
    return f"{body}window.{name}={{{','.join(f'{pair[-1]}:{pair[0]}' for pair in pairs)}}};"


if __name__ == "__main__":
    sys.exit(main())
