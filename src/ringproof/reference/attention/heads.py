"""Head counts that an all-to-all can divide, checked without torch before any rank starts."""

from __future__ import annotations

from ringproof.errors import InputError


def check_heads(heads: int, kv_heads: int, exchange_size: int, replication: int) -> None:
    """Refuse head counts that the exchange cannot split evenly.

    Args:
        heads: Query heads.
        kv_heads: Key/value heads before replication.
        exchange_size: Ranks that share the heads; 1 where there is no all-to-all.
        replication: Copies made of each key/value head.

    Raises:
        InputError: Key/value heads that do not divide the query heads, either count not a multiple
            of the ranks, or a replication that nothing needs.
    """
    if replication < 1 or (replication > 1 and exchange_size == 1):
        problem = f"{replication} is less than 1, or there is no all-to-all that needs it"
        raise InputError("kv_replication", f"{problem}; give 1")
    copies = kv_heads * replication
    if heads % copies:
        raise InputError("kv_heads", f"{copies} does not divide {heads} query heads; change one")
    for name, count in (("heads", heads), ("kv_heads", copies)):
        if count % exchange_size:
            problem = f"{count} heads cannot be divided by an all-to-all over {exchange_size} ranks"
            remedy = "use p2p, a smaller first level of a2a+p2p, or kv replication"
            raise InputError(name, f"{problem}; {remedy}")
