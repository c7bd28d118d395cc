"""Converts text to glyphs: each letter from the first font that has it, shaped for its script and in visual order.

HarfBuzz joins, stacks and reorders letters; python-bidi orders right-to-left text. A character without a font is
marked, never dropped or replaced by another one.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from payonce.kit.outcomes import Unavailable
from payonce.services.billing.subscriptions.pdf.truetype import NO_PACKAGE, Font, load_font

if TYPE_CHECKING:
    from reportlab.pdfgen.canvas import Canvas

MARK: Final = "\N{LOZENGE}"
"""Replaces a character that no font has."""
FOLDER: Final = Path(__file__).parent / "fonts"
DEJAVU, DEJAVU_BOLD = FOLDER / "DejaVuSans.ttf", FOLDER / "DejaVuSans-Bold.ttf"
DROID: Final = FOLDER / "DroidSansFallback.ttf"

_SIMPLE_BELOW: Final = "\u0300"
"""Latin letters below the combining marks: one letter, one glyph."""
_JOINERS: Final = frozenset("\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}")
_NO_BREAK: Final = frozenset("\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}")
_RIGHT_TO_LEFT: Final = frozenset({"R", "AL"})
_NUMBER: Final = re.compile(r"(?:(?<!\S)[+-])?\d(?:[\d .,:/+-]*\d)?%?", re.ASCII)
_SIGNS: Final = tuple(map(chr, range(0x1AB0, 0x1ABE)))
"""Marks that hardly any text uses."""
_UNSIGNED: Final = frozenset({"WS", "S", "B", "BN", "CS", "ES", "ET"})
_LRM: Final = "\N{LEFT-TO-RIGHT MARK}"
_FEATURES: Final = {"kern": False, "liga": False}
"""Without kerning and ligatures a Latin word has the same width beside Arabic as alone."""
_NEAR: Final = 0.01
"""In points; a smaller offset is ignored."""


@dataclass(frozen=True, slots=True)
class Fonts:
    """The merchant's TrueType files, which precede the bundled ones. A letter is taken from the first file that has it:
    regular text from `regular`, DejaVu Sans, Droid Sans Fallback; bold text from `bold`, DejaVu Sans Bold, and then
    like regular text."""

    regular: tuple[Path, ...] = ()
    bold: tuple[Path, ...] = ()

    def files(self, bold: bool) -> tuple[Path, ...]:
        regular = (*self.regular, DEJAVU, DROID)
        return (*self.bold, DEJAVU_BOLD, *regular) if bold else regular


def check_fonts(fonts: Fonts) -> None:
    """Raises Unavailable if one of the merchant's files is not a font that a PDF can embed."""
    for path in (*fonts.regular, *fonts.bold):
        load_font(path)


class Glyph(NamedTuple):
    char: str
    """The glyph's character in the font: a letter, or a private use code."""
    advance: float
    x: float
    """Offsets to the right and upwards; all in points for a size of one."""
    y: float


@dataclass(frozen=True, slots=True)
class Run:
    """Text in one font and one direction, in reading order."""

    font: Font
    text: str
    glyphs: tuple[Glyph, ...] | None
    """From left to right; None if each letter is one glyph."""

    @property
    def width(self) -> float:
        if self.glyphs is None:
            return self.font.width(self.text)
        return sum(glyph.advance for glyph in self.glyphs)


