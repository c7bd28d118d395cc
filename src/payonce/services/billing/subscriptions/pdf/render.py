"""Renders invoices and credit notes as PDF, deterministically, and only if their sums add up."""

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from io import BytesIO
from typing import TYPE_CHECKING, Final

from payonce.kit.money import Amount, render
from payonce.kit.outcomes import Invalid, Unavailable
from payonce.services.billing.subscriptions.domain.calendar import local
from payonce.services.billing.subscriptions.pdf.glyphs import MARK, Fonts, GlyphRenderer, clusters, direction_of
from payonce.services.billing.subscriptions.pdf.truetype import NO_PACKAGE

if TYPE_CHECKING:
    from reportlab.pdfgen.canvas import Canvas

LINES_MAX: Final = 2_000
"""About sixty pages; more plan changes in one period are a mistake."""
PARTY_LINES_MAX: Final = 8
PARTY_ROWS_MAX: Final = 3
"""Per line of an address, so that both addresses and the first invoice lines fit on the first page."""
TEXT_MAX_CHARS: Final = 500
SHORT_MAX_CHARS: Final = 60
"""For a number or a state, which has one row."""

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
    """Seller or customer: a name, then address, tax number and other required lines."""

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
    """A credit note, as listed on its invoice."""

    number: str
    issued_at: datetime
    amount: Amount
    reason: str


@dataclass(frozen=True, slots=True)
class PrintedDocument:
    """The content of a document. On a credit note the amounts are those credited, and `about` is its invoice."""

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
    credit_back: Amount | None = None
    """The part of the credit that was returned to the customer since."""
    paid_at: datetime | None = None
    owed: bool = True
    """Whether the unpaid amount is still to be paid."""
    about: str = ""
    about_total: Amount | None = None
    """The total of a credit note's invoice."""
    notes: tuple[PrintedNote, ...] = ()
    """The invoice's credit notes; on a credit note, the earlier ones."""
    zone: str = "UTC"
    locale: str = "en"

    def __post_init__(self) -> None:
        if not 1 <= len(self.lines) <= LINES_MAX or len(self.notes) > LINES_MAX:
            raise Invalid(
                f"{self.number} has {len(self.lines)} lines and {len(self.notes)} credit notes; a document has 1 "
                f"to {LINES_MAX} lines and at most as many credit notes"
            )
        asset = self.total.asset
        if Amount.total((line.amount for line in self.lines), asset) != self.total:
            raise Invalid(f"the lines of {self.number} do not add up to its total of {self.total.to_text()} {asset}")
        credit = self.credit or Amount.zero(asset)
        if self.due != max(self.total, Amount.zero(asset)) - credit or credit.minor < 0 or self.due.minor < 0:
            raise Invalid(
                f"{self.number} charges {self.due.to_text()} {asset}, which is not {self.total.to_text()} minus "
                f"{credit.to_text()} of credit"
            )
        if self.credit_back is not None and not 0 < self.credit_back.minor <= credit.minor:
            raise Invalid(
                f"{self.number} returns {self.credit_back.to_text()} {asset} of credit, which is not a part of "
                f"the {credit.to_text()} that it used"
            )

    @property
    def left(self) -> Amount:
        """The amount still to be paid."""
        return self.due if self.owed and self.paid_at is None else Amount.zero(self.due.asset)


def to_pdf(document: PrintedDocument, fonts: Fonts | None = None) -> bytes:
    """Labels are in English, dates as year-month-day in the customer's zone, amounts in the locale's format.

    Takes a few milliseconds, more with many lines: call it in a thread. Threads take turns.
    """
    with _ONE_AT_A_TIME:
        return _set(document, _PageLayout(document, GlyphRenderer(fonts or Fonts())))


# A font has one read position for all documents: concurrent use would mix their letters.
_ONE_AT_A_TIME: Final = threading.Lock()


