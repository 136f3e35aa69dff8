"""The ES modules of the user interface joined into one module, as anywidget and the server send it."""

import functools
import posixpath
import re
from pathlib import Path

FOLDER = Path(__file__).with_name("script.py").parent
IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.[\w./]*)\.js";\n', re.MULTILINE)


def panel_script() -> str:
    """Return the module of a run's panel, which exports mount, rescue and anywidget's default."""
    return script("run/panel")


@functools.cache
def script(entry: str) -> str:
    """Return the text of `entry` joined with all modules that it imports; it exports what `entry` exports.

    `entry` is a path below lab/ui without its suffix, such as "run/panel". Joined, the modules share one
    scope: no name is defined twice in lab/ui, and none is renamed in an import. Raises ValueError if modules
    import each other.
    """
    parts: dict[str, str] = {}
    _join(entry, parts, ())
    last = parts.pop(entry)
    return "\n".join([*(re.sub("^export ", "", text, flags=re.MULTILINE) for text in parts.values()), last])


def _join(name: str, parts: dict[str, str], importers: tuple[str, ...]) -> None:
    """Add `name` to `parts`, after the modules that it imports."""
    if name in importers:
        raise ValueError(
            f"lab/ui: modules import each other in a circle: {' -> '.join([*importers, name])}. "
            "Move the common part to a module that imports none of them."
        )
    if name in parts:
        return
    text = (FOLDER / f"{name}.js").read_text(encoding="utf-8")
    for names, relative in IMPORT.findall(text):
        imported = posixpath.normpath(posixpath.join(posixpath.dirname(name), relative))
        if " as " in names:
            raise ValueError(
                f"lab/ui/{name}.js renames an import from {imported}.js with `as`. Import the name "
                "unchanged, because joined modules share one scope."
            )
        _join(imported, parts, (*importers, name))
    parts[name] = IMPORT.sub("", text)
