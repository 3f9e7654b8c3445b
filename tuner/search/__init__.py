"""How candidates are proposed: ask and tell."""