def _set(document: PrintedDocument, layout: "_PageLayout") -> bytes:
    try:
        from reportlab.pdfgen.canvas import Canvas
    except ImportError as error:
        raise Unavailable(NO_PACKAGE) from error

    buffer, pages = BytesIO(), layout.pages()
    # Invariant: without a creation date and a random identity, so that equal invoices are equal files.
    canvas = Canvas(buffer, pagesize=(_WIDTH, _HEIGHT), invariant=1, pageCompression=1, lang="en")
    canvas.setTitle(f"{document.kind} {document.number}")
    canvas.setAuthor(document.issuer.name)
    canvas.setSubject(document.customer.name)
    canvas.setCreator("payonce")
    for number, rows in enumerate(pages, start=1):
        layout.draw(canvas, rows)
        layout.draw_foot(canvas, number, len(pages))
        canvas.showPage()
    canvas.save()
    return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class _Piece:
    """Text that begins at x within its room, or with `right` ends at the end of its room."""

    x: int
    room: int
    text: str
    bold: bool = False
    right: bool = False
    size: int = _SIZE
    base: str | None = None
    """The direction of its paragraph, L or R; None takes it from its first letter."""


@dataclass(frozen=True, slots=True)
class _Row:
    pieces: tuple[_Piece, ...]
    height: int = _LEADING
    ruled: bool = False


