"""Routes that concern both services of billing."""
