"""Two training logs side by side: `log` reads them, `verdict` has the rule, `report` shows them."""
