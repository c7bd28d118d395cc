"""Text that a font can show: what it cannot is marked, never dropped and never shown as something else."""

import unicodedata
from collections.abc import Container
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from payonce.kit.outcomes import Unavailable

if TYPE_CHECKING:
    from reportlab.pdfbase.ttfonts import TTFont

NO_PACKAGE: Final = "invoices become PDFs with the extra billing: pip install 'payonce[billing]'"
MARK: Final = "\N{LOZENGE}"
"""In the place of a character that cannot be shown. The wheel's font has it; for one that has not it is `?`."""
FONTS_KEPT: Final = 8
"""Read once: a font takes longer to read than an invoice to write."""

_RIGHT_TO_LEFT: Final = frozenset({"R", "AL", "AN"})
"""Printed letter by letter from left to right they would be no words, whatever glyphs the font has."""


@dataclass(frozen=True, slots=True)
class Fonts:
    """Two TrueType files. Without them the Bitstream Vera that comes with reportlab: western and central Europe."""

    regular: Path
    bold: Path


class Lettering:
    """Makes text showable in all of the fonts given, and remembers whether it had to change any."""

    def __init__(self, *glyphs: Container[int]) -> None:
        self._glyphs = glyphs
        self.mark = MARK if self._has(MARK) else "?"
        self.changed = False

    def shown(self, text: str) -> str:
        # Composed first, or a font would be asked for an accent by itself.
        return "".join(self._shown(char) for char in unicodedata.normalize("NFC", text))

    def _shown(self, char: str) -> str:
        category = unicodedata.category(char)
        if category == "Cf":
            return ""
        if category in ("Zs", "Zl", "Zp", "Cc"):
            return "\N{NO-BREAK SPACE}" if char in "\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}" else " "
        if self._has(char):
            return char
        self.changed = True
        letters = [each for each in unicodedata.normalize("NFKD", char) if not unicodedata.combining(each)]
        return "".join(letters) if letters and all(map(self._has, letters)) else self.mark

    def _has(self, char: str) -> bool:
        in_all = all(ord(char) in glyphs for glyphs in self._glyphs)
        return in_all and unicodedata.bidirectional(char) not in _RIGHT_TO_LEFT


def loaded(fonts: Fonts | None) -> tuple["TTFont", "TTFont"]:
    """The two fonts, regular and bold, ready for a document."""
    try:
        import reportlab
    except ImportError as error:
        raise Unavailable(NO_PACKAGE) from error
    folder = Path(reportlab.__file__).parent / "fonts"
    chosen = fonts or Fonts(folder / "Vera.ttf", folder / "VeraBd.ttf")
    return _loaded(chosen.regular), _loaded(chosen.bold)


@lru_cache(maxsize=FONTS_KEPT)
def _loaded(path: Path) -> "TTFont":
    from reportlab.pdfbase.pdfmetrics import registerFont
    from reportlab.pdfbase.ttfonts import TTFError, TTFont

    try:
        font = TTFont(str(path), str(path))
    except (TTFError, OSError) as error:
        raise Unavailable(
            f"the font {path} cannot be read as TrueType: name another file, or none for our own"
        ) from error
    registerFont(font)
    return font
