"""Prompt templates: a Jinja file with the blocks `system`, `user` and `assistant`, the first words of the answer.

A template is data, not a program. It may place what `PLACEHOLDERS` names, ask with `if` whether there is any, and trim
it. Loops, macros, calls, arithmetic and other files are refused when it is read, so that rendering always ends, and
Jinja's sandbox renders it.
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

PLACEHOLDERS = ("schema", "question", "evidence", "values", "dialect", "thinks", "instruction")
"""What a `user` block may place: the database and the question; its evidence, the values that it names and the name of
the dialect; whether the model thinks of itself; and what the recipe says of the answer's form in a template that serves
several. Evidence, values and instruction may be empty."""

BLOCKS = ("system", "user", "assistant")
_FOLDER = Path(__file__).parent / "templates"
_ALLOWED = (
    nodes.Template, nodes.Block, nodes.Output, nodes.TemplateData, nodes.Name, nodes.If, nodes.CondExpr, nodes.Const,
    nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Filter,
)  # fmt: skip
_OF_A_QUESTION = {"question": "", "evidence": "", "values": ""}


class PromptTemplate(NamedTuple):
    """A template that was read, and the `placeholders` that its user message has.

    A message is stripped of blanks at its ends, as many chat templates do.
    """

    template: Template
    placeholders: frozenset[str]

    def system(self, *, thinks: bool) -> str:
        """Render the system message; "" for none."""
        return self._render("system", {"thinks": thinks})

    def assistant(self, *, thinks: bool) -> str:
        """Render the first words of the answer; "" for none."""
        return self._render("assistant", {"thinks": thinks})

    def texts(self, said: Mapping[str, object]) -> tuple[str, str]:
        """Render the user's message from what its placeholders stand for, in two parts.

        The first part is the same for all questions that are shown the same schema: whole lines up to the first that
        depends on the question.
        """
        none, all_of_them = {**_OF_A_QUESTION, "question": "\0"}, dict.fromkeys(_OF_A_QUESTION, "\1")
        renderings = (self._render("user", {**said, **one}) for one in ({}, none, all_of_them))
        whole, *others = (text.splitlines(keepends=True) for text in renderings)
        lines = zip(whole, *others, strict=False)
        shared = sum(1 for _ in takewhile(lambda line: len(set(line)) == 1, lines))
        return "".join(whole[:shared]), "".join(whole[shared:])

    def _render(self, block: str, said: Mapping[str, object]) -> str:
        root = self.template.blocks.get(block)
        return "".join(root(self.template.new_context(dict(said)))).strip() if root else ""


def template_names() -> list[str]:
    """Return the names of the templates that come with the package."""
    return sorted(path.stem for path in _FOLDER.glob("*.jinja"))


def template_file(name: str) -> Path:
    """Return the file of one of our templates by name, else the path that the name is."""
    return _FOLDER / f"{name}.jinja" if name in template_names() else Path(name)


@cache
def read_template(name: str) -> PromptTemplate:
    """Read a template by name or path.

    Raises InputError, in one line, for a file that cannot be read or is no Jinja, for what only a program needs, for
    placeholders that are unknown, and for a template that never shows the question.
    """
    path = template_file(name)
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        hint = f"; the names of ours are {', '.join(template_names())}" if not path.suffix else ""
        raise InputError(f"data.chat.template={name!r} cannot be read: {error}{hint}") from error
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, autoescape=False)
    try:
        tree = environment.parse(source)
        if fault := next(_faults(tree), ""):
            raise InputError(f"{path}: {fault}")
        return PromptTemplate(environment.from_string(source), frozenset(_placeholders(tree)["user"]))
    except TemplateSyntaxError as error:
        raise InputError(f"{path}: line {error.lineno}: {error.message}") from error
    except RecursionError as error:
        raise InputError(f"{path}: nested too deeply for a prompt") from error


def _placeholders(tree: nodes.Template) -> dict[str, set[str]]:
    """Return the placeholders of each block."""
    return {block.name: {node.name for node in block.find_all(nodes.Name)} for block in tree.find_all(nodes.Block)}


def _faults(tree: nodes.Template) -> Iterator[str]:
    """Yield what is wrong with a template, the line first where it has one."""
    for node in _nodes(tree):
        line, kind = f"line {node.lineno}", type(node).__name__
        if isinstance(node, nodes.For):
            yield f"{line}: a template has no loops: it places {', '.join(PLACEHOLDERS)}"
        elif not isinstance(node, _ALLOWED):
            yield f"{line}: {kind} is not for prompts: a template has placeholders, if, and comments"
        elif isinstance(node, nodes.Filter) and node.name != "trim":
            yield f"{line}: the filter {node.name!r} is not for prompts: only trim is"
        elif isinstance(node, nodes.Name) and node.name not in PLACEHOLDERS:
            (nearest,) = difflib.get_close_matches(node.name, PLACEHOLDERS, n=1, cutoff=0.0)
            yield f"{line}: unknown placeholder {node.name!r}; the nearest is {nearest}"
        elif isinstance(node, nodes.Block) and node.name not in BLOCKS:
            yield f"{line}: block {node.name!r} is none of {', '.join(BLOCKS)}"
    found = _placeholders(tree)
    for name in ("system", "assistant"):
        if found.get(name, set()) - {"thinks"}:
            yield f"the block {name} has no placeholder but thinks: the others belong to the user's"
    if "question" not in found.get("user", set()):
        yield "a template shows the question: {% block user %} … {{ question }} … {% endblock %}"
    outside = (node for one in tree.body if isinstance(one, nodes.Output) for node in one.nodes)
    if any(not isinstance(node, nodes.TemplateData) or node.data.strip() for node in outside):
        yield f"what stands outside of the blocks {', '.join(BLOCKS)} is shown to nobody"


def _nodes(tree: nodes.Node) -> Iterator[nodes.Node]:
    yield tree
    for child in tree.iter_child_nodes():
        yield from _nodes(child)
