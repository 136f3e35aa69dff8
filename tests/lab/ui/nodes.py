"""Modules of the user interface run in node, without a browser: the requests of a view, and what it would
draw.

in_node("compare/compare", "return ui.comparedSpecs(...)", tmp_path) returns the value of the code, in which
`ui` is the module.
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nbtrain.lab.ui.script import script

DOM = """
globalThis.Node = class {
  constructor() {
    Object.assign(this, { children: [], dataset: {}, style: { setProperty() {} }, attributes: {} });
    this.classList = { add() {}, toggle() {} };
    this.textContent = "";
  }
  append(...more) { this.children.push(...more); }
  remove() {}
  prepend(...more) { this.children.unshift(...more); }
  replaceChildren(...more) { this.children = more; }
  setAttribute(name, value) { this.attributes[name] = value; }
  removeAttribute(name) { delete this.attributes[name]; }
  get options() { return this.children; }
  addEventListener() {}
  querySelector() { return null; }
  querySelectorAll() { return []; }
};
globalThis.ResizeObserver = class { observe() {} };
globalThis.document = { createElement: () => new Node(), createElementNS: () => new Node() };
"""
"""The part of a page that views need to be created; elements have no size, so no chart is drawn."""

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


def in_node(module: str, code: str, folder: Path, exports: tuple[str, ...] = ()) -> Any:
    """Run `code`, the body of an async function, and return its result.

    `exports` are names that `module` only imports and that the code needs.
    """
    more = f"\nexport {{ {', '.join(exports)} }};\n" if exports else ""
    (folder / "ui.mjs").write_text(script(module) + more, encoding="utf-8")
    check = folder / "check.mjs"
    check.write_text(
        'import * as ui from "./ui.mjs";\n'
        f"{DOM}\nconst check = async () => {{\n{code}\n}};\n"
        "console.log(JSON.stringify(await check()));\n",
        encoding="utf-8",
    )
    done = subprocess.run(["node", str(check)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
