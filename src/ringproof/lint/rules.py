"""Every rule, once. The documentation page is checked against this table."""

from __future__ import annotations

from ringproof.findings.finding import Rule

RULES: tuple[Rule, ...] = (
    Rule("RP001", "silence-without-reason", "error", "A silencing comment gives no reason."),
    Rule("RP002", "silence-of-nothing", "warning", "A silencing comment matches no finding."),
    Rule("RP101", "frontmatter", "error", "The frontmatter is missing or is not valid YAML."),
    Rule("RP102", "unknown-key", "error", "The frontmatter has a key outside the specification."),
    Rule("RP103", "name", "error", "The name is missing, malformed or not the folder's name."),
    Rule("RP104", "description", "error", "The description is missing, empty or not text."),
    Rule("RP105", "field-type", "error", "An optional field has the wrong type or length."),
    Rule("RP106", "skills-ref", "error", "skills-ref refuses what the rules above accept."),
    Rule("RP107", "file-name", "error", "The skill's file is not spelled SKILL.md."),
    Rule("RP108", "agent-key", "warning", "The frontmatter has a key that only some agents know."),
    Rule("RP201", "broken-reference", "error", "A relative reference leads nowhere."),
    Rule("RP202", "unreferenced-file", "warning", "No text of the skill leads to a file in it."),
    Rule("RP203", "long-description", "error", "The description is longer than 1,024 characters."),
    Rule("RP204", "long-body-lines", "warning", "The body has 500 lines or more."),
    Rule("RP205", "long-body-tokens", "warning", "The body has about 5,000 tokens or more."),
    Rule("RP206", "duplicate-name", "error", "Two skills have the same name."),
    Rule("RP207", "duplicate-trigger", "warning", "Two skills have nearly the same description."),
    Rule("RP208", "unread-file", "warning", "A text file is too large or not UTF-8: unchecked."),
    Rule("RP209", "path-escape", "error", "A link or reference leads out of the repository."),
    Rule("RP210", "card", "error", "The card of a skill cannot be loaded."),
    Rule("RP211", "outside-skill", "warning", "A link leads outside the skill's folder."),
    Rule("RP301", "shell-syntax", "error", "A shell fence does not parse."),
    Rule("RP302", "unknown-option", "error", "A ringproof command or option does not exist."),
    Rule("RP303", "json-syntax", "error", "A JSON fence does not parse."),
    Rule("RP304", "yaml-syntax", "error", "A YAML fence does not parse."),
    Rule("RP401", "invisible-character", "error", "An invisible character stands in the text."),
    Rule("RP402", "bidirectional-control", "error", "A character reorders the shown text."),
    Rule("RP403", "tag-character", "error", "Tag characters or selectors can carry hidden text."),
    Rule("RP404", "mixed-script-word", "error", "A Latin word has look-alike letters in it."),
    Rule("RP405", "hidden-instruction", "error", "Text that is not shown gives instructions."),
    Rule("RP406", "remote-code", "error", "Downloaded code is executed unseen."),
    Rule("RP407", "encoded-code", "error", "Encoded code is decoded and executed."),
    Rule("RP408", "secret", "error", "Something looks like a secret."),
    Rule("RP409", "steering-text", "warning", "The text tries to steer an assistant."),
    Rule("RP410", "active-content", "warning", "Markdown has code that a page would execute."),
    Rule("RP411", "opaque-file", "warning", "A program, pickle or archive cannot be reviewed."),
    Rule("RP412", "sends-private", "error", "Private files or settings are sent away."),
    Rule("RP413", "destructive", "error", "A command destroys a system, a disk or a home."),
)

IDS = frozenset(rule.id for rule in RULES)
