"""What must a reader know beforehand (the primer), and what do the proofs not say (the closing section)?"""

from __future__ import annotations

from draftproof.proofs.report.markup import Markup, element, scrolling
from draftproof.proofs.report.svg import legend, primer
from draftproof.proofs.report.words import BOUNDED, GHOSTS, LETTERS, PROVED, PROVER_WORDS, TESTED
from draftproof.spec.ghosts import GHOST_SYMBOLS
from draftproof.spec.ledger import SYMBOLS


def _letters() -> Markup:
    names = {symbol: name for name, symbol in (SYMBOLS | GHOST_SYMBOLS).items()}
    return scrolling(
        "The counters",
        element(
            "table",
            element("caption", "The counters, and the letters that stand for them"),
            element(
                "tbody",
                [
                    element(
                        "tr",
                        element("th", letter, scope="row", class_="letter"),
                        element("td", element("code", names.get(letter, letter))),
                        element("td", meaning, class_="prose"),
                        class_="ghost" if letter in GHOSTS else None,
                    )
                    for letter, meaning in LETTERS.items()
                ],
            ),
        ),
    )


def primer_section() -> Markup:
    """One picture, one paragraph, the legend, and the letters folded away."""
    return element(
        "section",
        element("h2", "One step, in a picture", id="primer"),
        element(
            "p",
            "A drafter guesses a few tokens. One step of the model computes KV for the last known token "
            "and all "
            "guesses at once, and says how many were right. Those are ",
            element("b", "accepted"),
            "; the first wrong one is ",
            element("b", "rejected"),
            " and replaced by the token the model wanted there, the ",
            element("b", "bonus"),
            " token. Counters had moved on for all of them, and must now come back by exactly the right "
            "amount: "
            "a stop may cut off accepted tokens too, results may arrive a step late, the request may have "
            "been "
            "preempted meanwhile.",
        ),
        element(
            "figure",
            scrolling("Figure: one verified step", primer()),
            element(
                "figcaption",
                "Three drafts, “mat and ran”, have just been verified: two accepted, one rejected. Blocks "
                "hold "
                "four tokens here.",
            ),
        ),
        legend(),
        element(
            "details",
            element("summary", "The letters of the counters"),
            element(
                "p",
                "The names are vLLM’s. The last five are kept by no engine: they are the truth that the "
                "others are measured against.",
            ),
            _letters(),
            id="letters",
        ),
    )


def meaning_section() -> Markup:
    """What is proved, bounded and tested, and the prover's words."""
    return element(
        "section",
        element("h2", "What these proofs mean, and what they don’t", id="meaning"),
        element(
            "p",
            "A test tries some cases. A proof leaves the numbers open and shows that no choice of them "
            "breaks the "
            "claim. But a proof speaks only about what was written down: about the counters as the "
            "specification "
            "defines them, not about the numbers inside the model, and only as far as what is ",
            element("a", "trusted", href="#trusted"),
            " deserves it.",
        ),
        element(
            "div",
            [
                element("section", element("h3", title), [element("p", words) for words in paragraphs])
                for title, paragraphs in (
                    ("Proved, without bound", PROVED),
                    ("Bounded", BOUNDED),
                    ("Tested", TESTED),
                )
            ],
            class_="honest three",
        ),
        element("h3", "Words"),
        element(
            "dl",
            [(element("dt", word), element("dd", words)) for word, words in PROVER_WORDS],
            class_="facts words",
        ),
    )