class GlyphRenderer:
    """Draws text for one document, and remembers whether it had to replace any."""

    def __init__(self, fonts: Fonts) -> None:
        self._files = {bold: fonts.files(bold) for bold in (False, True)}
        self._fonts: dict[Path, Font] = {}
        self._runs: dict[tuple[str, bool, str | None], tuple[Run, ...]] = {}
        self.changed = False

    def shown(self, text: str) -> str:
        """The text as the fonts can show it, in reading order."""
        # Composed first, since fonts rarely have an accent by itself.
        return "".join(self._shown(char) for char in unicodedata.normalize("NFC", text))

    def width(self, text: str, bold: bool, size: float, base: str | None = None) -> float:
        return size * sum(run.width for run in self.runs(text, bold, base))

    def draw(self, canvas: "Canvas", x: float, y: float, text: str, bold: bool, size: float, base: str | None) -> None:
        for run in self.runs(text, bold, base):
            _draw_run(canvas, x, y, run, size)
            x += run.width * size

    def _shown(self, char: str) -> str:
        category = unicodedata.category(char)
        if char in _JOINERS:
            return char
        if category == "Cf" or _is_selector(char):
            return ""
        if category in ("Zs", "Zl", "Zp", "Cc"):
            return "\N{NO-BREAK SPACE}" if char in _NO_BREAK else " "
        if self._has(char):
            return char
        self.changed = True
        letters = [each for each in unicodedata.normalize("NFKD", char) if not unicodedata.combining(each)]
        return "".join(letters) if letters and all(map(self._has, letters)) else MARK

    def _has(self, char: str) -> bool:
        return any(self._font(path).has(char) for path in self._files[False])

    def _font(self, path: Path) -> Font:
        """Loaded when a letter is first looked up in it: the last fonts are large and rarely needed."""
        if (known := self._fonts.get(path)) is None:
            known = self._fonts[path] = load_font(path)
            known.begin_document()
        return known

    def runs(self, text: str, bold: bool, base: str | None = None) -> tuple[Run, ...]:
        key = text, bold, base
        if (known := self._runs.get(key)) is None:
            known = self._runs[key] = tuple(self._runs_of(text, bold, base))
        return known

    def _runs_of(self, text: str, bold: bool, base: str | None) -> Iterator[Run]:
        first = self._font(self._files[bold][0])
        if all(char < _SIMPLE_BELOW and first.has(char) for char in text):
            yield Run(first, text, None)
            return
        for font, letters, rtl in self._segments(in_visual_order(text, base), bold):
            ordered = letters[::-1] if rtl else letters
            yield Run(font, ordered, _shape(font, ordered, rtl))

    def _segments(self, letters: "Sequence[_Letter]", bold: bool) -> Iterator[tuple[Font, str, bool]]:
        """Splits text into runs of one font, direction and script."""
        placed: list[tuple[Font, bool, str, str]] = []
        font, script, rtl = self._font(self._files[bold][0]), "", False
        for letter in letters:
            if letter.rtl != rtl:
                script = ""
            script, rtl = _script(letter.char) or script, letter.rtl
            font = self._font_of(letter.char, bold, font)
            placed.append((font, rtl, script, letter.char))
        for (font, rtl, _), group in groupby(placed, lambda each: each[:3]):
            yield font, "".join(char for *_, char in group), rtl

    def _font_of(self, char: str, bold: bool, before: Font) -> Font:
        """Spaces, marks and joiners use the font of their neighbour if it has them."""
        if char in _JOINERS or (before.has(char) and not unicodedata.category(char).startswith(("L", "N"))):
            return before
        return next((font for font in map(self._font, self._files[bold]) if font.has(char)), before)


class _Letter(NamedTuple):
    char: str
    rtl: bool


def in_visual_order(text: str, base: str | None) -> list[_Letter]:
    """The letters from left to right. `base` is the direction of the paragraph, L or R; None takes it from its first
    letter.

    Right-to-left runs are reversed, with their brackets not mirrored yet, as HarfBuzz expects.
    """
    if base != "R" and not any(unicodedata.bidirectional(char) in (*_RIGHT_TO_LEFT, "AN") for char in text):
        return [_Letter(char, False) for char in text]
    try:
        from bidi import get_display
    except ImportError as error:
        raise Unavailable(NO_PACKAGE) from error
    # Otherwise the parts of a date or phone number beside right-to-left letters would change places.
    isolated = _NUMBER.sub(lambda found: f"{_LRM}{found[0]}{_LRM}", text)
    # A mark follows its letter in left-to-right text and precedes it in right-to-left text.
    sign = next(mark for mark in _SIGNS if mark not in text)
    signed = "".join(char + sign if _is_signed(char) else char for char in isolated)
    seen = iter(get_display(signed, base_dir=base).replace(_LRM, ""))
    letters: list[_Letter] = []
    for char in seen:
        if char == sign:
            letters.append(_Letter(next(seen), True))
        elif _is_signed(char):
            next(seen)
            letters.append(_Letter(char, False))
        else:
            letters.append(_Letter(char, bool(letters) and letters[-1].rtl))
    return letters


