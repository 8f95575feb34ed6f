"""How much the reading of one launch may take, all its scripts together."""

from __future__ import annotations

from dataclasses import dataclass

from ringproof.errors import InputError

MOST_STEPS = 100_000
"""Commands, words and parts of words; the largest launch of upstream's takes about 3,000."""
MOST_CHARACTERS = 4 << 20
"""Characters of scripts and of expanded text: reading that many takes a few seconds."""
MOST_FILES = 100


@dataclass
class ReadingBudget:
    """What the reading of one launch has taken so far.

    Scripts are other people's files, and a few lines can ask for more work than any machine can
    do: functions that call two others, nested loops, ``X=$X$X``, scripts that source each other.

    Attributes:
        place: Script and line that is being read, for the message.
    """

    place: str = "the script"
    steps: int = 0
    characters: int = 0
    files: int = 0

    def spend(self, *, steps: int = 0, characters: int = 0, files: int = 0) -> None:
        """Add what is about to be done.

        Raises:
            InputError: The reading has taken more than any launch needs.
        """
        self.steps += steps
        self.characters += characters
        self.files += files
        for name, taken, most in (
            ("steps", self.steps, MOST_STEPS),
            ("characters", self.characters, MOST_CHARACTERS),
            ("files", self.files, MOST_FILES),
        ):
            if taken > most:
                remedy = "write this part out, or give the launch itself after --"
                raise InputError(self.place, f"reading up to here takes more than {most:,} {name}; "
                                             f"{remedy}")  # fmt: skip
