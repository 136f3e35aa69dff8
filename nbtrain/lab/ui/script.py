"""The script of the user interface: its ES modules as the one module that anywidget and the server send."""

import functools
import re
from pathlib import Path

# Each after the modules that it imports; what the last one exports is what the whole exports.
MODULES = ("words", "style", "server", "charts", "job", "view", "panel")
IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)


@functools.cache
def panel_script() -> str:
    """All modules in one text. Raises ValueError if one imports what does not stand before it."""
    parts: list[str] = []
    for at, name in enumerate(MODULES):
        text = Path(__file__).with_name(f"{name}.js").read_text(encoding="utf-8")
        if not set(IMPORT.findall(text)) <= set(MODULES[:at]):
            raise ValueError(f"lab/ui/{name}.js imports a module that does not stand before it in MODULES")
        text = IMPORT.sub("", text)
        parts.append(text if name == MODULES[-1] else re.sub("^export ", "", text, flags=re.MULTILINE))
    return "\n".join(parts)
