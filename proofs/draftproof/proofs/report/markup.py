"""How does text become HTML without ever being taken for HTML?

Every piece of the page is made by `element`. A plain `str` is text and is escaped; only what `element`
itself returned (`Markup`) passes through. No other module of the report writes a tag by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from typing import Any


class Markup(str):
    """A string that is HTML already."""

    __slots__ = ()


Content = str | int | float | None | Iterable["Content"]

VOID_ELEMENTS = frozenset({"br", "hr", "img", "input", "link", "meta"})


def content(*children: Content) -> Markup:
    """The children one after another: text escaped, markup as it is, lists flattened, None left out."""
    return Markup("".join(_piece(child) for child in children))


def _piece(child: Content) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return escape(child)
    if isinstance(child, int | float):
        return escape(str(child))
    return "".join(_piece(grandchild) for grandchild in child)


def element(name: str, *children: Content, **attributes: str | int | float | bool | None) -> Markup:
    """An element. `class_` is written `class`, `aria_label` is written `aria-label`; True is a bare
    attribute, False and None leave it out."""
    written = "".join(
        f" {_attribute_name(key)}" if value is True else f' {_attribute_name(key)}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID_ELEMENTS:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{content(*children)}</{name}>")


def _attribute_name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def unseen(text: str) -> Markup:
    """Text for screen readers only: what a mark or a colour says to the eye."""
    return element("span", text, class_="unseen")


def number(value: Any) -> str:
    """1204 as `1,204`; what is not a number as it is; nothing as a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


NUMERIC = "number"
"""The class of cells and heads that are aligned to the right."""


def numeric_head(title: str) -> Markup:
    """The head of a column of numbers."""
    return element("th", title, scope="col", class_=NUMERIC)


def seconds(value: Any) -> str:
    """A time with two digits below a minute (`0.42 s`), in minutes above; nothing as a dash."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return "–"
    if value >= 60:
        return f"{int(value // 60)} min {value % 60:.0f} s"
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"


def scrolling(label: str, *children: Content, class_: str = "") -> Markup:
    """A box that scrolls by itself on narrow screens, and can be reached and scrolled from the keyboard."""
    names = f"scroll {class_}".strip()
    return element("div", *children, class_=names, role="region", aria_label=label, tabindex=0)


def table(
    caption: str, heads: Iterable[Content], rows: Iterable[Content], class_: str = "", box: str = ""
) -> Markup:
    """A table in a scrolling box; its caption is shown. A head that is markup stands as it is."""
    head = element(
        "tr", [title if isinstance(title, Markup) else element("th", title, scope="col") for title in heads]
    )
    return scrolling(
        caption,
        element(
            "table",
            element("caption", caption),
            element("thead", head),
            element("tbody", rows),
            class_=class_ or None,
        ),
        class_=box,
    )


def as_script_data(value: Any) -> Markup:
    """JSON that may stand inside a <script> element: no character in it can end the element or start a
    comment, whatever the strings say. `JSON.parse` gives back exactly `value`."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
