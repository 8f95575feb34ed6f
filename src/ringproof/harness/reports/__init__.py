"""Findings of every command, told in one way: as text, JSON, SARIF 2.1.0 or GitHub annotations."""

from ringproof.harness.reports.model import Finding as Finding
from ringproof.harness.reports.model import Report as Report
from ringproof.harness.reports.model import Rule as Rule
from ringproof.harness.reports.printable import showable as showable
