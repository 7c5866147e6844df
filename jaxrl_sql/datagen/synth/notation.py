"""Parse the notation of domains.

`== name` opens a domain; `singular/other/names 40 >parent >parent` opens a table of about 40 rows; indented lines hold
columns separated by `;`. A column is `name/other_name` (with `?` appended: holds NULLs) and one of `@pool` (text from
a pool of values), `{a,b,c}` (categories), `int lo hi`, `real lo hi`, `year lo hi`, `date lo hi` (years), `bool`.
"""

from __future__ import annotations

from jaxrl_sql.datagen.synth import domains_business, domains_culture, domains_public, domains_unseen
from jaxrl_sql.datagen.synth.spec import ColumnSpec, Domain, TableSpec


def _column(text: str) -> ColumnSpec:
    head, _, rest = text.strip().partition(" ")
    rest = rest.strip()
    is_nullable = head.endswith("?")
    names = tuple(head.rstrip("?").split("/"))
    if rest.startswith("@"):
        return ColumnSpec(names, "text", (rest[1:],), is_nullable)
    if rest.startswith("{"):
        return ColumnSpec(names, "category", tuple(rest.strip("{}").split(",")), is_nullable)
    kind, *args = rest.split()
    if kind not in ("int", "real", "year", "date", "bool"):
        raise ValueError(f"unknown column kind in {text!r}")
    return ColumnSpec(names, kind, tuple(args), is_nullable)


def _table(head: str, body: str) -> TableSpec:
    names, rows, *parents = head.split()
    columns = tuple(_column(part) for part in body.split(";") if part.strip())
    return TableSpec(tuple(names.split("/")), int(rows), tuple(parent.lstrip(">") for parent in parents), columns)


def parse_domains(text: str) -> tuple[Domain, ...]:
    """Parse domains; raises ValueError for an unknown column kind."""
    domains = []
    for block in text.split("== ")[1:]:
        name, *lines = block.strip().splitlines()
        tables: list[tuple[str, str]] = []
        for line in lines:
            if not line.startswith(" "):
                tables.append((line, ""))
                continue
            head, body = tables[-1]
            # A line with four spaces continues a column list, one with fewer begins another part of it.
            joint = " " if line.startswith("    ") else "; "
            tables[-1] = (head, body + joint + line.strip())
        domains.append(Domain(name.strip(), tuple(_table(head, body) for head, body in tables)))
    return tuple(domains)


SEEN_DOMAINS = parse_domains(domains_business.TEXT + domains_public.TEXT + domains_culture.TEXT)
UNSEEN_DOMAINS = parse_domains(domains_unseen.TEXT)
