"""Converts cards of NVIDIA's form. Every statement is kept, and none is shown as proven."""

from ringproof.harness.importing.importer import Imported, convert, refuse_overlap, write
from ringproof.harness.importing.report import as_json, as_text
from ringproof.harness.importing.roots import Roots, open_roots

__all__ = (
    "Imported",
    "Roots",
    "as_json",
    "as_text",
    "convert",
    "open_roots",
    "refuse_overlap",
    "write",
)
