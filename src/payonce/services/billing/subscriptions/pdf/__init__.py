"""Invoices as PDF: content, glyphs, fonts and rendering."""
