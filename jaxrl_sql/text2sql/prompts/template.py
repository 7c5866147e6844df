"""Prompt templates: Jinja files with the blocks `system`, `user` and `assistant` (the prefill of the answer).

A template is data, not a program. It may contain the placeholders in `PLACEHOLDERS`, test them with `if`, and trim
them. Loops, macros, calls, arithmetic and includes are rejected on reading, so rendering always terminates. Jinja's
sandbox renders the template.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from jinja2 import StrictUndefined, TemplateSyntaxError, nodes
from jinja2.environment import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

from jaxrl_sql.types import InputError

PLACEHOLDERS = ("schema", "question", "evidence", "values", "dialect", "complexity", "thinks", "instruction")
"""The placeholders of the blocks `user` and `system`: schema, question, evidence, retrieved values, dialect name, the
question's difficulty, whether the model thinks by itself, and the recipe's instruction on the answer format, for
templates that several recipes share. Evidence, values, complexity and instruction may be empty."""

BLOCKS = ("system", "user", "assistant")
_FOLDER = Path(__file__).parent / "templates"
# The types of Jinja's syntax nodes that a template may contain.
_ALLOWED = (
    nodes.Template, nodes.Block, nodes.Output, nodes.TemplateData, nodes.Name, nodes.If, nodes.CondExpr, nodes.Const,
    nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Filter,
)  # fmt: skip
# The placeholders that depend on the question, empty.
_QUESTION_VALUES = {"question": "", "evidence": "", "values": "", "complexity": ""}


class PromptTemplate(NamedTuple):
    """A parsed template, the placeholders of both messages, and those of the system message (`in_system`).

    A message is the text of its block without the last newline, which precedes the tag that ends the block.
    """

    template: Template
    placeholders: frozenset[str]
    in_system: frozenset[str] = frozenset()

    def system(self, values: Mapping[str, object]) -> str:
        """Render the system message from the values of its placeholders; "" without one."""
        return self._render("system", values)

    def assistant(self, *, thinks: bool) -> str:
        """Render the prefill of the answer; "" without one. `thinks`: the model itself opens and closes a thought."""
        return self._render("assistant", {"thinks": thinks})

    def texts(self, values: Mapping[str, object]) -> tuple[str, str]:
        """Render the user's message from the values of its placeholders, in two parts.

        The first part is the same for all questions with the same schema: the lines before the first line that depends
        on the question. These lines are detected by rendering the template for two further, artificial questions.
        """
        # One has a control character as its question, and no evidence, values and complexity; the other has a control
        # character in all of them. So a line differs in one of them if it shows any of these values, or tests it with
        # `if`. Questions do not contain these control characters.
        other_question, other_values = {**_QUESTION_VALUES, "question": "\0"}, dict.fromkeys(_QUESTION_VALUES, "\1")
        renderings = (self._render("user", {**values, **replaced}) for replaced in ({}, other_question, other_values))
        rendered, *other_renderings = (text.splitlines(keepends=True) for text in renderings)
        lines = zip(rendered, *other_renderings, strict=False)
        num_shared = sum(1 for _ in takewhile(lambda line: len(set(line)) == 1, lines))
        return "".join(rendered[:num_shared]), "".join(rendered[num_shared:])

    def _render(self, block: str, values: Mapping[str, object]) -> str:
        root = self.template.blocks.get(block)
        return "".join(root(self.template.new_context(dict(values)))).removesuffix("\n") if root else ""


def template_names() -> list[str]:
    """Return the names of the package's templates."""
    return sorted(path.stem for path in _FOLDER.glob("*.jinja"))


def template_file(name: str) -> Path:
    """Return the file of a package template by name; any other name is a path."""
    return _FOLDER / f"{name}.jinja" if name in template_names() else Path(name)


@cache
def read_template(name: str) -> PromptTemplate:
    """Read a template by name or path.

    Raises InputError, in one line, for an unreadable file, invalid Jinja, disallowed constructs, unknown placeholders,
    and a template without the question.
    """
    path = template_file(name)
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        hint = f"; the package's templates are {', '.join(template_names())}" if not path.suffix else ""
        raise InputError(f"data.chat.template={name!r} cannot be read: {error}{hint}") from error
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, autoescape=False)
    try:
        tree = environment.parse(source)
        if message := next(_find_errors(tree), ""):
            raise InputError(f"{path}: {message}")
        names = _placeholders(tree)
        system = frozenset(names.get("system", ()))
        return PromptTemplate(environment.from_string(source), system | names["user"], system)
    except TemplateSyntaxError as error:
        raise InputError(f"{path}: line {error.lineno}: {error.message}") from error
    except RecursionError as error:
        raise InputError(f"{path}: nested too deeply for a prompt") from error


def _placeholders(tree: nodes.Template) -> dict[str, set[str]]:
    """Return the placeholders of each block."""
    return {block.name: {node.name for node in block.find_all(nodes.Name)} for block in tree.find_all(nodes.Block)}


def _find_errors(tree: nodes.Template) -> Iterator[str]:
    """Yield the errors of a template as messages, which start with the line number if it is known."""
    for node in _nodes(tree):
        line, node_type = f"line {node.lineno}", type(node).__name__
        if isinstance(node, nodes.For):
            yield f"{line}: loops are not allowed; the placeholders are {', '.join(PLACEHOLDERS)}"
        elif not isinstance(node, _ALLOWED):
            yield f"{line}: {node_type} is not allowed in prompts: only placeholders, if, and comments are"
        elif isinstance(node, nodes.Filter) and node.name != "trim":
            yield f"{line}: the filter {node.name!r} is not allowed in prompts: only trim is"
        elif isinstance(node, nodes.Name) and node.name not in PLACEHOLDERS:
            (nearest,) = difflib.get_close_matches(node.name, PLACEHOLDERS, n=1, cutoff=0.0)
            yield f"{line}: unknown placeholder {node.name!r}; the nearest is {nearest}"
        elif isinstance(node, nodes.Block) and node.name not in BLOCKS:
            yield f"{line}: block {node.name!r} is not one of {', '.join(BLOCKS)}"
    placeholders = _placeholders(tree)
    if placeholders.get("assistant", set()) - {"thinks"}:
        yield "the block assistant has only the placeholder thinks: the others belong to the other blocks"
    if "question" not in placeholders.get("user", set()):
        yield "a template must contain the question: {% block user %} … {{ question }} … {% endblock %}"
    outside = (node for output in tree.body if isinstance(output, nodes.Output) for node in output.nodes)
    if any(not isinstance(node, nodes.TemplateData) or node.data.strip() for node in outside):
        yield f"text outside of the blocks {', '.join(BLOCKS)} is never rendered"


def _nodes(tree: nodes.Node) -> Iterator[nodes.Node]:
    """Yield a syntax tree's nodes, each before its children."""
    yield tree
    for child in tree.iter_child_nodes():
        yield from _nodes(child)
