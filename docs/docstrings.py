"""Docstrings as they stand in the sources, made Markdown for the site: a griffe extension."""

import re

import griffe

ROLE = re.compile(r":(func|class|meth|mod|attr|data):`~?(?:posenc_ext\.)?([\w.]+)`")

SHOWN = {"axial", "ops.sinusoidal", "scaling"}  # modules whose docstring is on the site


def _fenced(text: str) -> str:
    """Examples, from `>>>` to the next empty line, as code; `::` before a block as a colon."""
    lines, inside = [], False
    for line in text.splitlines():
        if inside and not line.strip():
            lines.append("```")
            inside = False
        elif line.lstrip().startswith(">>> ") and not inside:
            lines.append("```pycon")
            inside = True
        elif line.endswith("::") and not inside:
            line = line[:-1]
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)


class Docstrings(griffe.Extension):
    def on_package(self, *, pkg: griffe.Module, **kwargs: object) -> None:
        self.public = {str(name) for name in pkg.exports or ()}
        self._walk(pkg)

    def _walk(self, obj: griffe.Object) -> None:
        if obj.docstring is not None:
            text = ROLE.sub(lambda role: self._link(obj, role[1], role[2]), obj.docstring.value)
            obj.docstring.value = _fenced(text)
        for member in obj.members.values():
            if not member.is_alias:
                self._walk(member)

    def _link(self, obj: griffe.Object, kind: str, name: str) -> str:
        if kind in ("func", "class") and name in self.public:
            return f"[`{name}`][posenc_ext.{name}]"
        if kind in ("func", "class") and name in obj.module.members:
            return f"[`{name}`][{obj.module.path}.{name}]"
        if kind == "mod":
            code = f"`posenc_ext.{name}`"
            return f"[{code}][posenc_ext.{name}]" if name in SHOWN else code
        return f"`{name}`"
