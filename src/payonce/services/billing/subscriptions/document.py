"""An invoice or a credit note as a PDF: the same bytes for the same content, and sums that add up or no document."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from io import BytesIO
from typing import TYPE_CHECKING, Final

from payonce.kit.money import Amount, render
from payonce.kit.outcomes import Invalid
from payonce.services.billing.subscriptions.calendar import local
from payonce.services.billing.subscriptions.lettering import Fonts, Lettering, loaded

if TYPE_CHECKING:
    from reportlab.pdfgen.canvas import Canvas

LINES_MAX: Final = 2_000
"""Some sixty pages; a subscription that changed its plan more often than that in one period is a mistake."""
PARTY_LINES_MAX: Final = 8
PARTY_ROWS_MAX: Final = 3
"""Of one long line of an address, so that both sides and the first lines of the invoice fit the first page."""
TEXT_MAX_CHARS: Final = 500
SHORT_MAX_CHARS: Final = 60
"""Of a number or a state, which have one row."""

# A4, in points of a seventy-second of an inch.
_WIDTH, _HEIGHT = 595, 842
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 547, 794, 64
_TIME_X, _AMOUNT_X = 300, 430
_SIZE, _SMALLEST, _LEADING = 9, 4, 13


class Kind(StrEnum):
    INVOICE = "Invoice"
    CREDIT_NOTE = "Credit note"


@dataclass(frozen=True, slots=True)
class Party:
    """Who sells or who buys: a name, and below it address, tax number or whatever the law wants there."""

    name: str
    lines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.lines) > PARTY_LINES_MAX:
            raise Invalid(f"{len(self.lines)} lines below {self.name!r} are too many: give at most {PARTY_LINES_MAX}")


@dataclass(frozen=True, slots=True)
class PrintedLine:
    text: str
    amount: Amount
    start: datetime | None = None
    end: datetime | None = None


@dataclass(frozen=True, slots=True)
class PrintedNote:
    """A credit note, as it is listed on the invoice that it belongs to."""

    number: str
    issued_at: datetime
    amount: Amount
    reason: str


@dataclass(frozen=True, slots=True)
class Printable:
    """All that stands on the paper. On a credit note the amounts are what goes back, and `about` names its invoice."""

    kind: Kind
    number: str
    issued_at: datetime
    issuer: Party
    customer: Party
    lines: tuple[PrintedLine, ...]
    total: Amount
    due: Amount
    status: str
    credit: Amount | None = None
    about: str = ""
    notes: tuple[PrintedNote, ...] = ()
    zone: str = "UTC"
    locale: str = "en"

    def __post_init__(self) -> None:
        if not 1 <= len(self.lines) <= LINES_MAX or len(self.notes) > LINES_MAX:
            raise Invalid(f"{self.number} has {len(self.lines)} lines and {len(self.notes)} credit notes; "
                          f"a document has 1 to {LINES_MAX} of the one and at most as many of the other")  # fmt: skip
        asset = self.total.asset
        if Amount.total((line.amount for line in self.lines), asset) != self.total:
            raise Invalid(f"the lines of {self.number} do not add up to its total of {self.total.to_text()} {asset}")
        credit = self.credit or Amount.zero(asset)
        if self.due != max(self.total, Amount.zero(asset)) - credit or credit.minor < 0 or self.due.minor < 0:
            raise Invalid(
                f"{self.number} asks for {self.due.to_text()} {asset}, which is not what is left of "
                f"{self.total.to_text()} after {credit.to_text()} of credit"
            )


def to_pdf(printable: Printable, fonts: Fonts | None = None) -> bytes:
    """Labels in English, dates as year-month-day in the customer's zone, amounts in the manner of the locale.

    A few milliseconds of work, more with many lines: call it in a thread. Threads take turns.
    """
    with _ONE_AT_A_TIME:
        regular, bold = loaded(fonts)
        lettering = Lettering(regular.face.charToGlyph, bold.face.charToGlyph)
        return _set(printable, _Setter(printable, regular.fontName, bold.fontName, lettering))


# A font's reader has one place in its file for all documents: two at once would mix their letters.
_ONE_AT_A_TIME: Final = threading.Lock()


def _set(printable: Printable, setter: "_Setter") -> bytes:
    from reportlab.pdfgen.canvas import Canvas

    buffer, pages = BytesIO(), setter.pages()
    # Invariant: no date of making and no random identity, so equal invoices are equal files.
    canvas = Canvas(buffer, pagesize=(_WIDTH, _HEIGHT), invariant=1, pageCompression=1, lang="en")
    canvas.setTitle(f"{printable.kind} {printable.number}")
    canvas.setAuthor(printable.issuer.name)
    canvas.setSubject(printable.customer.name)
    canvas.setCreator("payonce")
    for number, rows in enumerate(pages, start=1):
        setter.draw(canvas, rows)
        setter.draw_foot(canvas, number, len(pages))
        canvas.showPage()
    canvas.save()
    return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class _Piece:
    """Text that begins at x and has so much room, or with `right` ends where its room does."""

    x: int
    room: int
    text: str
    bold: bool = False
    right: bool = False
    size: int = _SIZE


@dataclass(frozen=True, slots=True)
class _Row:
    pieces: tuple[_Piece, ...]
    height: int = _LEADING
    ruled: bool = False


class _Setter:
    """Puts a document's text into rows and the rows onto pages."""

    def __init__(self, printable: Printable, regular: str, bold: str, lettering: Lettering) -> None:
        self._printable = printable
        self._regular = regular
        self._bold = bold
        self._lettering = lettering

    def pages(self) -> list[list[_Row]]:
        """Each page after the first begins with the heads of the columns; what is summed up stays together."""
        again = self._column_heads()
        blocks = [list(self._head()), [again], *self._line_blocks(), list(self._sums()), *self._note_blocks()]
        if self._lettering.changed:
            blocks.append(list(self._explanation()))
        pages: list[list[_Row]] = [[]]
        left = _TOP - _BOTTOM
        for block in blocks:
            needed = sum(row.height for row in block)
            if needed > left and pages[-1]:
                pages.append([again])
                left = _TOP - _BOTTOM - again.height
            pages[-1] += block
            left -= needed
        return pages

    def draw(self, canvas: "Canvas", rows: Sequence[_Row]) -> None:
        y = _TOP
        for row in rows:
            y -= row.height
            for piece in row.pieces:
                self._draw_piece(canvas, piece, y)
            if row.ruled:
                canvas.line(_LEFT, y - 4, _RIGHT, y - 4)

    def draw_foot(self, canvas: "Canvas", number: int, of: int) -> None:
        self._draw_piece(
            canvas, _Piece(_LEFT, 340, f"{self._printable.kind} {self._short(self._printable.number)}"), 40
        )
        self._draw_piece(canvas, _Piece(400, _RIGHT - 400, f"Page {number} of {of}", right=True), 40)

    def _draw_piece(self, canvas: "Canvas", piece: _Piece, y: int) -> None:
        name, size = self._font(piece.bold), piece.size
        # An amount is shown whole or not at all: smaller where it is long, never cut.
        while size > _SMALLEST and canvas.stringWidth(piece.text, name, size) > piece.room:
            size -= 1
        canvas.setFont(name, size)
        if piece.right:
            canvas.drawRightString(piece.x + piece.room, y, piece.text)
        else:
            canvas.drawString(piece.x, y, piece.text)

    def _head(self) -> Iterator[_Row]:
        printable = self._printable
        yield _Row((_Piece(_LEFT, 499, printable.kind, bold=True, size=18),), 20)
        facts = [self._short(printable.number), self._day(printable.issued_at)]
        facts += [f"for {self._short(printable.about)}"] if printable.about else []
        yield _Row((_Piece(_LEFT, 499, " · ".join(facts)),), 18)
        yield _Row((_Piece(_LEFT, 499, self._short(printable.status), bold=True),), 16)
        yield _Row((_Piece(_LEFT, 240, "From", bold=True), _Piece(_TIME_X, 247, "To", bold=True)), 30)
        sides = [self._party(printable.issuer, _LEFT), self._party(printable.customer, _TIME_X)]
        for index in range(max(map(len, sides))):
            yield _Row(tuple(side[index] for side in sides if index < len(side)))
        yield _Row((), 20)

    def _party(self, party: Party, x: int) -> list[_Piece]:
        rows = [self._wrapped(text, 240)[:PARTY_ROWS_MAX] for text in (party.name, *party.lines)]
        return [_Piece(x, 240, line) for lines in rows for line in lines]

    def _column_heads(self) -> _Row:
        amount = _Piece(_AMOUNT_X, _RIGHT - _AMOUNT_X, "Amount", bold=True, right=True)
        return _Row((_Piece(_LEFT, 240, "For", bold=True), _Piece(_TIME_X, 125, "Time", bold=True), amount), 16, True)

    def _line_blocks(self) -> Iterator[list[_Row]]:
        for line in self._printable.lines:
            time = f"{self._day(line.start)} to {self._day(line.end)}" if line.start and line.end else ""
            first, *more = self._wrapped(line.text, 240)
            block = [_Row((_Piece(_LEFT, 240, first), _Piece(_TIME_X, 125, time), self._amount(line.amount)), 16)]
            yield [*block, *(_Row((_Piece(_LEFT, 240, text),)) for text in more)]

    def _sums(self) -> Iterator[_Row]:
        printable = self._printable
        yield _Row((), 4, ruled=True)
        yield self._sum("Total", printable.total)
        if printable.credit:
            yield self._sum("Paid from credit", -printable.credit)
        yield self._sum("Amount due" if printable.kind is Kind.INVOICE else "Amount credited", printable.due, bold=True)

    def _note_blocks(self) -> Iterator[list[_Row]]:
        for note in self._printable.notes:
            first, *more = self._wrapped(f"Credit note {note.number}: {note.reason}", 240)
            pieces = (
                _Piece(_LEFT, 240, first),
                _Piece(_TIME_X, 125, self._day(note.issued_at)),
                self._amount(-note.amount),
            )
            yield [_Row(pieces, 22), *(_Row((_Piece(_LEFT, 240, text),)) for text in more)]

    def _explanation(self) -> Iterator[_Row]:
        words = (
            f"Letters that this document's font does not have are shown without their accent, or as "
            f"{self._lettering.mark}. The names as they were given are in the file's properties and in our records."
        )
        yield _Row((), 12)
        for line in self._wrapped(words, _RIGHT - _LEFT):
            yield _Row((_Piece(_LEFT, _RIGHT - _LEFT, line, size=8),))

    def _sum(self, label: str, amount: Amount, bold: bool = False) -> _Row:
        return _Row((_Piece(_TIME_X, 125, label, bold=bold), self._amount(amount, bold)), 16)

    def _amount(self, amount: Amount, bold: bool = False) -> _Piece:
        shown = self._text(render(amount, self._printable.locale))
        return _Piece(_AMOUNT_X, _RIGHT - _AMOUNT_X, shown, bold, right=True)

    def _day(self, moment: datetime) -> str:
        return local(moment, self._printable.zone).date().format_iso()

    def _text(self, text: str, most: int = TEXT_MAX_CHARS) -> str:
        return self._lettering.shown(text if len(text) <= most else f"{text[: most - 1]}…")

    def _short(self, text: str) -> str:
        return self._text(text, SHORT_MAX_CHARS)

    def _font(self, bold: bool) -> str:
        return self._bold if bold else self._regular

    def _wrapped(self, text: str, room: int) -> list[str]:
        """Lines that fit, broken between words, and within a word that is longer than a line."""
        from reportlab.pdfbase.pdfmetrics import stringWidth

        lines = [""]
        for word in self._text(text).split(" "):
            joined = f"{lines[-1]} {word}".strip()
            if stringWidth(joined, self._regular, _SIZE) <= room:
                lines[-1] = joined
                continue
            lines.append("")
            for char in word:
                if stringWidth(lines[-1] + char, self._regular, _SIZE) > room:
                    lines.append("")
                lines[-1] += char
        return [line for line in lines if line] or [""]
