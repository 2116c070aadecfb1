"""What does a verified step look like? The primer's figure: one request, just after its drafts came back.

The cells look as in the faults' timelines (same classes of the style sheet), so that one legend serves
both. Sizes are in the figure's own units.
"""

from __future__ import annotations

from draftproof.proofs.report.markup import Content, Markup, element

WIDTH, HEIGHT = 58, 34
LEFT, TOP = 12, 66

TOKENS = ("The", "cat", "sat", "on", "the", "mat", "and", "then")
NUM_PROMPT, NUM_SETTLED, BLOCK_SIZE = 5, 7, 4
REJECTED = "ran"


def _left(position: int) -> int:
    return LEFT + position * WIDTH


def _text(x: float, y: float, words: str, class_: str, anchor: str = "middle") -> Markup:
    return element("text", words, x=x, y=y, class_=class_, text_anchor=anchor)


def _bracket(first: int, last: int, y: int, words: str, down: bool) -> Markup:
    """A bracket over (or under) the cells `first` to `last`, with its name."""
    left, right = _left(first) + 3, _left(last + 1) - 3
    tick = 6 if down else -6
    return element(
        "g",
        element("path", d=f"M{left} {y + tick}V{y}H{right}V{y + tick}", class_="bracket"),
        _text((left + right) / 2, y - 6 if down else y + 15, words, "note"),
    )


def _cell(position: int, token: str, kv: str) -> Content:
    x = _left(position)
    return (
        element("rect", x=x + 1, y=TOP, width=WIDTH - 2, height=HEIGHT, rx=2, class_=f"cell {kv}"),
        _text(x + WIDTH / 2, TOP + 22, token, "token"),
        _text(x + WIDTH / 2, TOP + HEIGHT + 13, str(position), "position"),
    )


def _rejected() -> Content:
    """The rejected draft stands above the position that the bonus token takes over."""
    x, y = _left(NUM_SETTLED), TOP - HEIGHT - 8
    return (
        element("rect", x=x + 1, y=y, width=WIDTH - 2, height=HEIGHT, rx=2, class_="cell draft"),
        _text(x + WIDTH / 2, y + 22, REJECTED, "token"),
        element("path", d=f"M{x + 10} {y + 18}H{x + WIDTH - 10}", class_="strike"),
        _text(x + WIDTH / 2, y - 6, "rejected draft", "note"),
    )


def _frontier() -> Content:
    x = _left(NUM_SETTLED)
    return (
        element("path", d=f"M{x} {TOP - 6}V{TOP + HEIGHT + 58}", class_="frontier"),
        element("path", d=f"M{x - 5} {TOP - 12}h10l-5 7z", class_="frontier-flag"),
        _text(x + 6, TOP + HEIGHT + 60, "frontier C − Q = 7", "note strong", "start"),
    )


def primer() -> Markup:
    """The annotated strip, with a sentence that says the same for those who cannot see it."""
    last = len(TOKENS) - 1
    num_registered = NUM_SETTLED // BLOCK_SIZE * BLOCK_SIZE
    bar_y = TOP + HEIGHT + 22
    width, height = _left(len(TOKENS)) + 100, TOP + HEIGHT + 72
    description = (
        "Eight positions. The prompt fills 0 to 4, two accepted drafts 5 and 6; all seven have valid KV "
        "and are "
        "settled. Position 7 holds the bonus token, known but without KV; a rejected draft stood there "
        "before. "
        "The frontier is 7. Positions 0 to 3 are a whole block and are registered."
    )
    return element(
        "svg",
        element("title", "One request just after a step that verified three drafts"),
        element("desc", description),
        _bracket(0, NUM_PROMPT - 1, TOP - 12, "prompt, L = 5", down=True),
        _bracket(NUM_PROMPT, NUM_SETTLED - 1, TOP - 12, "accepted drafts", down=True),
        _rejected(),
        [
            _cell(position, token, "valid" if position < NUM_SETTLED else "none")
            for position, token in enumerate(TOKENS)
        ],
        _text(_left(last + 1) + 8, TOP + 15, "bonus token", "note", "start"),
        _text(_left(last + 1) + 8, TOP + 29, "no KV yet", "note", "start"),
        element(
            "rect", x=_left(0) + 3, y=bar_y, width=num_registered * WIDTH - 6, height=5, class_="registered"
        ),
        _text(_left(0) + 3, bar_y + 20, "registered block, R = 4", "note", "start"),
        _bracket(0, NUM_SETTLED - 1, bar_y + 30, "", down=False),
        _text(_left(NUM_SETTLED) - 8, bar_y + 20, "settled, W = 7", "note", "end"),
        _frontier(),
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        class_="strip primer-figure",
        role="img",
    )


def _swatch(*shapes: Content) -> Markup:
    return element(
        "svg", shapes, viewBox="0 0 30 20", width=30, height=20, class_="strip swatch", aria_hidden="true"
    )


def _swatch_cell(kv: str) -> Markup:
    return element("rect", x=2, y=1, width=26, height=18, rx=2, class_=f"cell {kv}")


def legend() -> Markup:
    """What the cells of all strips mean."""
    entries: tuple[tuple[Markup, str, str], ...] = (
        (_swatch(_swatch_cell("valid")), "valid KV", "computed, and it is the KV of this very token"),
        (_swatch(_swatch_cell("enqueued")), "enqueued", "a step under way will write it"),
        (
            _swatch(_swatch_cell("draft")),
            "draft's KV",
            "of another token than the one of the text; (12): a draft, not (yet) part of the text",
        ),
        (_swatch(_swatch_cell("none")), "no KV", "the token is known, nothing is computed for it"),
        (
            _swatch(
                element("path", d="M15 2V19", class_="frontier"),
                element("path", d="M10 1h10l-5 7z", class_="frontier-flag"),
            ),
            "frontier",
            "where the next kept token goes: computed less what is awaited",
        ),
        (
            _swatch(element("rect", x=2, y=8, width=26, height=5, class_="registered")),
            "registered",
            "published to the prefix cache: any other request may read it",
        ),
        (
            _swatch(
                _swatch_cell("none"),
                element("rect", x=2, y=1, width=26, height=18, rx=2, class_="different"),
            ),
            "differs",
            "another token or other KV than in the right run; a dashed bar: a block that should be "
            "registered",
        ),
    )
    return element(
        "ul",
        [
            element("li", swatch, element("span", element("b", name), " ", meaning))
            for swatch, name, meaning in entries
        ],
        class_="legend",
    )


def patterns() -> Markup:
    """The hatchings that the style sheet refers to by name, once a page."""
    return element(
        "svg",
        element(
            "defs",
            element(
                "pattern",
                element("rect", width=7, height=7, class_="enqueued-ground"),
                element("path", d="M0 0V7", class_="enqueued-line"),
                id="enqueued",
                width=7,
                height=7,
                patternUnits="userSpaceOnUse",
                patternTransform="rotate(45)",
            ),
            element(
                "pattern",
                element("rect", width=6, height=6, class_="draft-ground"),
                element("circle", cx=2, cy=2, r=1.1, class_="draft-dot"),
                id="draft",
                width=6,
                height=6,
                patternUnits="userSpaceOnUse",
            ),
        ),
        width=0,
        height=0,
        class_="patterns",
        aria_hidden="true",
    )
