"""Southbank: takes a reference and does not look at it twice; shows payments late; can be told to void a reference."""
