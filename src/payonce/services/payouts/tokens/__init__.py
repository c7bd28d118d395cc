"""The tokens that the roles of payouts send each other.

hops    what each hop carries
sealed  version 2: encrypted, proven, for one hop alone
packed  version 1: the binary layouts of older services
codec   both behind one interface
"""
