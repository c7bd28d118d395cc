"""The tokens that the roles of payouts send each other.

hops     what each hop carries
sealed   version 2: encrypted, proven, for one hop alone
packed   version 1: the binary layouts of older services
codec    both behind one interface
refusal  why a token is refused

Only the hops are named here: the ciphers take a while to load, and most commands open no token.
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
