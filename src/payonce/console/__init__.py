"""The operators' web console: server-rendered, usable without JavaScript, self-updating with it.

A page of the platform is one module in `pages/` that ends in a `Page` with its routes, one template, and one line in
`pages/__init__.py`. Services declare their own pages and templates (`ServicePages`). Every route names its role. Every
POST must carry the CSRF token of its session; others are rejected before the page's code runs. Pages read and
change data through the engine, in the name of the logged-in person.
"""
