"""The version of payonce, where every layer may read it."""

from typing import Final

__version__: Final = "0.1.0"