def _is_signed(char: str) -> bool:
    """Not for spaces and separators: one between two digits belongs to their number."""
    return unicodedata.bidirectional(char) not in _UNSIGNED and char != _LRM


def direction_of(text: str) -> str:
    """The direction of a paragraph, L or R: that of its first letter."""
    found = (unicodedata.bidirectional(char) for char in text)
    return next(("L" if kind == "L" else "R" for kind in found if kind in ("L", *_RIGHT_TO_LEFT)), "L")


def clusters(text: str) -> list[str]:
    """Letters with their marks and joiners; a line may be broken after any of them."""
    found: list[str] = []
    for char in text:
        if found and (_is_mark(char) or char in _JOINERS or found[-1][-1] == "\N{ZERO WIDTH JOINER}"):
            found[-1] += char
        else:
            found.append(char)
    return found


def _is_mark(char: str) -> bool:
    return unicodedata.category(char).startswith("M")


def _is_selector(char: str) -> bool:
    """A variation selector, which is dropped: the letter is shown as the font has it."""
    return "\N{VARIATION SELECTOR-1}" <= char <= "\N{VARIATION SELECTOR-16}" or char >= "\U000e0100"


@lru_cache(maxsize=4_096)
def _script(char: str) -> str | None:
    """The script of a letter, from the first word of its name; None for characters that all scripts share."""
    if unicodedata.category(char)[0] not in "LM":
        return None
    word = unicodedata.name(char, "").partition(" ")[0]
    return None if word in ("", "COMBINING", "MODIFIER") else word


def _shape(font: Font, text: str, rtl: bool) -> tuple[Glyph, ...]:
    try:
        import uharfbuzz
    except ImportError as error:
        raise Unavailable(NO_PACKAGE) from error

    buffer = uharfbuzz.Buffer()
    buffer.cluster_level = uharfbuzz.BufferClusterLevel.MONOTONE_CHARACTERS
    buffer.add_str(text)
    buffer.guess_segment_properties()
    buffer.direction = "rtl" if rtl else "ltr"
    uharfbuzz.shape(font.shaper, buffer, _FEATURES)
    em = font.units_per_em
    meant = _meant(font, text, [(info.codepoint, info.cluster) for info in buffer.glyph_infos])
    glyphs = []
    for info, at, read in zip(buffer.glyph_infos, buffer.glyph_positions, meant, strict=True):
        if info.codepoint == font.space and not at.x_advance:
            # A joiner, whose effect is already applied.
            continue
        char = font.name_glyph(info.codepoint, read)
        glyphs.append(Glyph(char, at.x_advance / em, at.x_offset / em, at.y_offset / em))
    return tuple(glyphs)


def _meant(font: Font, text: str, placed: Sequence[tuple[int, int]]) -> list[str]:
    """The text that copying yields for each glyph without a letter: the letters of its cluster that no other glyph
    represents."""
    begins = sorted({cluster for _, cluster in placed})
    ends = dict(zip(begins, [*begins[1:], len(text)], strict=True))
    rest = {begin: text[begin : ends[begin]] for begin in begins}
    for number, cluster in placed:
        if (letter := font.letter(number)) is not None:
            rest[cluster] = rest[cluster].replace(letter, "", 1)
    found = []
    for number, cluster in placed:
        found.append(rest[cluster] or "\N{ZERO WIDTH SPACE}")
        if font.letter(number) is None:
            rest[cluster] = ""
    return found


def _draw_run(canvas: "Canvas", x: float, y: float, run: Run, size: float) -> None:
    canvas.setFont(run.font.name, size)
    if run.glyphs is None:
        canvas.drawString(x, y, run.text)
        return
    chars, begin, height, end = "", x, y, x
    for glyph in run.glyphs:
        at, up = x + glyph.x * size, y + glyph.y * size
        if chars and (abs(at - end) > _NEAR or abs(up - height) > _NEAR):
            canvas.drawString(begin, height, chars)
            chars = ""
        if not chars:
            begin, height, end = at, up, at
        chars += glyph.char
        end += run.font.width(glyph.char) * size
        x += glyph.advance * size
    if chars:
        canvas.drawString(begin, height, chars)
