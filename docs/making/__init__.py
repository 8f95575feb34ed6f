"""Makes the pages, pictures and plots of the documentation that are not written by hand.

`docs/hook.py` calls these modules when mkdocs builds the site. What they show comes from cards,
locks, evidence records, committed results and the code itself, so a page cannot say something else.
"""
