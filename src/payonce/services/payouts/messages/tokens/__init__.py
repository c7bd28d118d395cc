"""The tokens that the roles of payouts send each other.

hops     the fields of each hop
sealed   version 2: encrypted and authenticated, bound to one hop
packed   version 1: the binary layouts of older services
codec    both versions behind one interface
refusal  the reasons for which a token is refused

Only the hops are imported here: the ciphers take a while to load, and most commands open no token.
"""

from payonce.services.payouts.messages.tokens.hops import (
    ESTIMATE_REQUEST,
    ESTIMATE_RESPONSE,
    HOPS,
    HOST_PAY,
    SWAP_REQUEST,
    SWAP_RESPONSE,
    EstimateRequest,
    EstimateResponse,
    Hop,
    HostPay,
    SwapRequest,
    SwapResponse,
    plain,
    read,
)

__all__ = [
    "ESTIMATE_REQUEST",
    "ESTIMATE_RESPONSE",
    "HOPS",
    "HOST_PAY",
    "SWAP_REQUEST",
    "SWAP_RESPONSE",
    "EstimateRequest",
    "EstimateResponse",
    "Hop",
    "HostPay",
    "SwapRequest",
    "SwapResponse",
    "plain",
    "read",
]
