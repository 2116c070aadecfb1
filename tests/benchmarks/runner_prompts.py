"""What do the benchmarks of the runner ask? To go on with a list, to copy, to sum up, and open questions.

Of the first three much of the answer stands in the prompt or in what was just said, so that prompt lookup has
something to find; of an open question little does. The batch holds prompts of different lengths, as real
batches do.
"""

from __future__ import annotations

CODE = """class Account:
    def __init__(self, owner, balance):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        self.balance = self.balance + amount
        return self.balance

    def withdraw(self, amount):
        self.balance = self.balance - amount
        return self.balance
"""
ARTICLE = """A lighthouse is a tower that sends out light from a system of lamps and lenses, to guide \
ships at sea. Lighthouses mark dangerous coasts, hazardous shoals, reefs, rocks, and safe entries to \
harbours. Before clearly defined ports were built, seamen were guided by fires on hilltops. Since a \
raised fire can be seen from farther away, placing the fire on a platform became a practice that led to \
the lighthouse. In antiquity the lighthouse was more of an entrance marker to a port than a warning of \
reefs, unlike many modern lighthouses. Today most lamps are automatic, and many towers whose keepers \
have left are museums; satellite navigation has made lighthouses less needed, but a light that anybody \
can see needs no device on board."""

LIST = "\n".join(f"{row}. Row {row} of the table has the number {row}." for row in range(1, 5))

SINGLE = {
    "repetitive": f"Continue this list up to 20.\n\n{LIST}",
    "code": "Copy this code exactly, then add a method named close in the same style.\n\n```python\n"
    f"{CODE}```",
    "summary": f"Summarize this text in one short paragraph and reuse its wording:\n\n{ARTICLE}",
    "open": "Explain to a child, in a friendly tone, why the sea is salty.",
}
"""By what they are like."""
BATCH = (
    *SINGLE.values(),
    "What is friction?",
    "Write a short poem about autumn, in which a fox and a crow talk about the weather.",
    "How do I repair a flat tyre on a bicycle when I am on the road and have only a pump and a patch?",
    "Who painted the Mona Lisa?",
)
