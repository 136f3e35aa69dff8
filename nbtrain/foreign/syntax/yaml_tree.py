"""Reads YAML documents and records the place of each value."""

import re
import sys
from typing import Any

import yaml

from nbtrain.base.errors import ConfigError
from nbtrain.base.text.terminal import shortened
from nbtrain.foreign.syntax.located import Value, Word

MOST_NODES = 100_000
# The tag of the key <<, and the maximum depth of mappings that merge one another.
MERGE = "tag:yaml.org,2002:merge"
MOST_MERGES = 20
# A placeholder for Helm values, which is also valid inside a YAML text or a word of a script.
HELM = re.compile(
    r"\{\{-?\s*(?:(?:include|template|toYaml|quote|default|tpl|if|with|range)\b.*)?[\s(]?"
    r"\.(?:Values|Release|Chart|Capabilities)\b"
)
# A placeholder of Helm or Jinja: {{ .Values.workers }}, {{- if ... }}, {% for ... %}.
TEMPLATE = re.compile(r"\{\{-?\s*[\w.$(\"]|\{%")
# The same in a word of a script, which a space may end.
TEMPLATE_MARK = re.compile(r"\{\{-?(?:[\s\w.$]|\Z)|\{%")


class Tree:
    """A YAML document with the place of each value."""

    def __init__(self, node: yaml.Node | None, label: str):
        self.label, self.node, self.count = label, node, 0
        self.places: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        self.scripts: dict[str, Word] = {}
        """Scripts in all documents by name; a container may mount them."""
        self.maps: dict[str, Tree] = {}
        """ConfigMaps in all documents, by name."""
        self.runtimes: dict[str, Tree] = {}
        """Training runtimes in all documents, by name."""
        self.value = self._construct(node, "") if node is not None else None

    def _construct(self, node: yaml.Node, prefix: str) -> Any:
        self.count += 1
        if self.count > MOST_NODES:
            raise ConfigError(
                f"{self.label}: the file has more than {MOST_NODES:,} values, so it is not a job's manifest. "
                "Give the manifest of the job."
            )
        # A block of text begins on the line after its mark.
        block = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
        self.places[prefix] = f"{self.label}:{node.start_mark.line + 1 + block}"
        if isinstance(node, yaml.MappingNode):
            if key := next((key for key, _ in node.value if not isinstance(key, yaml.ScalarNode)), None):
                place = f"{self.label}:{key.start_mark.line + 1}"
                raise ConfigError(
                    template_problem(place)
                    if TEMPLATE.search(_source(key))
                    else f"{place}: a key must be text."
                )
            seen: set[str] = set()
            for key, _ in node.value:
                if key.value in seen and key.tag != MERGE:
                    place = f"{self.label}:{key.start_mark.line + 1}"
                    raise ConfigError(f"{place}: {shortened(key.value)} is written twice; keep only one.")
                seen.add(key.value)
            return {
                name: self._construct(value, f"{prefix}.{name}".lstrip("."))
                for name, value in self._merged(node).items()
            }
        if isinstance(node, yaml.ScalarNode):
            self.texts[prefix] = node.value
        if isinstance(node, yaml.SequenceNode):
            return [self._construct(item, f"{prefix}.{at}") for at, item in enumerate(node.value)]
        rules = {
            "int": f"a whole number of at most {sys.get_int_max_str_digits():,} digits",
            "bool": "true or false",
        }
        rule = rules.get(node.tag.rpartition(":")[2])
        if rule is None:
            return node.value
        try:
            return yaml.SafeLoader("").construct_object(node)
        except (ValueError, LookupError):  # raised for a text with a tag (!!int x), and for too many digits
            found = f"{self.places[prefix]}: {prefix} = {shortened(node.value)}"
            raise ConfigError(f"{found}: the value must be {rule}.") from None

    def _merged(self, node: yaml.MappingNode, depth: int = 0) -> dict[str, yaml.Node]:
        """Return the values of a mapping, and of the mappings that its << key merges.

        The mapping's own values take precedence, and earlier merged mappings over later ones.
        """
        own: dict[str, yaml.Node] = {}
        others: list[yaml.Node] = []
        for key, value in node.value:
            if key.tag != MERGE:
                own[str(key.value)] = value
            elif isinstance(value, yaml.SequenceNode):
                others += value.value
            else:
                others.append(value)
        for other in others:
            self.count += 1
            if not isinstance(other, yaml.MappingNode) or depth > MOST_MERGES or self.count > MOST_NODES:
                place = f"{self.label}:{other.start_mark.line + 1}"
                raise ConfigError(f"{place}: << must refer to a mapping, or to a list of mappings.")
            for name, value in self._merged(other, depth + 1).items():
                own.setdefault(name, value)
        return own

    def find(self, dotted: str) -> Value | None:
        """Return the value of a dotted key with its place, or None if the key is missing."""
        value = self.value
        for part in dotted.split("."):
            if isinstance(value, dict) and part in value:
                value = value[part]
            elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
                value = value[int(part)]
            else:
                return None
        return Value(value, self.places[dotted])

    def first(self, *dotted: str) -> Value | None:
        """Return the value of the first key in `dotted` that exists, or None."""
        return next((found for key in dotted if (found := self.find(key)) is not None), None)

    def word(self, dotted: str) -> Word | None:
        found = self.find(dotted)
        return None if found is None or found.value is None else Word(str(found.value), found.place)

    def words(self, dotted: str) -> list[Word]:
        """Return the words in a list. A single text becomes a list of one word."""
        found = self.find(dotted)
        if found is None or found.value is None:
            return []
        if not isinstance(found.value, list):
            return [Word(str(found.value), found.place)]
        return [Word(_text(item), self.places[f"{dotted}.{at}"]) for at, item in enumerate(found.value)]


def _text(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def _source(node: yaml.Node) -> str:
    """Return the source text of a node."""
    buffer = node.start_mark.buffer or ""
    return buffer[node.start_mark.pointer - 1 : node.end_mark.pointer]


def _items(node: yaml.Node | None) -> list[yaml.Node | None]:
    """Return the manifests in a document: the items of a `kind: List`, as kubectl writes it, or the node."""
    if isinstance(node, yaml.MappingNode):
        values = {key.value: value for key, value in node.value if isinstance(key, yaml.ScalarNode)}
        kind, items = values.get("kind"), values.get("items")
        if (
            isinstance(kind, yaml.ScalarNode)
            and re.fullmatch(r"\w*List", kind.value)
            and isinstance(items, yaml.SequenceNode)
        ):
            return list(items.value)
    return [node]


def template_problem(place: str) -> str:
    """Return the error about a Helm or Jinja template."""
    fix = "Run `helm template CHART` and import the result."
    return f"{place}: this is a template ({{{{ ... }}}}). {fix}"


def read_documents(text: str, label: str) -> list[Tree]:
    """Return the YAML documents in a file. Raises ConfigError if the text is not YAML."""
    if match := HELM.search(text):
        raise ConfigError(template_problem(f"{label}:{text.count(chr(10), 0, match.start()) + 1}"))
    try:
        nodes = yaml.compose_all(text, Loader=yaml.SafeLoader)
        return [Tree(item, label) for node in nodes for item in _items(node)]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        if match := TEMPLATE.search(text):
            raise ConfigError(
                template_problem(f"{label}:{text.count(chr(10), 0, match.start()) + 1}")
            ) from None
        raise ConfigError(f"{label}{line}: not YAML: {getattr(error, 'problem', error)}.") from None
    except RecursionError:
        raise ConfigError(
            f"{label}: not a manifest: the values are nested too deeply. Give the manifest of the job."
        ) from None
