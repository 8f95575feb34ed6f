"""Checks references to code in skills: fences, ``path:line`` mentions and listed symbols."""

from ringproof.harness.fences.check import CheckedDocument, check_documents, mend, mended
from ringproof.harness.fences.model import JudgedMention, Mention, Placement
from ringproof.harness.fences.report import as_json

__all__ = (
    "CheckedDocument",
    "JudgedMention",
    "Mention",
    "Placement",
    "as_json",
    "check_documents",
    "mend",
    "mended",
)
