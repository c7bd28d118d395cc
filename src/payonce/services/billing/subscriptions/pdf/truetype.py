"""TrueType fonts in a PDF: glyphs by number, with the text that each represents."""

import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from payonce.kit.outcomes import Unavailable

NO_PACKAGE: Final = "PDFs of invoices need the extra billing; run: pip install 'payonce[billing]'"
FONTS_MAX: Final = 32
"""Fonts kept in memory: reading a font takes longer than writing an invoice."""

_PRIVATE: Final = 0xF0000
"""Codes for glyphs without a letter, such as ligatures, begin here. A code is derived from the glyph's number, so that
equal invoices are equal files whatever was printed before."""
_JOINED_FORMS: Final = ((0xFB1D, 0xFDFF), (0xFE70, 0xFEFE))
"""Ranges of Hebrew and Arabic presentation forms."""
_TEXTS_AT_ONCE: Final = 100
"""Entries per block of a ToUnicode table; the format's limit."""


class Font:
    """One font file, for the shaper and the PDF. Not thread-safe."""

    def __init__(self, loaded: Any) -> None:
        self._loaded = loaded
        self._shaper: Any = None
        self.name: str = loaded.fontName
        self.space: int | None = loaded.face.charToGlyph.get(0x20)

    @property
    def shaper(self) -> Any:
        """The HarfBuzz font."""
        if self._shaper is None:
            try:
                import uharfbuzz
            except ImportError as error:
                raise Unavailable(NO_PACKAGE) from error
            self._shaper = uharfbuzz.Font(uharfbuzz.Face(uharfbuzz.Blob(self._loaded.face._ttf_data)))
        return self._shaper

    @property
    def units_per_em(self) -> int:
        units: int = self.shaper.face.upem
        return units

    def has(self, char: str) -> bool:
        return ord(char) in self._loaded.face.charToGlyph

    def width(self, text: str) -> float:
        """In points, for a size of one."""
        return float(self._loaded.stringWidth(text, 1))

    def letter(self, number: int) -> str | None:
        """The letter that a glyph represents; None for a ligature or another form without a code."""
        known = (code for code in self._loaded.face.glyphToChar.get(number, ()) if 0x20 <= code < _PRIVATE)
        code = next(known, None)
        return None if code is None else chr(code)

    def name_glyph(self, number: int, meant: str) -> str:
        """The glyph's character in the PDF; `meant` is the text that copying it yields."""
        if (letter := self.letter(number)) is not None:
            return letter
        face, code = self._loaded.face, _PRIVATE + number
        face.charToGlyph[code] = number
        face.charWidths[code] = face._pdfScale(face.hmetrics[number][0])
        self._loaded.texts.setdefault(code, meant)
        return chr(code)

    def begin_document(self) -> None:
        """Forgets the texts of the previous document's glyphs."""
        self._loaded.texts.clear()


@lru_cache(maxsize=FONTS_MAX)
def load_font(path: Path) -> Font:
    """Raises Unavailable for a missing file, or one that is not a TrueType font."""
    try:
        from reportlab.pdfbase.pdfmetrics import registerFont
        from reportlab.pdfbase.ttfonts import TTFError
    except ImportError as error:
        raise Unavailable(NO_PACKAGE) from error
    try:
        loaded = _readable_font()(str(path), str(path))
    except (TTFError, OSError) as error:
        raise Unavailable(
            f"the font {path} cannot be read as TrueType: name another file, or none to use the bundled fonts"
        ) from error
    registerFont(loaded)
    return Font(loaded)


@lru_cache(maxsize=1)
def _readable_font() -> Any:
    """reportlab's font with a ToUnicode table for letters beyond the first plane and for glyphs without a letter."""
    from reportlab.pdfbase.ttfonts import SUBSETN, TTFont

    class ReadableFont(TTFont):
        def __init__(self, name: str, path: str) -> None:
            super().__init__(name, path)
            self.texts: dict[int, str] = {}

        def addObjects(self, doc: Any) -> None:  # noqa: N802 - reportlab's name
            subsets = [list(subset) for subset in self.state[doc].subsets]
            super().addObjects(doc)
            for number, subset in enumerate(subsets):
                name = b"".join((SUBSETN(number), b"+", self.face.name, self.face.subfontNameX)).decode("pdfdoc")
                texts = [self._text(code) for code in subset]
                doc.idToObject[f"toUnicodeCMap:{name}"].content = "\n".join(_table(name, texts))

        def _text(self, code: int) -> str:
            if code in self.texts:
                return self.texts[code]
            # A letter in its joined form is copied as the base letter.
            joined = any(first <= code <= last for first, last in _JOINED_FORMS)
            return unicodedata.normalize("NFKC", chr(code)) if joined else chr(code)

    return ReadableFont


def _table(name: str, texts: Sequence[str]) -> Iterator[str]:
    yield "/CIDInit /ProcSet findresource begin\n12 dict begin\nbegincmap"
    yield f"/CIDSystemInfo << /Registry ({name}) /Ordering ({name}) /Supplement 0 >> def"
    yield f"/CMapName /{name} def\n/CMapType 2 def"
    yield f"1 begincodespacerange\n<00> <{len(texts) - 1:02X}>\nendcodespacerange"
    for begin in range(0, len(texts), _TEXTS_AT_ONCE):
        part = texts[begin : begin + _TEXTS_AT_ONCE]
        yield f"{len(part)} beginbfchar"
        yield from (f"<{begin + n:02X}> <{text.encode('utf-16-be').hex().upper()}>" for n, text in enumerate(part))
        yield "endbfchar"
    yield "endcmap\nCMapName currentdict /CMap defineresource pop\nend\nend"
