"""The report: everything that was proved, and every fault, as one page that an engineer can read."""

from draftproof.proofs.report.page import render, write_report

__all__ = ["render", "write_report"]
