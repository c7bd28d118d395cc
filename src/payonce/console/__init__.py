"""The operator's page: server-rendered, readable without JavaScript, live with it.

A page of the platform is one module in `pages/` that ends in a `Page` with its routes, one template, and one line in
`pages/__init__.py`. Services declare their own pages and bring the templates (`ServicePages`). Every route says which
role it needs. Every POST carries the CSRF token of its session, or is refused before the page's own code runs. Pages
read through the engine, and change through it in the name of the person who asked.
"""
