"""Sizes that follow from settings, for people to compare with what they meant."""

from __future__ import annotations

from ringproof.doctor.facts import NEW, Facts, power_below


def sizes(facts: Facts) -> dict[str, object]:
    """Return sizes by name, of those that are known; lengths in tokens."""
    found: dict[str, object] = {
        "ranks": facts.settings.ranks,
        "TP": facts.tp,
        "PP": facts.pp,
        "CP": facts.cp,
        "DP": facts.dp,
        "tokens per rank": facts.length // facts.cp if facts.length and facts.cp else None,
        "query heads per TP rank": facts.heads // facts.tp if facts.heads and facts.tp else None,
        "KV heads per TP rank": facts.key_value_heads / facts.tp if facts.heads else None,
    }
    if facts.dynamic:
        found |= _dynamic(facts)
    groups = _groups(facts)
    if groups:
        found["process groups to expect"] = groups
    return {name: value for name, value in found.items() if value is not None}


def _dynamic(facts: Facts) -> dict[str, object]:
    if facts.domain is None:
        return {"budget": facts.budget}
    return {
        "DP x CP": facts.domain,
        "budget": facts.budget,
        "longest sequence": power_below(facts.domain) * facts.budget if facts.budget else None,
        "multiple of lengths": 2 * facts.domain * facts.split,
    }


def _groups(facts: Facts) -> list[str]:
    """Descriptions of groups, as ``parallel_state`` names them."""
    found = []
    if facts.levels and facts.cp > 1:
        levels = range(len(facts.levels))
        found += [f"HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L{level}" for level in levels]
    if facts.dynamic and facts.domain and not facts.at("dynamic-v2"):
        new = facts.at(*NEW)
        if new and not facts.new_name:
            return found
        name = "DYNAMIC_DP_CP_GROUP" if new else "HYBRID_DP_CP_GROUP"
        size = max(facts.smallest, 1) if new else 2
        while size < power_below(facts.domain):
            found.append(f"{name}_{size}")
            size *= 2
    return found