class _PageLayout:
    """Lays out a document's text in rows, and rows on pages."""

    def __init__(self, document: PrintedDocument, glyphs: GlyphRenderer) -> None:
        self._document = document
        self._glyphs = glyphs

    def pages(self) -> list[list[_Row]]:
        """Every further page repeats the column heads; the totals are kept together."""
        again = self._column_heads()
        blocks = [list(self._head()), [again], *self._line_blocks(), list(self._sums()), *self._note_blocks()]
        if self._glyphs.changed:
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
        self._draw_piece(canvas, _Piece(_LEFT, 340, f"{self._document.kind} {self._short(self._document.number)}"), 40)
        self._draw_piece(canvas, _Piece(400, _RIGHT - 400, f"Page {number} of {of}", right=True), 40)

    def _draw_piece(self, canvas: "Canvas", piece: _Piece, y: int) -> None:
        size, unit = piece.size, self._glyphs.width(piece.text, piece.bold, 1, piece.base)
        # An amount is never cut: a long one is drawn smaller.
        while size > _SMALLEST and unit * size > piece.room:
            size -= 1
        x = piece.x + piece.room - unit * size if piece.right else piece.x
        self._glyphs.draw(canvas, x, y, piece.text, piece.bold, size, piece.base)

    def _head(self) -> Iterator[_Row]:
        document = self._document
        yield _Row((_Piece(_LEFT, 499, document.kind, bold=True, size=18),), 20)
        facts = [self._short(document.number), self._day(document.issued_at)]
        facts += [f"for {self._short(document.about)}"] if document.about else []
        yield _Row((_Piece(_LEFT, 499, " · ".join(facts)),), 18)
        for line, base in self._wrapped(document.status, 499, bold=True):
            yield _Row((_Piece(_LEFT, 499, line, bold=True, base=base),), 16)
        yield _Row((_Piece(_LEFT, 240, "From", bold=True), _Piece(_TIME_X, 247, "To", bold=True)), 30)
        sides = [self._party(document.issuer, _LEFT), self._party(document.customer, _TIME_X)]
        for index in range(max(map(len, sides))):
            yield _Row(tuple(side[index] for side in sides if index < len(side)))
        yield _Row((), 20)

    def _party(self, party: Party, x: int) -> list[_Piece]:
        pieces: list[_Piece] = []
        for text in (party.name, *party.lines):
            rows = self._wrapped(text, 240)
            pieces += [_Piece(x, 240, line, base=base) for line, base in rows[:PARTY_ROWS_MAX]]
            if len(rows) > PARTY_ROWS_MAX:
                pieces[-1] = replace(pieces[-1], text=f"{pieces[-1].text}…")
        return pieces

    def _column_heads(self) -> _Row:
        amount = _Piece(_AMOUNT_X, _RIGHT - _AMOUNT_X, "Amount", bold=True, right=True)
        return _Row((_Piece(_LEFT, 240, "For", bold=True), _Piece(_TIME_X, 125, "Time", bold=True), amount), 16, True)

    def _line_blocks(self) -> Iterator[list[_Row]]:
        for line in self._document.lines:
            time = f"{self._day(line.start)} to {self._day(line.end)}" if line.start and line.end else ""
            yield list(self._entry(line.text, time, line.amount, 16))

    def _sums(self) -> Iterator[_Row]:
        document = self._document
        yield _Row((), 4, ruled=True)
        yield self._sum("Total", document.total)
        back = document.credit_back or Amount.zero(document.total.asset)
        if document.credit and document.credit != back:
            yield self._sum("Paid from credit", back - document.credit)
        if back:
            yield self._sum("Credit given back", back)
        if document.kind is Kind.CREDIT_NOTE:
            yield self._sum("Amount credited", document.due, bold=True)
            return
        if document.total.minor < 0:
            yield self._sum("Added to credit", -document.total)
        if document.paid_at is not None and document.due:
            yield self._sum(f"Paid on {self._day(document.paid_at)}", -document.due)
        yield self._sum("Amount due", document.left, bold=True)

    def _note_blocks(self) -> Iterator[list[_Row]]:
        """The credit notes of the invoice, and the remaining net amount."""
        document = self._document
        total = document.total if document.kind is Kind.INVOICE else document.about_total
        if total is None or not (document.notes or document.kind is Kind.CREDIT_NOTE):
            return
        credited = Amount.total((note.amount for note in document.notes), total.asset)
        if document.kind is Kind.CREDIT_NOTE:
            credited += document.total
            yield list(self._entry(f"Invoice {document.about}, total", "", total, 22))
        for note in document.notes:
            text = f"Credit note {note.number}: {note.reason}"
            yield list(self._entry(text, self._day(note.issued_at), -note.amount, 22))
        last = [_Row((), 4, ruled=True), self._sum("Net after credit notes", total - credited, bold=True)]
        if document.kind is Kind.CREDIT_NOTE:
            this = self._entry(f"Credit note {document.number}", self._day(document.issued_at), -document.total, 22)
            last = [*this, *last]
        yield last

    def _entry(self, text: str, time: str, amount: Amount, height: int) -> Iterator[_Row]:
        (first, base), *more = self._wrapped(text, 240)
        pieces = (_Piece(_LEFT, 240, first, base=base), _Piece(_TIME_X, 125, time), self._amount(amount))
        yield _Row(pieces, height)
        for line, base in more:
            yield _Row((_Piece(_LEFT, 240, line, base=base),))

    def _explanation(self) -> Iterator[_Row]:
        words = (
            f"Letters that this document's fonts do not have are shown without their accent, or as {MARK}. The "
            "original names are in the file's properties and in our records."
        )
        yield _Row((), 12)
        for line, base in self._wrapped(words, _RIGHT - _LEFT):
            yield _Row((_Piece(_LEFT, _RIGHT - _LEFT, line, size=8, base=base),))

    def _sum(self, label: str, amount: Amount, bold: bool = False) -> _Row:
        return _Row((_Piece(_TIME_X, 125, label, bold=bold), self._amount(amount, bold)), 16)

    def _amount(self, amount: Amount, bold: bool = False) -> _Piece:
        shown = self._text(render(amount, self._document.locale))
        return _Piece(_AMOUNT_X, _RIGHT - _AMOUNT_X, shown, bold, right=True)

    def _day(self, moment: datetime) -> str:
        return local(moment, self._document.zone).date().format_iso()

    def _text(self, text: str, most: int = TEXT_MAX_CHARS) -> str:
        return self._glyphs.shown(text if len(text) <= most else f"{text[: most - 1]}…")

    def _short(self, text: str) -> str:
        return self._text(text, SHORT_MAX_CHARS)

    def _wrapped(self, text: str, room: int, *, bold: bool = False) -> list[tuple[str, str]]:
        """Lines that fit, with their direction; broken between words, and within words that are longer than a line."""
        shown = self._text(text)
        base = direction_of(shown)

        def fits(line: str) -> bool:
            return self._glyphs.width(line, bold, _SIZE, base) <= room

        lines = [""]
        for word in shown.split(" "):
            joined = f"{lines[-1]} {word}".strip()
            if fits(joined):
                lines[-1] = joined
                continue
            left = clusters(word)
            while left:
                # Several lengths are tried, since the width of an Arabic word is not the sum of its letters.
                count = bisect_left(range(1, len(left) + 1), True, key=lambda n: not fits("".join(left[:n]))) or 1
                lines.append("".join(left[:count]))
                left = left[count:]
        return [(line, base) for line in lines if line] or [("", base)]
