"""The configuration of Sphinx for the site; ``build.py`` prepares the pages."""

# ruff: noqa: INP001 - a script, not part of a package

from __future__ import annotations

import dataclasses
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.pycode.parser import VariableCommentPicker
from sphinx.util.nodes import make_refnode

import queue_over_sql

project = "queue_over_sql"
version = release = queue_over_sql.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"

# The anchors of headings, as code hosts make them.
myst_heading_anchors = 4

autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    "inherited-members": "BaseException, Exception, Enum, object, str, int, tuple, Protocol",
}
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
add_module_names = False
python_display_short_literal_types = True
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"queue_over_sql {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False


def setup(app: Sphinx) -> None:
    """Link types to their pages, and hide constructors that users do not call."""
    # Readers need all arguments and their defaults; overloads are for type checkers.
    VariableCommentPicker.is_overload = lambda *_: False  # type: ignore[method-assign]
    app.connect("missing-reference", find_public_name)
    app.connect("autodoc-process-signature", hide_inner_constructor)


def hide_inner_constructor(
    _app: Sphinx, what: str, _name: str, value: Any, *_: object
) -> tuple[str, str] | None:
    """Hide the arguments of a class that users do not create; its constructor has no docstring."""
    if what != "class" or dataclasses.is_dataclass(value) or issubclass(value, Exception):
        return None
    return None if "Args:" in (value.__doc__ or "") else ("", "")


def find_public_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, shown: nodes.TextElement
) -> nodes.reference | None:
    """Find the class of an annotation, which names the module that defines it.

    Users import it from the package, so its page has that name.
    """
    if node.get("refdomain") != "py":
        return None
    objects: dict[str, Any] = env.domaindata["py"]["objects"]
    name = node["reftarget"].rpartition(".")[2]
    for package in ("queue_over_sql", "queue_over_sql.spark", "queue_over_sql.observability"):
        if found := objects.get(f"{package}.{name}"):
            return make_refnode(app.builder, node["refdoc"], found.docname, found.node_id, shown)
    return None
