"""`dynamic_hand_over` on Megatron-LM's dev branch."""

from __future__ import annotations

from checks.skills.dynamic_dev import prepare
from checks.skills.dynamic_hand_over import main

if __name__ == "__main__":
    prepare()
    main()
