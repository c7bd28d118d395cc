"""Routes that both billing services serve."""
