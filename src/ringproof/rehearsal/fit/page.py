"""The memory of a launch as one HTML page that needs no other file."""

from __future__ import annotations

from ringproof.rehearsal.fit.pictures import HEIGHT, WIDTH, kinds, picture
from ringproof.rehearsal.fit.rendering import ESTIMATES, gib, heading, table, verdict
from ringproof.rehearsal.fit.result import UNSEEN, Fit, assumptions
from ringproof.templates import fill_template


def page(fit: Fit) -> str:
    """Return the page's text. Everything that came from outside is escaped."""
    pictures = {rank.rank: picture(rank, fit.gpu) for rank in fit.ranks}
    values = {
        "fit": fit,
        "verdict": list(verdict(fit)),
        "heading": list(heading(fit)),
        "pictures": pictures,
        "kinds": kinds(pictures.values()),
        "width": WIDTH,
        "height": HEIGHT,
        "table": list(table(fit)),
        "estimates": ESTIMATES,
        "assumed": list(assumptions(fit)),
        "unseen": UNSEEN,
    }
    return fill_template("ringproof.rehearsal.fit", "fit.html.j2", values, filters={"gib": gib})
