"""The places in code that other people's skills point to: are they still there?"""

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
