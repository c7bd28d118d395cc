"""The operator's page: server-rendered, readable without JavaScript, live with it.

A page is one module in `pages/` that ends in a `Page` with its routes, one template, and one line in
`pages/__init__.py`. Every route says which role it needs. Every POST carries the CSRF token of its session, or is
refused before the page's own code runs. Pages read through the engine, and change through it in the name of the person
who asked.
"""
