"""``ringproof fit``: what a launch takes of a GPU's memory, from upstream's own program."""
